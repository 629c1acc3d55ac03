#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "mixers/config_keys.h"
#include "mixers/layer.h"

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

Json entry_of(const mixers::MixerDef& mixer) {
  Json json;
  json.set("name", mixer.name);
  json.set("summary", mixer.summary);
  json.set("recurrence", mixer.recurrence);
  json.set("state_bytes", mixer.state_formula);
  json.set("recurrent", mixer.step != nullptr || !mixers::has_operator(mixer));
  json.set("bounded_state", mixer.bounded_state);
  json.set("growth", mixer.bounded_state ? "none" : "linear");
  json.set("forms", array_of(forms_of(mixer)));
  json.set("devices", array_of({"cpu"}));
  json.set("dtypes", array_of(dtypes_of(mixer)));
  json.set("source", mixer.source);
  return json;
}

std::string text_of(const mixers::MixerDef& mixer) {
  const std::vector<std::string> forms = forms_of(mixer);
  return fmt::format(
      "{}: {}\n  recurrence   {}\n  state bytes  {} ({})\n  forms        {} ({}; cpu)\n"
      "  source       {}\n",
      mixer.name, mixer.summary, mixer.recurrence, mixer.state_formula,
      mixer.bounded_state ? "bounded" : "grows with every token",
      forms.empty() ? "none: a layer without an operator"
                    : fmt::format("{}", fmt::join(forms, ", ")),
      fmt::join(dtypes_of(mixer), ", "), mixer.source);
}

Json key_json(const mixers::ConfigKey& one) {
  Json json;
  json.set("key", one.key.name);
  json.set("type", one.key.type);
  json.set("required", one.key.required);
  json.set("min", one.key.min);
  json.set("max", one.key.max);
  json.set("choices", array_of(one.key.choices));
  json.set("default", one.key.fallback);
  json.set("depends", one.depends);
  return json;
}

/// "integer, 1 to 4096", "one of mean, max".
std::string takes_text(const JsonKey& key) {
  if (!key.choices.empty()) return fmt::format("one of {}", fmt::join(key.choices, ", "));
  if (key.min.is_null() && key.max.is_null()) return key.type;
  const auto limit = [](const Json& json) {
    return json.is_null() ? std::string("(depends)") : json.dump();
  };
  return fmt::format("{}, {} to {}", key.type, limit(key.min), limit(key.max));
}

std::string default_text(const mixers::ConfigKey& one) {
  const Json& value = one.key.fallback;
  if (one.key.required) return one.depends ? "required by some" : "required";
  if (value.is_null()) return "default depends";
  const std::string* text = value.as_string();
  return fmt::format("default {}{}", text != nullptr ? *text : value.dump(),
                     one.depends ? ", depends" : "");
}

std::string keys_text(const std::vector<mixers::ConfigKey>& keys) {
  size_t width = 0;
  for (const mixers::ConfigKey& one : keys) width = std::max(width, one.key.name.size());
  std::string text = "  config keys";
  for (const mixers::ConfigKey& one : keys) {
    text += fmt::format("\n    {:<{}}  {}; {}", one.key.name, width, takes_text(one.key),
                        default_text(one));
  }
  return text;
}

/// The letters of MixerDef::state_formula.
constexpr std::array<std::pair<const char*, const char*>, 13> kLegend = {{
    {"T", "tokens so far"},
    {"D", "model_dim of the model"},
    {"H", "num_heads"},
    {"Hkv", "num_kv_heads"},
    {"Hk", "num_key_heads"},
    {"K", "key_dim"},
    {"V", "value_dim"},
    {"E", "hidden_dim or inner_dim"},
    {"N", "state_dim"},
    {"W", "conv_width"},
    {"G", "num_groups"},
    {"L", "num_latents"},
    {"F", "features of a key"},
}};

/// Those of the letters, and of the config keys, that `formula` names.
Json legend_of(const std::string& formula) {
  Json legend = Json::Object{};
  std::string word;
  for (const char c : formula + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      word += c;
      continue;
    }
    for (const auto& [letter, meaning] : kLegend) {
      if (word == letter && legend.find(letter) == nullptr) legend.set(letter, meaning);
    }
    word.clear();
  }
  return legend;
}

struct Example {
  Json config;
  std::vector<mixers::StateSpec> states;
};

/// The first example config and the state of its layer in a model of kExampleDim.
constexpr int64_t kExampleDim = 64;
Result<Example> example_of(const mixers::MixerDef& mixer) {
  Example example;
  TARN_ASSIGN(example.config, parse_json(mixer.example_configs().front(), mixer.name));
  TARN_ASSIGN(const auto config, mixer.parse_config(example.config, kExampleDim, mixer.name));
  example.states = mixers::layer_states(mixer, *config);
  return example;
}

Json state_json(const mixers::StateSpec& spec) {
  Json json;
  json.set("name", spec.name);
  json.set("shape", Json::Array(spec.shape.begin(), spec.shape.end()));
  json.set("per_token", spec.per_token);
  return json;
}

Status show_all(Context& context) {
  Json::Array array;
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    array.push_back(entry_of(*mixer));
    context.console.text(text_of(*mixer));
  }
  context.console.document(Json(std::move(array)));
  return {};
}

Status show_one(const std::string& name, Context& context) {
  TARN_ASSIGN(const mixers::MixerDef* mixer, mixers::find_mixer(name, "NAME"));
  TARN_ASSIGN(const Example example, example_of(*mixer));
  const Json legend = legend_of(mixer->state_formula);
  Json named;
  named.set("name", mixer->name);
  for (const Json::Member& member : *example.config.as_object()) {
    named.set(member.first, member.second);
  }
  Json::Array keys, states;
  const std::vector<mixers::ConfigKey> table = mixers::config_keys(*mixer);
  for (const mixers::ConfigKey& one : table) keys.push_back(key_json(one));
  std::string shapes;
  for (const mixers::StateSpec& spec : example.states) {
    states.push_back(state_json(spec));
    shapes += fmt::format("\n    {} [{}]{}", spec.name, fmt::join(spec.shape, ", "),
                          spec.per_token ? " for every token" : "");
  }
  Json json = entry_of(*mixer);
  json.set("legend", legend);
  json.set("config", std::move(keys));
  json.set("example", named);
  json.set("example_model_dim", kExampleDim);
  json.set("example_state", std::move(states));
  context.console.document(json);
  std::string letters;
  for (const Json::Member& member : *legend.as_object()) {
    letters += (letters.empty() ? "" : ", ") + member.first + " " + *member.second.as_string();
  }
  const std::string own = text_of(*mixer);
  context.console.text(fmt::format(
      "{}  letters      {}\n{}\n  example      {}\n  its state, f32, in a model of width {}:{}",
      own, letters, keys_text(table), named.dump(), kExampleDim,
      example.states.empty() ? " none" : shapes));
  return {};
}

}  // namespace

void add_mixers(Command& program, Selection& selection) {
  auto name = std::make_shared<std::string>();
  Command command = program.add(
      selection, "mixers", "The mechanisms that models can use", [name](Context& context) {
        return name->empty() ? show_all(context) : show_one(*name, context);
      });
  command.optional_positional("name", *name, "NAME",
                              "one of them, with its config keys and its state");
}

}  // namespace tarn::cli
