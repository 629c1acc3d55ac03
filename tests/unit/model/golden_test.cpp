// Layers of every mechanism against reference implementations: the files that tools/golden wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "conformance/layer_harness.h"
#include "model/safetensors.h"

namespace tarn::model {
namespace {

using conformance::LayerGradient;
using conformance::LayerHarness;
using conformance::LayerOutcome;
using conformance::LayerProblem;
using conformance::StateValues;

std::vector<std::string> golden_cases() {
  std::vector<std::string> cases;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(TARN_SOURCE_DIR "/src/mixers")) {
    const std::filesystem::path& path = entry.path();
    if (path.parent_path().filename() == "golden" && path.extension() == ".json") {
      cases.push_back(path.string());
    }
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

/// All tensors of a file in double.
std::map<std::string, std::vector<double>> read_tensors(const std::string& path) {
  auto file = SafetensorsFile::open(path);
  TARN_CHECK(file.ok());
  const auto bytes = read_file(path, int64_t{1} << 20);
  TARN_CHECK(bytes.ok());
  std::map<std::string, std::vector<double>> tensors;
  for (const TensorEntry& entry : file->header.tensors) {
    const char* from = bytes->data() + file->header.data_offset + entry.begin;
    const bool wide = entry.dtype == DType::kF64;
    TARN_CHECK(wide || entry.dtype == DType::kF32);
    std::vector<double>& values = tensors[entry.name];
    values.resize(static_cast<size_t>((entry.end - entry.begin) / (wide ? 8 : 4)));
    for (size_t i = 0; i < values.size(); ++i) {
      float narrow = 0.0f;
      if (wide) {
        std::memcpy(&values[i], from + i * 8, 8);
      } else {
        std::memcpy(&narrow, from + i * 4, 4);
        values[i] = static_cast<double>(narrow);
      }
    }
  }
  return tensors;
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  Golden() {
    const auto text = read_file(GetParam(), 1 << 16);
    const auto json = parse_json(*text, GetParam());
    TARN_CHECK(json.ok());
    const Json* mixer = json->find("mixer");
    const std::string name = *mixer->find("name")->as_string();
    Json config(Json::Object{});
    for (const auto& [key, value] : *mixer->as_object()) {
      if (key != "name") config.set(key, value);
    }
    const auto definition = mixers::find_mixer(name, GetParam());
    TARN_CHECK(definition.ok());
    harness =
        std::make_unique<LayerHarness>(**definition, config, *json->find("model_dim")->as_int());
    batch = *json->find("batch")->as_int();
    tokens = *json->find("tokens")->as_int();
    std::string path = GetParam();
    path.replace(path.size() - 5, 5, ".safetensors");
    tensors = read_tensors(path);
    for (const mixers::StateSpec& spec : harness->states) {
      with_states = with_states || tensors.contains("final." + spec.name);
    }
  }

  /// Values of a tensor that must exist.
  std::vector<double> take(const std::string& name) {
    const auto found = tensors.find(name);
    EXPECT_NE(found, tensors.end()) << name;
    if (found == tensors.end()) return {};
    std::vector<double> values = found->second;
    tensors.erase(found);
    return values;
  }
  /// PREFIX.<state> of every state tensor, split into sequences; zeros where the file has none. Nothing
  /// for a file without final states: whole sequences from the initial state.
  StateValues<double> take_states(const std::string& prefix) {
    StateValues<double> states;
    if (!with_states) return states;
    for (const mixers::StateSpec& spec : harness->states) {
      const auto size = static_cast<size_t>(LayerHarness::elements(spec.shape));
      std::vector<double> all(size * static_cast<size_t>(batch), 0.0);
      if (tensors.contains(prefix + spec.name)) all = take(prefix + spec.name);
      EXPECT_EQ(all.size(), size * static_cast<size_t>(batch)) << prefix << spec.name;
      auto& tensor = states.emplace_back();
      for (auto from = all.begin(); from != all.end(); from += static_cast<int64_t>(size)) {
        tensor.emplace_back(from, from + static_cast<int64_t>(size));
      }
    }
    return states;
  }
  LayerProblem take_problem() {
    LayerProblem problem;
    problem.lengths.assign(static_cast<size_t>(batch), tokens);
    problem.positions.assign(static_cast<size_t>(batch), 0);
    for (const mixers::ParamSpec& spec : harness->params) {
      problem.params.push_back(take("parameter." + spec.name));
    }
    problem.x = take("x");
    if (harness->program.received != 0) problem.received = take("value_first");
    problem.state = take_states("initial.");
    return problem;
  }

  std::unique_ptr<LayerHarness> harness;
  int64_t batch = 0;
  int64_t tokens = 0;
  bool with_states = false;
  std::map<std::string, std::vector<double>> tensors;
};

constexpr double kDouble = 1e-10;
constexpr double kSingle = 1e-5;

TEST_P(Golden, OutputsStatesAndGradients) {
  const LayerProblem problem = take_problem();
  const std::vector<double> y = take("y");
  const StateValues<double> final_state = take_states("final.");
  const std::vector<double> dy = take("dy");
  const StateValues<double> dfinal = take_states("dfinal.");

  const bool hands_on = harness->program.handed_on.width() > 0;
  const std::vector<double> handed_on =
      hands_on ? take("output.value_first") : std::vector<double>();

  const LayerOutcome<double> exact = harness->reference(problem);
  EXPECT_LE(conformance::relative_error(exact.y, y), kDouble);
  EXPECT_LE(conformance::relative_error(exact.handed_on, handed_on), kDouble);
  EXPECT_LE(conformance::relative_error(exact.state, final_state), kDouble);

  const LayerOutcome<float> chunk = harness->run(problem, mixers::Form::kChunk);
  EXPECT_LE(conformance::relative_error(chunk.y, y), kSingle);
  EXPECT_LE(conformance::relative_error(chunk.handed_on, handed_on), kSingle);
  EXPECT_LE(conformance::relative_error(chunk.state, final_state), kSingle);

  const LayerGradient got = harness->gradient(
      problem, {conformance::converted<float>(dy), conformance::converted<float>(dfinal)});
  EXPECT_LE(conformance::relative_error(got.dx, take("dx")), kSingle) << "dx";
  if (harness->program.received != 0) {
    EXPECT_LE(conformance::relative_error(got.dreceived, take("dvalue_first")), kSingle);
  }
  for (size_t p = 0; p < harness->params.size(); ++p) {
    const std::string& name = harness->params[p].name;
    EXPECT_LE(conformance::relative_error(got.dparams[p], take("dparameter." + name)), kSingle)
        << name;
  }
  const StateValues<double> dinitial = take_states("dinitial.");
  for (size_t j = 0; j < dinitial.size(); ++j) {
    EXPECT_LE(conformance::relative_error(StateValues<float>{got.dinitial[j]},
                                          StateValues<double>{dinitial[j]}),
              kSingle)
        << "initial state " << harness->states[j].name;
  }
  for (const auto& [name, values] : tensors) ADD_FAILURE() << "nobody looked at " << name;
}

INSTANTIATE_TEST_SUITE_P(Mixers, Golden, testing::ValuesIn(golden_cases()),
                         [](const testing::TestParamInfo<std::string>& param) {
                           const std::filesystem::path path = param.param;
                           return path.parent_path().parent_path().filename().string() + "_" +
                                  path.stem().string();
                         });

}  // namespace
}  // namespace tarn::model
