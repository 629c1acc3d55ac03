#include <fmt/format.h>

#include <string>
#include <vector>

#include "cli/command.h"
#include "mixers/mixer.h"

namespace tarn::cli {
namespace {

std::vector<std::string> forms_of(const mixers::MixerDef& mixer) {
  std::vector<std::string> forms;
  if (mixer.recurrent != nullptr) forms.push_back("recurrent");
  if (mixer.parallel != nullptr) forms.push_back("parallel");
  if (mixer.chunk != nullptr) forms.push_back("chunk");
  if (mixer.step != nullptr) forms.push_back("step");
  if (mixer.backward != nullptr) forms.push_back("backward");
  if (mixer.chunk_bf16 != nullptr) forms.push_back("chunk_bf16");
  return forms;
}

/// Of the rows; weights may be packed in others whatever the mechanism (--weights).
std::vector<std::string> dtypes_of(const mixers::MixerDef& mixer) {
  std::vector<std::string> dtypes{"f32"};
  if (mixer.chunk_bf16 != nullptr) dtypes.push_back("bf16");
  return dtypes;
}

Json::Array array_of(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

Status run(Context& context) {
  Json::Array array;
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    const std::vector<std::string> forms = forms_of(*mixer);
    Json json;
    json.set("name", mixer->name);
    json.set("summary", mixer->summary);
    json.set("recurrence", mixer->recurrence);
    json.set("state_bytes", mixer->state_formula);
    json.set("recurrent", mixer->step != nullptr || !mixers::has_operator(*mixer));
    json.set("bounded_state", mixer->bounded_state);
    json.set("growth", mixer->bounded_state ? "none" : "linear");
    json.set("forms", array_of(forms));
    json.set("devices", array_of({"cpu"}));
    json.set("dtypes", array_of(dtypes_of(*mixer)));
    json.set("source", mixer->source);
    array.push_back(std::move(json));
    context.console.text(fmt::format(
        "{}: {}\n  recurrence   {}\n  state bytes  {} ({})\n  forms        {} ({}; cpu)\n"
        "  source       {}\n",
        mixer->name, mixer->summary, mixer->recurrence, mixer->state_formula,
        mixer->bounded_state ? "bounded" : "grows with every token",
        forms.empty() ? "none: a layer without an operator"
                      : fmt::format("{}", fmt::join(forms, ", ")),
        fmt::join(dtypes_of(*mixer), ", "), mixer->source));
  }
  context.console.document(Json(std::move(array)));
  return {};
}

}  // namespace

void add_mixers(Command& program, Selection& selection) {
  program.add(selection, "mixers", "The mechanisms that models can use", run);
}

}  // namespace tarn::cli
