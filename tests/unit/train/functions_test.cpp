#include "train/functions.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "train/torch_threads.h"

namespace tarn::train {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

/// A leaf of random values whose gradient exists, and the same in double for plain torch.
struct Leaf {
  Leaf(at::IntArrayRef shape, double scale)
      : ours((at::randn(shape) * scale).set_requires_grad(true)),
        plain(ours.detach().to(at::kDouble).set_requires_grad(true)) {
    ours.mutable_grad() = at::zeros(shape);
  }
  at::Tensor ours, plain;
};

/// Largest difference relative to the largest wanted value.
void expect_close(const at::Tensor& got, const at::Tensor& wanted, double tolerance,
                  const char* what) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  const double largest = wanted.abs().max().item<double>();
  const double error = (got.to(at::kDouble) - wanted).abs().max().item<double>();
  EXPECT_LE(error, tolerance * largest) << what;
  EXPECT_GT(largest, 0.0) << what;
}

at::Tensor activate(kernels::Activation activation, const at::Tensor& x) {
  switch (activation) {
    case kernels::Activation::kNone: return x;
    case kernels::Activation::kRelu: return at::relu(x);
    case kernels::Activation::kGelu: return at::gelu(x, "none");
    case kernels::Activation::kGeluTanh: return at::gelu(x, "tanh");
    case kernels::Activation::kSilu: return at::silu(x);
  }
  return x;
}

class MlpTest : public testing::TestWithParam<std::pair<kernels::Activation, bool>> {};

TEST_P(MlpTest, MatchesPlainTorchInDouble) {
  const auto [activation, own_residual] = GetParam();
  at::manual_seed(1);
  for (const int threads : {1, 3}) {
    const auto pool = torch_thread_pool(threads);
    Leaf x({3, 67, 24}, 1.0), other({3, 67, 24}, 1.0);
    Leaf up({40, 24}, 0.3), up_bias({40}, 0.3), down({24, 40}, 0.3), down_bias({24}, 0.3);
    const Leaf& residual = own_residual ? other : x;
    const at::Tensor y = mlp(x.ours, residual.ours, linear_map(up.ours, up_bias.ours), activation,
                             linear_map(down.ours, down_bias.ours), {pool.get(), nullptr});
    const at::Tensor wanted =
        residual.plain +
        at::linear(activate(activation, at::linear(x.plain, up.plain, up_bias.plain)), down.plain,
                   down_bias.plain);
    // Sums of 24 and 40 terms; the gradients of parameters sum 201 rows.
    expect_close(y, wanted, 16.0 * kEps, "y");
    const at::Tensor dy = at::randn({67, 3, 24}).transpose(0, 1);
    y.backward(dy);
    wanted.backward(dy.to(at::kDouble));
    expect_close(x.ours.grad(), x.plain.grad(), 32.0 * kEps, "x");
    if (own_residual) expect_close(other.ours.grad(), other.plain.grad(), kEps, "residual");
    expect_close(up.ours.grad(), up.plain.grad(), 64.0 * kEps, "up");
    expect_close(up_bias.ours.grad(), up_bias.plain.grad(), 64.0 * kEps, "up bias");
    expect_close(down.ours.grad(), down.plain.grad(), 64.0 * kEps, "down");
    expect_close(down_bias.ours.grad(), down_bias.plain.grad(), 64.0 * kEps, "down bias");
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, MlpTest,
                         testing::Values(std::pair{kernels::Activation::kRelu, false},
                                         std::pair{kernels::Activation::kRelu, true},
                                         std::pair{kernels::Activation::kGelu, false},
                                         std::pair{kernels::Activation::kGeluTanh, true},
                                         std::pair{kernels::Activation::kSilu, false},
                                         std::pair{kernels::Activation::kNone, true}));

TEST(Linear, MatchesPlainTorchInDouble) {
  at::manual_seed(2);
  Leaf x({2, 19, 33}, 1.0), weight({30, 33}, 0.3), bias({30}, 0.3);
  const at::Tensor y = linear(x.ours, linear_map(weight.ours, bias.ours), {});
  const at::Tensor wanted = at::linear(x.plain, weight.plain, bias.plain).view({38, 30});
  expect_close(y, wanted, 16.0 * kEps, "y");
  const at::Tensor dy = at::randn({38, 30});
  y.backward(dy);
  wanted.backward(dy.to(at::kDouble));
  expect_close(x.ours.grad(), x.plain.grad(), 16.0 * kEps, "x");
  expect_close(weight.ours.grad(), weight.plain.grad(), 32.0 * kEps, "weight");
  expect_close(bias.ours.grad(), bias.plain.grad(), 32.0 * kEps, "bias");
}

TEST(Embedding, SumsTablesAndScattersGradients) {
  at::manual_seed(3);
  const std::vector<int32_t> inputs = {4, 1, 1, 0, 3, 4, 2, 2, 2, 1};
  for (const int threads : {1, 3}) {
    const auto pool = torch_thread_pool(threads);
    Leaf tokens({5, 7}, 1.0), lagged({5, 7}, 1.0), position({6, 7}, 1.0);
    EmbeddingArgs args;
    args.count = 2;
    args.length = 5;
    args.inputs = inputs.data();
    args.start_token = 4;
    args.lags = {2};
    args.tables = {tokens.ours, lagged.ours};
    args.position = position.ours;
    const at::Tensor x = embedding(args, {pool.get(), nullptr});
    const at::Tensor now = at::tensor(inputs).view({2, 5});
    const at::Tensor earlier = at::tensor(std::vector<int32_t>{4, 4, 4, 1, 1, 4, 4, 4, 2, 2});
    const at::Tensor wanted = at::embedding(tokens.plain, now) + position.plain.narrow(0, 0, 5) +
                              at::embedding(lagged.plain, earlier.view({2, 5}));
    expect_close(x, wanted, 2.0 * kEps, "x");
    const at::Tensor dx = at::randn({2, 5, 7});
    x.backward(dx);
    wanted.backward(dx.to(at::kDouble));
    expect_close(tokens.ours.grad(), tokens.plain.grad(), 8.0 * kEps, "tokens");
    expect_close(lagged.ours.grad(), lagged.plain.grad(), 8.0 * kEps, "lagged");
    expect_close(position.ours.grad(), position.plain.grad(), 4.0 * kEps, "position");
  }
}

TEST(Norm, MatchesPlainTorchInDouble) {
  at::manual_seed(4);
  for (const bool rms : {false, true}) {
    Leaf x({2, 300, 33}, 2.0), weight({33}, 1.0), bias({33}, 1.0);
    const at::Tensor y = norm(x.ours, weight.ours, rms ? at::Tensor() : bias.ours, 1e-5f, {});
    const at::Tensor wanted = rms ? at::rms_norm(x.plain, {33}, weight.plain, 1e-5)
                                  : at::layer_norm(x.plain, {33}, weight.plain, bias.plain, 1e-5);
    // eps is f32 here and double there: 1e-5 differs by half an f32 eps of itself.
    expect_close(y, wanted, 8.0 * kEps, "y");
    const at::Tensor dy = at::randn({2, 300, 33});
    y.backward(dy);
    wanted.backward(dy.to(at::kDouble));
    expect_close(x.ours.grad(), x.plain.grad(), 16.0 * kEps, "x");
    expect_close(weight.ours.grad(), weight.plain.grad(), 64.0 * kEps, "weight");
    if (!rms) expect_close(bias.ours.grad(), bias.plain.grad(), 64.0 * kEps, "bias");
  }
}

}  // namespace
}  // namespace tarn::train
