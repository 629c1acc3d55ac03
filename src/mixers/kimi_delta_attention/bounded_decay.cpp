#include <cmath>

#include "mixers/common/stage_math.h"
#include "mixers/kimi_delta_attention/kimi_delta_attention.h"

namespace tarn::mixers::kimi_delta_attention {
namespace {

struct Options final : StageOptions {
  double lower_bound = 0.0;
};

double bound_of(const Stage& stage) {
  return static_cast<const Options&>(*stage.options).lower_bound;
}

template <class T>
void forward(const StageArgs<T>& args) {
  const Slice& out = args.stage->out;
  const T bound = static_cast<T>(bound_of(*args.stage));
  for (int64_t h = 0; h < out.heads; ++h) {
    const T rate = std::exp(args.params[1][h]);
    const T* bias = args.params[0] + h * out.dim;
    for (int64_t row = args.first; row < args.end; ++row) {
      const T* x = args.inputs[0].at(row, h);
      T* g = args.out.at(row, h);
      for (int64_t c = 0; c < out.dim; ++c) g[c] = bound * sigmoid(rate * (x[c] + bias[c]));
    }
  }
}

void forward_f32(const StageArgs<float>& args) noexcept { forward(args); }

/// With s = σ(u), u = rate·(x + bias): dg/du = bound·s·(1 − s).
void backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& call = args.forward;
  const Slice& out = call.stage->out;
  const auto bound = static_cast<float>(bound_of(*call.stage));
  for (int64_t h = 0; h < out.heads; ++h) {
    const float rate = std::exp(call.params[1][h]);
    const float* bias = call.params[0] + h * out.dim;
    float* dbias = args.dparams[0] + h * out.dim;
    float dlog = 0.0f;
    for (int64_t row = call.first; row < call.end; ++row) {
      const float* x = call.inputs[0].at(row, h);
      const float* dg = args.dout.at(row, h);
      float* dx = args.dinputs[0].at(row, h);
      for (int64_t c = 0; c < out.dim; ++c) {
        const float u = rate * (x[c] + bias[c]);
        const float du = dg[c] * bound * sigmoid(u) * sigmoid(-u);
        dx[c] = du * rate;
        dbias[c] += dx[c];
        dlog += du * u;
      }
    }
    args.dparams[1][h] += dlog;
  }
}

constexpr StageDef kBoundedDecay{"bounded_decay", true, forward_f32, forward<double>, backward};

}  // namespace

Slice bounded_decay(LayerBuilder& builder, const Slice& x, double lower_bound) {
  auto options = std::make_shared<Options>();
  options->lower_bound = lower_bound;
  return builder.stage(kBoundedDecay, {x}, x.heads, x.dim,
                       {{"dt_bias", {x.width()}, {Init::Kind::kStepSize, 0.001f, 0, 0.1f}, false},
                        {"a_log", {x.heads}, {Init::Kind::kLogUniform, 1.0f, 0, 16.0f}, false}},
                       {}, std::move(options));
}

}  // namespace tarn::mixers::kimi_delta_attention
