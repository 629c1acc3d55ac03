#include "train/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "train/torch_threads.h"
#include "unit/train/test_models.h"

namespace tarn::train {
namespace {

Batch random_batch() {
  Batch batch;
  batch.count = 3;
  batch.length = 29;
  Philox random{4, 4};
  for (int64_t i = 0; i < batch.count * batch.length; ++i) {
    batch.inputs.push_back(static_cast<int32_t>(random.next_below(13)));
    batch.targets.push_back(static_cast<int32_t>(random.next_below(13)));
  }
  batch.counted = batch.count * batch.length;
  return batch;
}

struct Variant {
  std::string mixer, placement, head;
  std::string activation = "gelu", norm = "layer_norm", position = "learned";
};

model::ModelConfig config_of(const Variant& variant) {
  return parse_model(small_model_text(variant.mixer, variant.placement, variant.head,
                                      variant.position, variant.activation, variant.norm));
}

/// Compares the gradient of every parameter with finite differences.
void expect_gradients(const Decoder& decoder, ParameterBuffers& parameters,
                      const Batch& batch = random_batch()) {
  const double nats = decoder.forward_backward(batch, 1.0, 0.0);
  EXPECT_EQ(nats, decoder.evaluate(batch).nats);
  Philox random{5, 5};
  for (const ParameterBuffers::Entry& entry : parameters.entries) {
    // Along a random direction of length 1 in this parameter.
    std::vector<double> direction(static_cast<size_t>(entry.size));
    double length = 0.0;
    for (double& value : direction) {
      value = random.next_normal();
      length += value * value;
    }
    float* values = parameters.values.data() + entry.offset;
    const std::vector<float> before(values, values + entry.size);
    double slope = 0.0;
    for (int64_t i = 0; i < entry.size; ++i) {
      direction[static_cast<size_t>(i)] /= std::sqrt(length);
      slope += direction[static_cast<size_t>(i)] * parameters.gradients[entry.offset + i];
    }
    const auto loss_at = [&](double step) {
      for (int64_t i = 0; i < entry.size; ++i) {
        const auto at = static_cast<size_t>(i);
        values[i] = static_cast<float>(before[at] + step * direction[at]);
      }
      const double loss = decoder.evaluate(batch).nats;
      std::copy(before.begin(), before.end(), values);
      return loss;
    };
    const double step = 0x1p-7;
    const double numeric = (loss_at(step) - loss_at(-step)) / (2.0 * step);
    const double halved = (loss_at(step / 2) - loss_at(-step / 2)) / step;
    // The loss is a sum of `counted` terms, each with f32 rounding that grows through the layers;
    // truncation falls four-fold when the step is halved, which bounds what is left of it.
    const double rounding = 64.0 * std::numeric_limits<float>::epsilon() *
                            std::sqrt(static_cast<double>(batch.counted)) / step;
    EXPECT_NEAR(slope, halved, std::abs(numeric - halved) + rounding + 1e-3 * std::abs(slope))
        << entry.spec.name;
  }
}

class DecoderTest : public testing::TestWithParam<Variant> {
 protected:
  DecoderTest()
      : config_(config_of(GetParam())),
        pool_(torch_thread_pool(1)),
        parameters_(create_parameters(config_, 21)),
        decoder_(config_, parameters_, DType::kF32, pool_.get()) {}

  model::ModelConfig config_;
  std::unique_ptr<ThreadPool> pool_;
  ParameterBuffers parameters_;
  Decoder decoder_;
};

TEST_P(DecoderTest, GradientOfEveryParameterMatchesFiniteDifferences) {
  expect_gradients(decoder_, parameters_);
}

/// Layers that hand rows on, layers without an MLP or without an operator, a norm of the embedding.
TEST(DecoderOfBlocksInTwoLayers, GradientOfEveryParameterMatchesFiniteDifferences) {
  const std::string mixer =
      R"({"name": "rwkv7", "num_heads": 2, "key_dim": 6, "decay_rank": 3, "learning_rate_rank": 2,
          "value_rank": 4, "gate_rank": 5, "value_residual": ")";
  const std::string channels = R"({"name": "channel_mix", "hidden_dim": 20})";
  std::string layers;
  for (const std::string& one :
       {mixer + R"(source"})", channels, mixer + R"(mixed"})", mixer + R"(mixed"})", channels}) {
    layers += (layers.empty() ? "" : ", ") + (R"({"mixer": )" + one + R"(, "mlp": null})");
  }
  const auto config = parse_model(
      R"({"format": "tarn-model", "format_version": 1, "modality": "tokens", "vocabulary": 13,
          "start_token": 12, "model_dim": 24, "max_tokens": 40, "position": {"kind": "none"},
          "embedding_scale": 0.5, "embedding_norm": true,
          "norm": {"kind": "layer_norm", "placement": "pre"}, "layers": [)" +
      layers + R"(], "head": {"kind": "categorical", "classes": 13}})");
  const auto pool = torch_thread_pool(1);
  ParameterBuffers parameters = create_parameters(config, 21);
  // Output maps start at zero, which would hide everything before them.
  Philox random{6, 6};
  for (const ParameterBuffers::Entry& entry : parameters.entries) {
    float* values = parameters.values.data() + entry.offset;
    for (int64_t i = 0; i < entry.size; ++i) values[i] += 0.2f * random.next_normal();
  }
  expect_gradients(Decoder(config, parameters, DType::kF32, pool.get()), parameters);
}

/// Packed sequences of frames, layers that see both sides, the CTC loss.
TEST(DecoderOverFrames, GradientOfEveryParameterMatchesFiniteDifferences) {
  for (const std::string position : {"learned", "sinusoidal"}) {
    const auto config = parse_model(small_frames_text(position));
    const auto pool = torch_thread_pool(1);
    ParameterBuffers parameters = create_parameters(config, 21);
    expect_gradients(Decoder(config, parameters, DType::kF32, pool.get()), parameters,
                     random_frames(config, {9, 25, 6, 14}));
  }
}

TEST_P(DecoderTest, GradientsAddUpAndOutputLimitBoundsThem) {
  const Batch batch = random_batch();
  decoder_.forward_backward(batch, 1.0, 0.0);
  const std::vector<float> once(parameters_.gradients.span().begin(),
                                parameters_.gradients.span().end());
  decoder_.forward_backward(batch, 1.0, 0.0);
  for (const ParameterBuffers::Entry& entry : parameters_.entries) {
    // The second pass adds up to as many terms as there are rows to what the first one left.
    float largest = 0.0f;
    for (int64_t i = 0; i < entry.size; ++i) {
      largest = std::max(largest, std::abs(once[static_cast<size_t>(entry.offset + i)]));
    }
    const float tolerance =
        std::numeric_limits<float>::epsilon() * static_cast<float>(batch.counted) * largest;
    for (int64_t i = entry.offset; i < entry.offset + entry.size; ++i) {
      ASSERT_NEAR(parameters_.gradients[i], 2.0f * once[static_cast<size_t>(i)], tolerance);
    }
  }
  std::ranges::fill(parameters_.gradients.span(), 0.0f);
  const double limit = 1e-3;
  decoder_.forward_backward(batch, 0.5, limit);
  const ParameterBuffers::Entry& bias = parameters_.entries.back();
  ASSERT_EQ(bias.spec.name, "head.bias");
  const double bound = 0.5 * limit * static_cast<double>(batch.counted);
  double largest = 0.0;
  for (int64_t i = 0; i < bias.size; ++i) {
    largest =
        std::max(largest, std::abs(static_cast<double>(parameters_.gradients[bias.offset + i])));
  }
  EXPECT_LE(largest, bound * (1.0 + 1e-5));
  EXPECT_GT(largest, 0.0);
}

const char* const kCategorical = R"({"kind": "categorical", "classes": 13})";
const char* const kMixture =
    R"({"kind": "discretised_logistic_mixture", "components": 4, "levels": 13})";

TEST_P(DecoderTest, Bf16GradientsAreThoseOfF32AtBf16Rounding) {
  const Batch batch = random_batch();
  decoder_.forward_backward(batch, 1.0, 0.0);
  const Buffer<float> exact = parameters_.gradients.clone();
  std::ranges::fill(parameters_.gradients.span(), 0.0f);
  const Decoder reduced(config_, parameters_, DType::kBF16, pool_.get());
  reduced.forward_backward(batch, 1.0, 0.0);
  // Every product rounds both operands by at most half a bf16 eps each, relative; forward and back a
  // signal passes two norms' worth of such products per block, and rounding adds up like noise.
  const double bf16_eps = 0x1p-8;
  const double tolerance = 8.0 * bf16_eps * std::sqrt(static_cast<double>(config_.layers.size()));
  for (const ParameterBuffers::Entry& entry : parameters_.entries) {
    double difference = 0.0, size = 0.0;
    for (int64_t i = entry.offset; i < entry.offset + entry.size; ++i) {
      const double d = static_cast<double>(parameters_.gradients[i]) - exact[i];
      difference += d * d;
      size += static_cast<double>(exact[i]) * exact[i];
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(size)) << entry.spec.name;
    if (entry.spec.name.ends_with("mlp.up.weight")) {
      EXPECT_GT(difference, 0.0);  // it does round
    }
  }
}

TEST_P(DecoderTest, BitsDoNotDependOnThreads) {
  const Batch batch = random_batch();
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    std::vector<std::vector<float>> gradients;
    for (const int threads : {1, 3}) {
      const auto pool = torch_thread_pool(threads);
      std::ranges::fill(parameters_.gradients.span(), 0.0f);
      Decoder(config_, parameters_, precision, pool.get()).forward_backward(batch, 1.0, 0.0);
      gradients.emplace_back(parameters_.gradients.span().begin(),
                             parameters_.gradients.span().end());
    }
    EXPECT_EQ(gradients[0], gradients[1]) << dtype_name(precision);
  }
  torch_thread_pool(1);  // as the other tests have it
}

INSTANTIATE_TEST_SUITE_P(
    Models, DecoderTest,
    testing::Values(Variant{kSmallLinear, "pre", kCategorical},
                    Variant{kSmallLinear, "post", kMixture},
                    Variant{kSmallLinear, "post", kCategorical, "gelu_tanh", "rms_norm", "none"},
                    Variant{kSmallLinear, "pre", kMixture, "silu", "rms_norm", "sinusoidal"},
                    Variant{kSmallSoftmax, "pre", kMixture, "silu"},
                    Variant{kSmallSoftmax, "post", kCategorical}));

}  // namespace
}  // namespace tarn::train
