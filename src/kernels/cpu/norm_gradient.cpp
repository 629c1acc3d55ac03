#include "kernels/norm_gradient.h"

#include <algorithm>
#include <cmath>

#include "base/arena.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm_gradient.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels::HWY_NAMESPACE {

/// Σ f(i, lanes) over a row, with two chains; f gets the place and the lanes to read there.
template <class Function>
HWY_INLINE float sum_row(int64_t dim, const Function& f) {
  const F32 d;
  const Tail whole(kLanes);
  VecF32 sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kLanes <= dim; i += 2 * kLanes) {
    sum0 = hn::Add(sum0, f(i, whole));
    sum1 = hn::Add(sum1, f(i + kLanes, whole));
  }
  for (; i < dim; i += kLanes) {
    const int64_t size = std::min(kLanes, dim - i);
    VecF32 value = f(i, Tail(size));
    if (size < kLanes) value = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(size)), value);
    sum0 = hn::Add(sum0, value);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

void norm_gradient_rows(bool rms, int64_t rows, int64_t dim, const float* x, const float* weight,
                        float eps, const float* dy, float* dx, float* dweight, float* dbias) {
  const F32 d;
  const float count = static_cast<float>(dim);
  for (int64_t row = 0; row < rows; ++row, x += dim, dy += dim, dx += dim) {
    const float mean = rms ? 0.0f : sum_row(dim, [&](int64_t i, const Tail& t) {
                                      return load_partial(x + i, t);
                                    }) / count;
    const VecF32 vmean = hn::Set(d, mean);
    const auto centred = [&](int64_t i, const Tail& t) {
      return hn::Sub(load_partial(x + i, t), vmean);
    };
    const auto weighted = [&](int64_t i, const Tail& t) {
      return hn::Mul(load_partial(dy + i, t), load_partial(weight + i, t));
    };
    const float variance = sum_row(dim,
                                   [&](int64_t i, const Tail& t) {
                                     const VecF32 c = centred(i, t);
                                     return hn::Mul(c, c);
                                   }) /
                           count;
    const float scale = 1.0f / std::sqrt(variance + eps);
    const float mean_g = rms ? 0.0f : sum_row(dim, weighted) / count;
    const float mean_gx = scale / count * sum_row(dim, [&](int64_t i, const Tail& t) {
                            return hn::Mul(weighted(i, t), centred(i, t));
                          });
    const VecF32 vscale = hn::Set(d, scale), vmean_g = hn::Set(d, mean_g);
    const VecF32 vmean_gx = hn::Set(d, mean_gx);
    for (int64_t i = 0; i < dim; i += kLanes) {
      const Tail t(std::min(kLanes, dim - i));
      const VecF32 normed = hn::Mul(centred(i, t), vscale);
      const VecF32 gradient = load_partial(dy + i, t);
      const VecF32 inner = hn::NegMulAdd(normed, vmean_gx, hn::Sub(weighted(i, t), vmean_g));
      store_partial(hn::MulAdd(gradient, normed, load_partial(dweight + i, t)), dweight + i, t);
      if (dbias != nullptr) {
        store_partial(hn::Add(gradient, load_partial(dbias + i, t)), dbias + i, t);
      }
      store_partial(hn::Mul(vscale, inner), dx + i, t);
    }
  }
}

}  // namespace tarn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {

HWY_EXPORT(norm_gradient_rows);

void norm_gradient(bool rms, int64_t rows, int64_t dim, const float* x, const float* weight,
                   float eps, const float* dy, float* dx, float* dweight, float* dbias,
                   ThreadPool* pool) noexcept {
  constexpr int64_t kPieceRows = 256;
  thread_local Arena arena;
  ArenaScope scope(arena);
  const int64_t pieces = (rows + kPieceRows - 1) / kPieceRows;
  float* sums = arena.alloc<float>(pieces * 2 * dim);
  parallel_for(pool, pieces, [&](int64_t begin, int64_t end, int) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece * kPieceRows;
      float* piece_sums = sums + piece * 2 * dim;
      std::fill_n(piece_sums, 2 * dim, 0.0f);
      HWY_DYNAMIC_DISPATCH(norm_gradient_rows)
      (rms, std::min(kPieceRows, rows - first), dim, x + first * dim, weight, eps, dy + first * dim,
       dx + first * dim, piece_sums, dbias != nullptr ? piece_sums + dim : nullptr);
    }
  });
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const float* piece_sums = sums + piece * 2 * dim;
    for (int64_t i = 0; i < dim; ++i) {
      dweight[i] += piece_sums[i];
      if (dbias != nullptr) dbias[i] += piece_sums[dim + i];
    }
  }
}

}  // namespace tarn::kernels
#endif
