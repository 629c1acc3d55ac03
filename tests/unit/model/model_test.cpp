#include "model/model.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "base/rng.h"
#include "model/parameters.h"
#include "model/safetensors.h"
#include "unit/model/configs.h"
#include "unit/model/reference_decoder.h"

namespace tarn::model {
namespace {

using mixers::Form;
using mixers::StateRefs;

constexpr uint64_t kSeed = 7;
constexpr double kEps = std::numeric_limits<float>::epsilon();

/// Sequences packed into one batch.
struct Batch {
  std::vector<int64_t> begin, length, positions;
  std::vector<int32_t> tokens;

  void add(const std::vector<int32_t>& sequence, int64_t position = 0) {
    begin.push_back(static_cast<int64_t>(tokens.size()));
    length.push_back(static_cast<int64_t>(sequence.size()));
    positions.push_back(position);
    tokens.insert(tokens.end(), sequence.begin(), sequence.end());
  }
  TokenBatch view() const {
    return {{static_cast<int64_t>(begin.size()), begin.data(), length.data()},
            positions.data(),
            tokens.data()};
  }
};

/// States of `sequences` sequences, allocated from the model's state table alone.
class States {
 public:
  States(const Model& model, int64_t sequences, int64_t max_tokens) {
    for (const auto& specs : model.state_specs()) {
      const size_t first = pointers_.size();
      for (const mixers::StateSpec& spec : specs) {
        std::vector<float*> pointers;
        for (int64_t i = 0; i < sequences; ++i) {
          const int64_t size = element_count(spec.shape) * (spec.per_token ? max_tokens : 1);
          values_.emplace_back(static_cast<size_t>(size), spec.initial_value);
          pointers.push_back(values_.back().data());
        }
        pointers_.push_back(std::move(pointers));
      }
      ranges_.push_back({first, specs.size()});
    }
    for (auto& pointers : pointers_) tensors_.push_back(pointers.data());
    for (const auto& [first, count] : ranges_) {
      refs_.push_back({std::span<float* const* const>(tensors_.data() + first, count)});
    }
  }
  LayerStates view() const { return refs_; }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<float*>> pointers_;
  std::vector<float* const*> tensors_;
  std::vector<std::pair<size_t, size_t>> ranges_;
  std::vector<StateRefs<float>> refs_;
};

std::vector<int32_t> random_tokens(int64_t count, uint64_t stream) {
  Philox rng{1, stream, 0};
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(rng.next_below(11)));
  return tokens;
}

std::vector<float> run(const Model& model, const Batch& batch, Outputs outputs = Outputs::kAllRows,
                       ThreadPool* pool = nullptr, LayerStates states = {},
                       Form form = Form::kAuto) {
  const size_t width = static_cast<size_t>(model.config().head.output_dim());
  const size_t rows = outputs == Outputs::kAllRows ? batch.tokens.size() : batch.begin.size();
  std::vector<float> output(rows * width, NAN);
  Arena arena;
  model.forward(batch.view(), states, form, outputs, output.data(), pool, arena);
  return output;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) result = std::max(result, std::abs(value));
  return result;
}

template <class T>
double largest_difference(const std::vector<float>& a, const std::vector<T>& b) {
  EXPECT_EQ(a.size(), b.size());
  double result = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    if (!(difference <= result)) result = difference;  // NaN wins
  }
  return result;
}

std::shared_ptr<const Model> random_model(const Json& json) {
  return Model::random(config_of(json), kSeed, {});
}

/// The small config with each mixer of this build that has a state, in its first example config.
std::vector<Json> causal_configs() {
  std::vector<Json> configs;
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    Json mixer_json = json_of(mixer->example_configs()[0]);
    mixer_json.set("name", mixer->name);
    Json layer = (*small_config().find("layers")->as_array())[0];
    layer.set("mixer", mixer_json);
    Json json = small_config();
    json.set("model_dim", 16);
    json.set("layers", Json::Array{layer});
    if (!random_model(json)->state_specs()[0].empty()) configs.push_back(json);
  }
  return configs;
}

/// These and the first of them with embedding lags, near and far.
std::vector<Json> causal_configs_and_lags() {
  std::vector<Json> configs = causal_configs();
  Json json = configs[0];
  json.set("embedding_lags", Json::Array{1, 3, 20});
  configs.push_back(json);
  return configs;
}

TEST(Model, StepsAndPiecesAgreeWithTheWholeSequence) {
  for (const Json& json : causal_configs_and_lags()) {
    const auto model = random_model(json);
    const size_t width = static_cast<size_t>(model->config().head.output_dim());
    const std::vector<int32_t> tokens = random_tokens(30, 2);
    Batch whole;
    whole.add(tokens);
    const std::vector<float> expected = run(*model, whole);
    const std::vector<double> scale(expected.begin(), expected.end());
    for (const int64_t piece : {1, 7, 29}) {
      const States states(*model, 1, 40);
      std::vector<float> got;
      for (int64_t t = 0; t < 30; t += piece) {
        const int64_t end = std::min<int64_t>(30, t + piece);
        Batch part;
        part.add({tokens.begin() + t, tokens.begin() + end}, t);
        const std::vector<float> rows =
            run(*model, part, Outputs::kAllRows, nullptr, states.view());
        got.insert(got.end(), rows.begin(), rows.end());
      }
      ASSERT_EQ(got.size(), 30 * width);
      EXPECT_LE(largest_difference(got, expected), 16 * kEps * largest(scale))
          << json.dump() << " in pieces of " << piece;
    }
  }
}

TEST(Model, BitsDoNotDependOnBatchMatesThreadsOrGroups) {
  for (const Json& json : causal_configs_and_lags()) {
    const auto model = random_model(json);
    const size_t width = static_cast<size_t>(model->config().head.output_dim());
    Batch batch;
    std::vector<std::vector<float>> alone;
    // 2,400 rows: three groups of the serial path; empty sequences among them.
    for (uint64_t i = 0; i < 120; ++i) {
      const std::vector<int32_t> tokens =
          random_tokens(i % 10 == 3 ? 0 : 1 + static_cast<int64_t>(i * 7 % 40), i);
      batch.add(tokens);
      Batch single;
      single.add(tokens);
      alone.push_back(run(*model, single));
    }
    std::vector<float> expected;
    for (const auto& rows : alone) expected.insert(expected.end(), rows.begin(), rows.end());
    std::vector<float> last(batch.begin.size() * width, NAN);
    for (size_t i = 0; i < alone.size(); ++i) {
      if (!alone[i].empty()) {
        std::copy(alone[i].end() - static_cast<int64_t>(width), alone[i].end(),
                  last.begin() + static_cast<int64_t>(i * width));
      }
    }
    for (const int threads : {1, 2, 5, 200}) {
      ThreadPool pool(threads);
      EXPECT_TRUE(same_bits(run(*model, batch, Outputs::kAllRows, &pool), expected)) << threads;
      EXPECT_TRUE(same_bits(run(*model, batch, Outputs::kLastRowOfEach, &pool), last)) << threads;
    }
  }
}

TEST(Model, BitsOfStepsDoNotDependOnLongerBatchMates) {
  for (const Json& json : causal_configs_and_lags()) {
    const auto model = random_model(json);
    const size_t width = static_cast<size_t>(model->config().head.output_dim());
    const States alone(*model, 1, 40);
    const States together(*model, 3, 40);
    for (int64_t t = 0; t < 6; ++t) {
      const std::vector<int32_t> token = {static_cast<int32_t>(t + 2)};
      Batch single;
      single.add(token, t);
      const std::vector<float> expected =
          run(*model, single, Outputs::kAllRows, nullptr, alone.view());
      Batch batch;
      batch.add(random_tokens(3, static_cast<uint64_t>(t)), 3 * t);
      batch.add(token, t);
      batch.add({}, 0);
      const std::vector<float> rows =
          run(*model, batch, Outputs::kAllRows, nullptr, together.view());
      EXPECT_TRUE(same_bits({rows.end() - static_cast<int64_t>(width), rows.end()}, expected));
    }
  }
}

TEST(Model, StepsTogetherHaveTheBitsOfStepsAlone) {
  constexpr int64_t kSequences = 29;  // more than the layers take at a time
  using kernels::WeightFormat;
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8}) {
    for (const Json& json : causal_configs_and_lags()) {
      const auto model = Model::random(config_of(json), kSeed, {.pack = {.format = format}});
      std::vector<float> expected;
      for (int64_t i = 0; i < kSequences; ++i) {
        const States alone(*model, 1, 40);
        std::vector<float> last;
        for (int64_t t = 0; t < 4; ++t) {
          Batch single;
          single.add(random_tokens(1, static_cast<uint64_t>(100 * t + i)), t);
          last = run(*model, single, Outputs::kAllRows, nullptr, alone.view());
        }
        expected.insert(expected.end(), last.begin(), last.end());
      }
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        const States together(*model, kSequences, 40);
        std::vector<float> last;
        for (int64_t t = 0; t < 4; ++t) {
          Batch batch;
          for (int64_t i = 0; i < kSequences; ++i) {
            batch.add(random_tokens(1, static_cast<uint64_t>(100 * t + i)), t);
          }
          last = run(*model, batch, Outputs::kAllRows, &pool, together.view());
        }
        EXPECT_TRUE(same_bits(last, expected)) << threads << " threads, " << json.dump();
      }
    }
  }
}

TEST(Model, KeepsScratchBounded) {
  const auto model = random_model(small_config());
  Batch few, many;
  for (int i = 0; i < 2000; ++i) {
    const std::vector<int32_t> tokens = random_tokens(30, static_cast<uint64_t>(i));
    if (i < 40) few.add(tokens);
    many.add(tokens);
  }
  Arena small_arena, large_arena;
  model->forward(few.view(), {}, Form::kAuto, Outputs::kNone, nullptr, nullptr, small_arena);
  model->forward(many.view(), {}, Form::kAuto, Outputs::kNone, nullptr, nullptr, large_arena);
  EXPECT_EQ(large_arena.capacity_bytes(), small_arena.capacity_bytes());
}

TEST(Model, AnEmptyBatchIsNothing) {
  const auto model = random_model(small_config());
  EXPECT_TRUE(run(*model, Batch()).empty());
}

TEST(Model, KnowsItsNumbers) {
  const auto model = random_model(small_config());
  int64_t count = 0;
  for (const auto& spec : parameter_table(model->config())) count += element_count(spec.shape);
  EXPECT_EQ(model->parameter_count(), count);
  EXPECT_GE(model->weight_bytes(), count * 4);
  EXPECT_EQ(model->state_specs().size(), 2u);
  EXPECT_EQ(model->fingerprint(), random_model(small_config())->fingerprint());
  EXPECT_NE(model->fingerprint(), Model::random(model->config(), 8, {})->fingerprint());
  Json json = small_config();
  json.set("start_token", 9);
  EXPECT_NE(model->fingerprint(), random_model(json)->fingerprint());
}

class ModelFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/tarn_model_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    folder_ = pattern;
    set_config(small_config());
    write_weights();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void set_config(const Json& json) {
    config_ = config_of(json);
    values_.clear();
    tensors_.clear();
    for (const auto& spec : parameter_table(config_)) {
      values_.emplace_back(static_cast<size_t>(element_count(spec.shape)));
      initialise(spec, kSeed, values_.back().data());
      tensors_.push_back({spec.name, spec.shape, values_.back().data(), DType::kF32});
    }
    write_config(json.dump(2));
  }
  void write_config(const std::string& text) {
    ASSERT_TRUE(write_file_atomic(folder_ + "/config.json", text).ok());
  }
  void write_weights() {
    ASSERT_TRUE(write_safetensors(folder_ + "/model.safetensors", tensors_, {}).ok());
  }
  /// The load error without the folder's name.
  std::string error() const {
    const auto model = Model::load(folder_);
    if (model.ok()) return "";
    const std::string text = model.error().to_string();
    EXPECT_EQ(text.rfind(folder_ + "/", 0), 0u) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text.substr(std::min(text.size(), folder_.size() + 1));
  }

  std::string folder_;
  ModelConfig config_;
  std::vector<std::vector<float>> values_;
  std::vector<TensorToWrite> tensors_;
};

TEST_F(ModelFolderTest, AgreesWithTheDefinitionInDoublePrecision) {
  const std::vector<int32_t> tokens = random_tokens(37, 1);
  Batch batch;
  batch.add(tokens);
  for (const char* placement : {"post", "pre"}) {
    for (const char* norm : {"layer_norm", "rms_norm"}) {
      for (const char* position : {"none", "learned", "sinusoidal"}) {
        for (const bool final_norm : {true, false}) {
          Json json = small_config();
          json.set("position", Json::Object{{"kind", position}});
          if (final_norm) json.set("embedding_lags", Json::Array{1, 6, 50});
          if (std::string(position) == "none") {
            Json layer = (*json.find("layers")->as_array())[0];
            layer.set("repeat", 1);
            Json without = layer;
            without.set("mlp", Json());
            json.set("layers", Json::Array{layer, without});
            json.set("embedding_norm", true);
          }
          json.set("norm",
                   Json::Object{{"kind", norm}, {"placement", placement}, {"final", final_norm}});
          if (!final_norm) {
            json.set("head", json_of(R"({"kind":"discretised_logistic_mixture","components":3,
                                         "levels":11})"));
          }
          // Norms and biases start at 1 and 0, which would hide one taken for another.
          set_config(json);
          Philox rng{kSeed, 0, 0};
          for (std::vector<float>& values : values_) {
            for (float& value : values) value += 0.2f * rng.next_normal();
          }
          write_weights();
          const auto model = Model::load(folder_);
          ASSERT_TRUE(model.ok()) << model.error().to_string();
          const std::vector<double> expected = ReferenceDecoder(config_, values_).run(tokens);
          const double error = largest_difference(run(**model, batch), expected);
          // Two layers of about ten rounding steps each; measured: at most 6.
          EXPECT_LE(error, 32 * kEps * largest(expected))
              << placement << ' ' << norm << ' ' << position;
        }
      }
    }
  }
}

TEST_F(ModelFolderTest, LoadsWhatWasWritten) {
  std::reverse(tensors_.begin(), tensors_.end());  // the order in the file does not matter
  write_weights();
  const auto model = Model::load(folder_);
  ASSERT_TRUE(model.ok()) << model.error().to_string();
  const auto expected = Model::random(config_, kSeed, {});
  EXPECT_EQ((*model)->fingerprint(), expected->fingerprint());
  Batch batch;
  batch.add(random_tokens(20, 3));
  EXPECT_TRUE(same_bits(run(**model, batch), run(*expected, batch)));
}

TEST_F(ModelFolderTest, LoadsBf16AsTheRoundedValues) {
  for (TensorToWrite& tensor : tensors_) tensor.dtype = DType::kBF16;
  write_weights();
  const auto rounded = Model::load(folder_);
  ASSERT_TRUE(rounded.ok());
  for (std::vector<float>& values : values_) {
    for (float& value : values) value = bf16_to_f32(f32_to_bf16(value));
  }
  for (TensorToWrite& tensor : tensors_) tensor.dtype = DType::kF32;
  write_weights();
  EXPECT_EQ((*rounded)->fingerprint(), (*Model::load(folder_))->fingerprint());
}

TEST_F(ModelFolderTest, EachFaultIsOneSentence) {
  write_config("{");
  EXPECT_EQ(error(), "config.json: invalid JSON at line 1, column 2: it ends too early");
  Json json = small_config();
  json.set("modeldim", 3);
  write_config(json.dump());
  EXPECT_EQ(error().rfind("config.json: unknown key \"modeldim\"; known keys: format, ", 0), 0u);
  write_config("");
  EXPECT_EQ(error(), "config.json: invalid JSON at line 1, column 1: it ends too early");
  write_config(small_config().dump());

  const std::vector<TensorToWrite> good = tensors_;
  tensors_.pop_back();
  write_weights();
  EXPECT_EQ(error(), "model.safetensors: tensor \"head.bias\" is missing");
  tensors_ = good;
  tensors_[2].name = "layers.0.norm1.scale";
  write_weights();
  EXPECT_EQ(error(), "model.safetensors: tensor \"layers.0.norm1.weight\" is missing");
  tensors_ = good;
  tensors_.push_back({"extra", {12}, values_[2].data(), DType::kF32});
  write_weights();
  EXPECT_EQ(error(), "model.safetensors: tensor \"extra\" is not part of this model");
  tensors_ = good;
  std::swap(tensors_[0].shape[0], tensors_[0].shape[1]);
  write_weights();
  EXPECT_EQ(error(),
            "model.safetensors: tensor \"embedding.token.weight\" has shape [12, 11], its config "
            "wants [11, 12]");
  tensors_ = good;
  values_[0][5] = NAN;
  write_weights();
  EXPECT_EQ(error(),
            "model.safetensors: tensor \"embedding.token.weight\" has the value nan at index 5; "
            "all must be finite");
  values_[0][5] = 0;
  write_weights();
  EXPECT_EQ(error(), "");

  std::filesystem::resize_file(folder_ + "/model.safetensors", 5);
  EXPECT_EQ(error(), "model.safetensors: has 5 bytes, too few for a safetensors file");
  std::filesystem::remove(folder_ + "/model.safetensors");
  EXPECT_EQ(error(), "model.safetensors: no such file");
  std::filesystem::remove(folder_ + "/config.json");
  EXPECT_EQ(error(), "config.json: no such file");
  EXPECT_EQ(Model::load(folder_ + "/nothing").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace tarn::model
