#include "kernels/gates.h"

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gates.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "kernels/cpu/gates-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

void function_impl(GateFunction function, float scale, int64_t rows, int64_t width,
                   Rows<const float> x, const float* bias, Rows<float> y) {
  with_function(function, [&]<GateFunction kFunction>() HWY_ATTR {
    const VecF32 factor = hn::Set(F32(), scale);
    for (int64_t row = 0; row < rows; ++row) {
      const float* from = x.data + row * x.stride;
      float* to = y.data + row * y.stride;
      for_each_vector(width, [&](int64_t c, const auto& load, const auto& store) HWY_ATTR {
        VecF32 value = load(from + c);
        if (bias != nullptr) value = hn::Add(value, load(bias + c));
        store(hn::Mul(factor, gate_of<kFunction>(value)), to + c);
      });
    }
  });
}

void function_gradient_impl(GateFunction function, float scale, int64_t rows, int64_t width,
                            Rows<const float> x, const float* bias, Rows<const float> dy,
                            Rows<float> dx) {
  with_function(function, [&]<GateFunction kFunction>() HWY_ATTR {
    const VecF32 factor = hn::Set(F32(), scale);
    for (int64_t row = 0; row < rows; ++row) {
      const float* from = x.data + row * x.stride;
      const float* gradient = dy.data + row * dy.stride;
      float* to = dx.data + row * dx.stride;
      for_each_vector(width, [&](int64_t c, const auto& load, const auto& store) HWY_ATTR {
        VecF32 value = load(from + c);
        if (bias != nullptr) value = hn::Add(value, load(bias + c));
        store(hn::Mul(hn::Mul(factor, load(gradient + c)), slope_of<kFunction>(value)), to + c);
      });
    }
  });
}

void multiply_impl(GateFunction function, int64_t rows, int64_t width, Rows<const float> x,
                   Rows<const float> gate, Rows<float> y) {
  with_function(function, [&]<GateFunction kFunction>() HWY_ATTR {
    for (int64_t row = 0; row < rows; ++row) {
      const float* from = x.data + row * x.stride;
      const float* gates = gate.data + row * gate.stride;
      float* to = y.data + row * y.stride;
      for_each_vector(width, [&](int64_t c, const auto& load, const auto& store) HWY_ATTR {
        store(hn::Mul(load(from + c), gate_of<kFunction>(load(gates + c))), to + c);
      });
    }
  });
}

void multiply_gradient_impl(GateFunction function, int64_t rows, int64_t width, Rows<const float> x,
                            Rows<const float> gate, Rows<const float> dy, Rows<float> dx,
                            Rows<float> dgate) {
  with_function(function, [&]<GateFunction kFunction>() HWY_ATTR {
    for (int64_t row = 0; row < rows; ++row) {
      const float* from = x.data + row * x.stride;
      const float* gates = gate.data + row * gate.stride;
      const float* gradient = dy.data + row * dy.stride;
      float* to = dx.data + row * dx.stride;
      float* to_gate = dgate.data + row * dgate.stride;
      for_each_vector(width, [&](int64_t c, const auto& load, const auto& store) HWY_ATTR {
        const VecF32 g = load(gates + c);
        const VecF32 d = load(gradient + c);
        const VecF32 value = load(from + c);
        store(hn::Mul(d, gate_of<kFunction>(g)), to + c);
        store(hn::Mul(hn::Mul(d, value), slope_of<kFunction>(g)), to_gate + c);
      });
    }
  });
}

/// Σ a·b, four partial vectors so that no chain of additions is long.
HWY_INLINE float dot(int64_t dim, const float* a, const float* b) {
  const F32 d;
  VecF32 even = hn::Zero(d);
  VecF32 odd = hn::Zero(d);
  int64_t c = 0;
  for (; c + 2 * kLanes <= dim; c += 2 * kLanes) {
    even = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), even);
    odd = hn::MulAdd(hn::LoadU(d, a + c + kLanes), hn::LoadU(d, b + c + kLanes), odd);
  }
  for (; c < dim; c += kLanes) {
    const Tail tail(std::min(kLanes, dim - c));
    even = hn::MulAdd(load_partial(a + c, tail), load_partial(b + c, tail), even);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

float l2_scale(float squares, float eps, bool clamped) {
  return clamped ? 1.0f / std::max(std::sqrt(squares), eps) : 1.0f / std::sqrt(squares + eps);
}

void l2_norm_impl(int64_t rows, int64_t dim, Rows<const float> x, float eps, bool clamped,
                  Rows<float> y) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x.data + row * x.stride;
    float* to = y.data + row * y.stride;
    const VecF32 scale = hn::Set(F32(), l2_scale(dot(dim, from, from), eps, clamped));
    for_each_vector(dim, [&](int64_t c, const auto& load, const auto& store)
                             HWY_ATTR { store(hn::Mul(scale, load(from + c)), to + c); });
  }
}

void l2_norm_gradient_impl(int64_t rows, int64_t dim, Rows<const float> x, Rows<const float> y,
                           float eps, bool clamped, Rows<const float> dy, Rows<float> dx) {
  const F32 d;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x.data + row * x.stride;
    const float* unit = y.data + row * y.stride;
    const float* gradient = dy.data + row * dy.stride;
    float* to = dx.data + row * dx.stride;
    const float squares = dot(dim, from, from);
    const bool constant = clamped && std::sqrt(squares) <= eps;
    const VecF32 along = hn::Set(d, constant ? 0.0f : dot(dim, gradient, unit));
    const VecF32 scale = hn::Set(d, l2_scale(squares, eps, clamped));
    for_each_vector(dim, [&](int64_t c, const auto& load, const auto& store) HWY_ATTR {
      store(hn::Mul(scale, hn::NegMulAdd(load(unit + c), along, load(gradient + c))), to + c);
    });
  }
}

void rms_norm_gradient_impl(int64_t rows, int64_t dim, Rows<const float> x, const float* weight,
                            float eps, Rows<const float> dy, Rows<float> dx, float* dweight) {
  const F32 d;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x.data + row * x.stride;
    const float* gradient = dy.data + row * dy.stride;
    float* to = dx.data + row * dx.stride;
    const float size = static_cast<float>(dim);
    const float s = 1.0f / std::sqrt(dot(dim, from, from) / size + eps);
    const VecF32 scale = hn::Set(d, s);
    // g = dy·weight goes to dx first.
    for_each_vector(dim, [&](int64_t c, const auto& load, const auto& store) HWY_ATTR {
      const VecF32 g = load(gradient + c);
      store(hn::MulAdd(hn::Mul(g, scale), load(from + c), load(dweight + c)), dweight + c);
      store(hn::Mul(g, load(weight + c)), to + c);
    });
    const VecF32 mean = hn::Set(d, s * s * dot(dim, to, from) / size);
    for_each_vector(dim, [&](int64_t c, const auto& load, const auto& store) HWY_ATTR {
      store(hn::Mul(scale, hn::NegMulAdd(load(from + c), mean, load(to + c))), to + c);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {

HWY_EXPORT(function_impl);
HWY_EXPORT(function_gradient_impl);
HWY_EXPORT(multiply_impl);
HWY_EXPORT(multiply_gradient_impl);
HWY_EXPORT(l2_norm_impl);
HWY_EXPORT(l2_norm_gradient_impl);
HWY_EXPORT(rms_norm_gradient_impl);

void gate_function(GateFunction function, float scale, int64_t rows, int64_t width,
                   Rows<const float> x, const float* bias, Rows<float> y) noexcept {
  HWY_DYNAMIC_DISPATCH(function_impl)(function, scale, rows, width, x, bias, y);
}

void gate_function_gradient(GateFunction function, float scale, int64_t rows, int64_t width,
                            Rows<const float> x, const float* bias, Rows<const float> dy,
                            Rows<float> dx) noexcept {
  HWY_DYNAMIC_DISPATCH(function_gradient_impl)(function, scale, rows, width, x, bias, dy, dx);
}

void multiply_by_gate(GateFunction function, int64_t rows, int64_t width, Rows<const float> x,
                      Rows<const float> gate, Rows<float> y) noexcept {
  HWY_DYNAMIC_DISPATCH(multiply_impl)(function, rows, width, x, gate, y);
}

void multiply_by_gate_gradient(GateFunction function, int64_t rows, int64_t width,
                               Rows<const float> x, Rows<const float> gate, Rows<const float> dy,
                               Rows<float> dx, Rows<float> dgate) noexcept {
  HWY_DYNAMIC_DISPATCH(multiply_gradient_impl)(function, rows, width, x, gate, dy, dx, dgate);
}

void l2_norm(int64_t rows, int64_t dim, Rows<const float> x, float eps, bool clamped,
             Rows<float> y) noexcept {
  HWY_DYNAMIC_DISPATCH(l2_norm_impl)(rows, dim, x, eps, clamped, y);
}

void l2_norm_gradient(int64_t rows, int64_t dim, Rows<const float> x, Rows<const float> y,
                      float eps, bool clamped, Rows<const float> dy, Rows<float> dx) noexcept {
  HWY_DYNAMIC_DISPATCH(l2_norm_gradient_impl)(rows, dim, x, y, eps, clamped, dy, dx);
}

void rms_norm_gradient(int64_t rows, int64_t dim, Rows<const float> x, const float* weight,
                       float eps, Rows<const float> dy, Rows<float> dx, float* dweight) noexcept {
  HWY_DYNAMIC_DISPATCH(rms_norm_gradient_impl)(rows, dim, x, weight, eps, dy, dx, dweight);
}

}  // namespace tarn::kernels
#endif
