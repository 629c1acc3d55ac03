#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "mixers/common/stage_call.h"
#include "mixers/common/trained_linear.h"
#include "mixers/linear_attention/linear_attention.h"

namespace tarn::mixers::linear_attention {
namespace {

constexpr double kSmallestFeature = 1e-12;

struct Options final : StageOptions {
  LearnedMap map = LearnedMap::kNone;
};

LearnedMap map_of(const Stage& stage) { return static_cast<const Options&>(*stage.options).map; }

// y = W x (+ b) per head. W [out, in] for all heads, or [heads, out, in].

TrainedLinear head_linear(const StageArgs<float>& args, int64_t head) {
  const Slice& in = args.stage->inputs[0];
  TrainedLinear linear;
  linear.out_dim = args.stage->out.dim;
  linear.in_dim = in.dim;
  const bool own = map_of(*args.stage) == LearnedMap::kHedgehogApart;
  linear.weight = args.params[0] + (own ? head * linear.out_dim * linear.in_dim : 0);
  if (args.params.size() > 1) linear.bias = args.params[1];
  return linear;
}

kernels::RowProduct rows_of(int64_t rows, kernels::Heads<const float> from, int64_t head,
                            kernels::Heads<float> to) {
  kernels::RowProduct product;
  product.rows = rows;
  product.a = from.at(0, head);
  product.a_stride = from.row_stride;
  product.out = to.at(0, head);
  product.out_stride = to.row_stride;
  return product;
}

void linear_forward(const StageArgs<float>& args) noexcept {
  const int64_t rows = packed_rows(args.sequences);
  for (int64_t h = 0; h < args.stage->out.heads; ++h) {
    ArenaScope scope(*args.arena);
    const TrainedLinear linear = head_linear(args, h);
    kernels::RowProduct product = rows_of(rows, args.inputs[0], h, args.out);
    product.bias = linear.bias;
    kernels::multiply_rows(linear.pack(args.pool, *args.arena), product, args.pool);
  }
}

void linear_reference(const StageArgs<double>& args) {
  const Slice& in = args.stage->inputs[0];
  const Slice& out = args.stage->out;
  const bool own = map_of(*args.stage) == LearnedMap::kHedgehogApart;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const double* weight = args.params[0] + (own ? h * out.dim * in.dim : 0);
      for (int64_t o = 0; o < out.dim; ++o) {
        double sum = args.params.size() > 1 ? args.params[1][o] : 0.0;
        for (int64_t i = 0; i < in.dim; ++i) {
          sum += weight[o * in.dim + i] * args.inputs[0].at(row, h)[i];
        }
        args.out.at(row, h)[o] = sum;
      }
    }
  }
}

void linear_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const int64_t rows = packed_rows(forward.sequences);
  for (int64_t h = 0; h < forward.stage->out.heads; ++h) {
    ArenaScope scope(*forward.arena);
    TrainedLinear linear = head_linear(forward, h);
    linear.dweight = args.dparams[0] + (linear.weight - forward.params[0]);
    if (linear.bias != nullptr) linear.dbias = args.dparams[1];
    kernels::multiply_rows(linear.pack_for_gradient(forward.pool, *forward.arena),
                           rows_of(rows, args.dout, h, args.dinputs[0]), forward.pool);
    linear.add_gradient(rows, args.dout.at(0, h), args.dout.row_stride, forward.inputs[0].at(0, h),
                        forward.inputs[0].row_stride, forward.pool);
  }
}

constexpr StageDef kHeadLinear{"head_linear", false, linear_forward, linear_reference,
                               linear_backward};

// The function behind it: relu, or softmaxes of y and −y.

/// out[c] = exp(sign·factor·y[c] − largest) for both signs, and the sums of the two halves.
template <class T>
std::pair<T, T> exponentials(int64_t dim, const T* y, T factor, bool joint, T* out) {
  T top = -std::numeric_limits<T>::infinity();
  T bottom = top;
  for (int64_t c = 0; c < dim; ++c) {
    top = std::max(top, factor * y[c]);
    bottom = std::max(bottom, -factor * y[c]);
  }
  if (joint) top = bottom = std::max(top, bottom);
  std::pair<T, T> sums{0, 0};
  for (int64_t c = 0; c < dim; ++c) {
    out[c] = std::exp(factor * y[c] - top);
    out[dim + c] = std::exp(-factor * y[c] - bottom);
    sums.first += out[c];
    sums.second += out[dim + c];
  }
  if (joint) sums.first = sums.second = sums.first + sums.second;
  return sums;
}

template <class T>
void map_forward(const StageArgs<T>& args) {
  const LearnedMap map = map_of(*args.stage);
  const Slice& in = args.stage->inputs[0];
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < in.heads; ++h) {
      const T* y = args.inputs[0].at(row, h);
      T* out = args.out.at(row, h);
      if (map == LearnedMap::kT2r) {
        for (int64_t c = 0; c < in.dim; ++c) out[c] = std::max(y[c], T(0));
        continue;
      }
      const bool joint = map == LearnedMap::kHedgehog;
      const auto [top, bottom] = exponentials(in.dim, y, T(joint ? 2 : 1), joint, out);
      for (int64_t c = 0; c < in.dim; ++c) {
        out[c] /= top;
        out[in.dim + c] /= bottom;
      }
      if (joint) continue;
      for (int64_t c = 0; c < 2 * in.dim; ++c) out[c] = std::max(out[c], T(kSmallestFeature));
    }
  }
}

void map_forward_f32(const StageArgs<float>& args) noexcept { map_forward(args); }

/// Of a softmax p: dx = p∘(dp − p·dp), for y and −y with their factor; a clamped feature has none.
void softmax_backward(bool joint, int64_t dim, const float* p, const float* dp, float* dy) {
  const auto slope = [&](int64_t c) {
    return !joint && p[c] <= static_cast<float>(kSmallestFeature) ? 0.0f : dp[c];
  };
  float top = 0.0f;
  float bottom = 0.0f;
  for (int64_t c = 0; c < dim; ++c) {
    top += p[c] * slope(c);
    bottom += p[dim + c] * slope(dim + c);
  }
  if (joint) top = bottom = top + bottom;
  const float factor = joint ? 2.0f : 1.0f;
  for (int64_t c = 0; c < dim; ++c) {
    dy[c] = factor * (p[c] * (slope(c) - top) - p[dim + c] * (slope(dim + c) - bottom));
  }
}

void map_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const LearnedMap map = map_of(*forward.stage);
  const Slice& in = forward.stage->inputs[0];
  for (int64_t row = forward.first; row < forward.end; ++row) {
    for (int64_t h = 0; h < in.heads; ++h) {
      const float* p = forward.out.at(row, h);
      const float* dp = args.dout.at(row, h);
      float* dy = args.dinputs[0].at(row, h);
      if (map != LearnedMap::kT2r) {
        softmax_backward(map == LearnedMap::kHedgehog, in.dim, p, dp, dy);
        continue;
      }
      for (int64_t c = 0; c < in.dim; ++c) dy[c] = p[c] > 0.0f ? dp[c] : 0.0f;
    }
  }
}

constexpr StageDef kMap{"learned_map", true, map_forward_f32, map_forward<double>, map_backward};

}  // namespace

Slice learned_map(LayerBuilder& builder, const std::string& name, LearnedMap map, const Slice& x,
                  int64_t features) {
  auto options = std::make_shared<Options>();
  options->map = map;
  const bool t2r = map == LearnedMap::kT2r;
  const int64_t width = t2r ? features : x.dim;
  std::vector<int64_t> shape = {width, x.dim};
  if (map == LearnedMap::kHedgehogApart) shape.insert(shape.begin(), x.heads);
  const float bound = 1.0f / std::sqrt(static_cast<float>(x.dim));
  const Init start = t2r ? Init{Init::Kind::kUniform, bound} : Init{Init::Kind::kIdentity};
  std::vector<ParamSpec> params = {{name + ".weight", shape, start, true}};
  if (map == LearnedMap::kHedgehog) params.push_back({name + ".bias", {width}, Init{}, false});
  const Slice y = builder.stage(kHeadLinear, {x}, x.heads, width, std::move(params), {}, options);
  return builder.stage(kMap, {y}, x.heads, t2r ? width : 2 * width, {}, {}, options);
}

}  // namespace tarn::mixers::linear_attention
