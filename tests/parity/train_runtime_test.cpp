#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "base/rng.h"
#include "model/model.h"
#include "runtime/state.h"
#include "train/decoder.h"
#include "train/torch_threads.h"
#include "unit/train/test_models.h"

namespace tarn::train {
namespace {

constexpr int64_t kLength = 37;
constexpr uint64_t kSeed = 11;
const std::string kCategorical = R"({"kind": "categorical", "classes": 13})";
const std::string kMixture =
    R"({"kind": "discretised_logistic_mixture", "components": 4, "levels": 13})";

Batch random_batch(int64_t count) {
  Batch batch;
  batch.count = count;
  batch.length = kLength;
  Philox random{9, 9};
  for (int64_t i = 0; i < count * kLength; ++i) {
    batch.inputs.push_back(static_cast<int32_t>(random.next_below(13)));
    batch.targets.push_back(0);
  }
  return batch;
}

/// Rounding of two different orders of the same sums through a whole model: every layer adds a few
/// times eps·√(terms) relative to values that norms keep at order one.
double tolerance(const model::ModelConfig& config, double largest) {
  const double eps = std::numeric_limits<float>::epsilon();
  const auto layers = static_cast<double>(config.layers.size());
  return 64.0 * layers * eps * std::sqrt(static_cast<double>(kLength)) * std::max(1.0, largest);
}

class ParityTest : public testing::TestWithParam<
                       std::tuple<std::string, std::string, std::string, std::string>> {
 protected:
  ParityTest()
      : config_(parse_model(small_model_text(std::get<0>(GetParam()), std::get<1>(GetParam()),
                                             std::get<2>(GetParam()), std::get<3>(GetParam())))),
        pool_(torch_thread_pool(1)),
        parameters_(create_parameters(config_, kSeed)),
        model_(model::Model::random(config_, kSeed, {})) {}

  std::vector<float> torch_outputs(const Batch& batch, DType precision = DType::kF32) {
    const c10::NoGradGuard no_gradients;
    const Decoder decoder(config_, parameters_, precision, pool_.get());
    const at::Tensor outputs = decoder.forward(batch).contiguous();
    const float* data = outputs.const_data_ptr<float>();
    return {data, data + outputs.numel()};
  }

  /// Outputs of the runtime; sequences in pieces of `piece` tokens with carried state, or whole
  /// without state when `piece` is 0.
  std::vector<float> runtime_outputs(const Batch& batch, int64_t piece, mixers::Form form) {
    const int64_t width = config_.head.output_dim();
    std::vector<float> outputs(static_cast<size_t>(batch.count * kLength * width), NAN);
    Arena arena;
    for (int64_t sequence = 0; sequence < batch.count; ++sequence) {
      runtime::SequenceState state(model_);
      EXPECT_TRUE(state.reserve(kLength).ok());
      runtime::SequenceState* const states[] = {&state};
      runtime::StateBatch bound(*model_);
      for (int64_t t = 0; t<kLength; t += piece> 0 ? piece : kLength) {
        const int64_t begin = 0;
        const int64_t length = piece > 0 ? std::min(piece, kLength - t) : kLength;
        model::TokenBatch tokens;
        tokens.sequences = {1, &begin, &length};
        tokens.positions = piece > 0 ? &t : nullptr;
        tokens.tokens = batch.inputs.data() + sequence * kLength + t;
        bound.bind(states);
        model_->forward(tokens, piece > 0 ? bound.layers() : model::LayerStates{}, form,
                        model::Outputs::kAllRows, outputs.data() + (sequence * kLength + t) * width,
                        pool_.get(), arena);
        state.set_position(t + length);
      }
    }
    return outputs;
  }

  void expect_close(const std::vector<float>& got, const std::vector<float>& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    double largest = 0.0, error = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
      const double difference = std::abs(static_cast<double>(got[i]) - wanted[i]);
      ASSERT_FALSE(std::isnan(difference)) << "value " << i;
      error = std::max(error, difference);
    }
    EXPECT_LE(error, tolerance(config_, largest));
    EXPECT_GT(largest, 0.1);  // the comparison is about something
  }

  model::ModelConfig config_;
  std::unique_ptr<ThreadPool> pool_;
  ParameterBuffers parameters_;
  std::shared_ptr<const model::Model> model_;
};

TEST_P(ParityTest, WholeSequences) {
  const Batch batch = random_batch(3);
  expect_close(runtime_outputs(batch, 0, mixers::Form::kParallel), torch_outputs(batch));
}

TEST_P(ParityTest, PrefillAndChunksWithState) {
  const Batch batch = random_batch(2);
  const std::vector<float> wanted = torch_outputs(batch);
  expect_close(runtime_outputs(batch, kLength, mixers::Form::kChunk), wanted);
  expect_close(runtime_outputs(batch, 10, mixers::Form::kChunk), wanted);
}

TEST_P(ParityTest, OneTokenAtATime) {
  const Batch batch = random_batch(2);
  expect_close(runtime_outputs(batch, 1, mixers::Form::kStep), torch_outputs(batch));
}

TEST_P(ParityTest, Bf16TrainingIsTheSameFunctionAtBf16Rounding) {
  const Batch batch = random_batch(2);
  const std::vector<float> wanted = torch_outputs(batch);
  const std::vector<float> got = torch_outputs(batch, DType::kBF16);
  double error = 0.0, largest = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::abs(static_cast<double>(got[i]) - wanted[i]);
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
  }
  error /= static_cast<double>(got.size());
  const double bf16_eps = 0x1p-8;
  EXPECT_LE(error, 4.0 * bf16_eps * largest);
  EXPECT_GT(error, 0.0);  // it does round
}

INSTANTIATE_TEST_SUITE_P(Models, ParityTest,
                         testing::Combine(testing::Values(kSmallLinear, kSmallSoftmax),
                                          testing::Values("pre", "post"),
                                          testing::Values(kCategorical, kMixture),
                                          testing::Values("learned", "sinusoidal", "none")));

TEST(Parity, ParametersStartFromTheRuntimesBits) {
  // The fingerprint of a model covers its weights, but not those of training; so compare what the
  // table says with what the buffers hold, entry by entry, through the gaps too.
  const model::ModelConfig config =
      parse_model(small_model_text(kSmallLinear, "pre", kCategorical, "learned"));
  const ParameterBuffers parameters = create_parameters(config, kSeed);
  EXPECT_EQ(parameters.parameter_count, model::Model::random(config, kSeed, {})->parameter_count());
  int64_t end = 0;
  for (const auto& entry : parameters.entries) {
    for (int64_t i = end; i < entry.offset; ++i) EXPECT_EQ(parameters.values[i], 0.0f);
    EXPECT_EQ(entry.offset % 16, 0);
    end = entry.offset + entry.size;
  }
}

}  // namespace
}  // namespace tarn::train
