#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "mixers/common/torch_mixer.h"

namespace tarn::mixers {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

at::Tensor call_registered(const std::string& mechanism, const at::Tensor& inputs,
                           const std::string& config, int64_t model_dim) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(("tarn::chunk_" + mechanism).c_str(), "")
      .typed<at::Tensor(const at::Tensor&, at::TensorList, const std::string&, int64_t)>()
      .call(inputs, {}, config, model_dim);
}

/// [B, T, columns] of q, k, v in double -> out [B, T, H·V] by masked products, with autograd.
at::Tensor plain_attention(const at::Tensor& inputs, int64_t heads, int64_t kv_heads,
                           int64_t key_dim, int64_t value_dim, bool softmax) {
  const int64_t batch = inputs.size(0), tokens = inputs.size(1);
  const auto split = [&](int64_t first, int64_t count, int64_t dim) {
    return inputs.narrow(2, first, count * dim)
        .reshape({batch, tokens, count, dim})
        .transpose(1, 2);
  };
  at::Tensor q = split(0, heads, key_dim);
  at::Tensor k = split(heads * key_dim, kv_heads, key_dim);
  at::Tensor v = split((heads + kv_heads) * key_dim, kv_heads, value_dim);
  k = k.repeat_interleave(heads / kv_heads, 1);
  v = v.repeat_interleave(heads / kv_heads, 1);
  const at::Tensor mask = at::ones({tokens, tokens}, inputs.options()).tril();
  at::Tensor weights;
  if (softmax) {
    const at::Tensor scores =
        at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(key_dim));
    weights = at::softmax(scores.masked_fill(mask == 0, -HUGE_VAL), 3);
  } else {
    weights = at::matmul(at::elu(q) + 1, (at::elu(k) + 1).transpose(2, 3)) * mask;
    weights = weights / (weights.sum(3, true) + 1e-6);
  }
  return at::matmul(weights, v).transpose(1, 2).reshape({batch, tokens, heads * value_dim});
}

struct Case {
  const char* mechanism;
  const char* config;
  int64_t heads, kv_heads, key_dim, value_dim;
  bool softmax;
};

class OperatorTest : public testing::TestWithParam<Case> {};

TEST_P(OperatorTest, ForwardAndGradientMatchPlainTorchInDouble) {
  const Case& c = GetParam();
  const int64_t columns = (c.heads + c.kv_heads) * c.key_dim + c.kv_heads * c.value_dim;
  at::manual_seed(1);
  for (const int64_t tokens : {1, 7, 65, 131}) {
    const at::Tensor base = at::randn({3, tokens, columns}).set_requires_grad(true);
    const at::Tensor out = call_registered(c.mechanism, base, c.config, 24);
    const at::Tensor wanted_base = base.detach().to(at::kDouble).set_requires_grad(true);
    const at::Tensor wanted =
        plain_attention(wanted_base, c.heads, c.kv_heads, c.key_dim, c.value_dim, c.softmax);
    // Outputs are means of values: rounding grows with the length of the sums at most.
    const double scale = 32.0 * kEps * std::sqrt(static_cast<double>(tokens));
    const at::Tensor error = (out.to(at::kDouble) - wanted).abs().max();
    EXPECT_LE(error.item<double>(), scale * wanted.abs().max().item<double>());

    // A gradient that is not contiguous, as from a transposed consumer.
    const at::Tensor dout = at::randn({tokens, 3, c.heads * c.value_dim}).transpose(0, 1);
    out.backward(dout);
    wanted.backward(dout.to(at::kDouble));
    const at::Tensor difference = (base.grad().to(at::kDouble) - wanted_base.grad()).abs().max();
    EXPECT_LE(difference.item<double>(),
              4.0 * scale * wanted_base.grad().abs().max().item<double>())
        << c.mechanism << " tokens " << tokens;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Mechanisms, OperatorTest,
    testing::Values(Case{"linear_attention", R"({"num_heads": 2, "key_dim": 9, "value_dim": 7})", 2,
                         2, 9, 7, false},
                    Case{"linear_attention", R"({"num_heads": 1, "key_dim": 32})", 1, 1, 32, 32,
                         false},
                    Case{"softmax_attention",
                         R"({"num_heads": 4, "num_kv_heads": 2, "key_dim": 6, "value_dim": 5})", 4,
                         2, 6, 5, true}));

TEST(Operator, ComputesInF32WhateverTheInputs) {
  const at::Tensor inputs = at::randn({2, 9, 24}).to(at::kBFloat16);
  const at::Tensor out =
      call_registered("linear_attention", inputs, R"({"num_heads": 2, "key_dim": 4})", 8);
  EXPECT_EQ(out.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(out, call_registered("linear_attention", inputs.to(at::kFloat),
                                             R"({"num_heads": 2, "key_dim": 4})", 8)));
}

TEST(Operator, RefusesWrongShapesAndConfigs) {
  const at::Tensor inputs = at::randn({2, 9, 23});
  EXPECT_THROW(call_registered("linear_attention", inputs, R"({"num_heads": 2, "key_dim": 4})", 8),
               c10::Error);
  EXPECT_THROW(call_registered("linear_attention", inputs, R"({"num_heads": 0, "key_dim": 4})", 8),
               c10::Error);
  EXPECT_THROW(call_registered("linear_attention", inputs, "{", 8), c10::Error);
}

TEST(Operator, EveryMechanismWithAnOperatorIsRegistered) {
  for (const MixerDef* mixer : all_mixers()) {
    const std::string name = std::string("tarn::chunk_") + mixer->name;
    EXPECT_EQ(c10::Dispatcher::singleton().findSchema({name, ""}).has_value(), has_operator(*mixer))
        << name;
  }
}

}  // namespace
}  // namespace tarn::mixers
