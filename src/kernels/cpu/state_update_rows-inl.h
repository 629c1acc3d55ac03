// Row-wise pieces shared by the forms of the state-update family, compiled once per target.
#if defined(TARN_KERNELS_CPU_STATE_UPDATE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_STATE_UPDATE_ROWS_INL_H_
#undef TARN_KERNELS_CPU_STATE_UPDATE_ROWS_INL_H_
#else
#define TARN_KERNELS_CPU_STATE_UPDATE_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "base/buffer.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/state_scan-inl.h"
#include "kernels/cpu/state_update_scratch.h"
#include "kernels/layout.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

HWY_INLINE float dot(const float* a, const float* b, int64_t size) {
  const F32 d;
  VecF32 sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  }
  if (i < size) {
    sum = hn::MulAdd(load_partial(a + i, size - i), load_partial(b + i, size - i), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// to += from.
HWY_INLINE void add_row(const float* from, float* to, int64_t size) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i);
  }
  if (i < size) {
    const int64_t n = size - i;
    store_partial(hn::Add(load_partial(to + i, n), load_partial(from + i, n)), to + i, n);
  }
}

/// to = factor · from; may be in place.
HWY_INLINE void scale_row(float factor, const float* from, float* to, int64_t size) {
  const F32 d;
  const VecF32 scalar = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    hn::StoreU(hn::Mul(scalar, hn::LoadU(d, from + i)), d, to + i);
  }
  if (i < size) {
    const int64_t n = size - i;
    store_partial(hn::Mul(scalar, load_partial(from + i, n)), to + i, n);
  }
}

/// The rows of one head that the next chunk will read, in each of `count` tensors.
struct RowsAhead {
  const Heads<const float>* tensors = nullptr;
  const int64_t* widths = nullptr;
  int count = 0;
  int64_t head = 0;
  int64_t first = 0;           ///< the chunk's first row
  int64_t begin = 0, end = 0;  ///< the sequence's rows

  HWY_INLINE void prefetch(int64_t from, int64_t rows) const {
    constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(float));
    const int64_t last = std::min(first + from + rows, end);
    for (int64_t row = std::max(first + from, begin); row < last; ++row) {
      for (int i = 0; i < count; ++i) {
        const float* at = tensors[i].at(row, head);
        for (int64_t c = 0; c < widths[i]; c += kLine) hwy::Prefetch(at + c);
      }
    }
  }
};

/// scan, in blocks of tokens, each after requests for as many rows ahead: the rows of one head lie
/// far apart in memory, which hardware prefetchers do not follow, and more requests at once would
/// wait for each other. (No closure: GCC takes a function that only prefetches for one without
/// effect and drops the call.)
HWY_INLINE void scan_and_prefetch(const Scan& s, int64_t tokens, const RowsAhead& ahead) {
  constexpr int64_t kBlock = 8;
  for (int64_t t = 0; t < tokens; t += kBlock) {
    const int64_t block = std::min(kBlock, tokens - t);
    ahead.prefetch(t, block);
    scan(advance(s, t), block);
  }
}

/// Asks for rows that are about to be written. Highway has no such request.
HWY_INLINE void prefetch_for_writing(const Heads<float>& to, int64_t row, int64_t rows,
                                     int64_t head, int64_t width) {
  constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(float));
  for (int64_t t = 0; t < rows; ++t) {
    const float* at = to.at(row + t, head);
    for (int64_t c = 0; c < width; c += kLine) __builtin_prefetch(at + c, 1);
  }
}

/// Calls `body(begin, end)` for pieces of [0, columns) in whole vectors, by one thread or several:
/// columns do not depend on each other.
template <class Split, class Body>
HWY_INLINE void split_columns(int64_t columns, const Split& split, const Body& body) {
  split((columns + kLanes - 1) / kLanes, [&](int64_t begin, int64_t end, int) {
    body(begin * kLanes, std::min(end * kLanes, columns));
  });
}

/// The columns of a scan that are part `part` of `parts`.
HWY_INLINE void scan_part(const Scan& s, int64_t tokens, int64_t part, int64_t parts) {
  const int64_t vectors = (s.columns + kLanes - 1) / kLanes;
  const int64_t begin = vectors * part / parts * kLanes;
  const int64_t end = std::min(vectors * (part + 1) / parts * kLanes, s.columns);
  if (begin < end) scan(columns_of(s, begin, end), tokens);
}

/// Copies rows past the caches: whole aligned vectors only.
HWY_INLINE void stream_rows(const float* from, int64_t rows, int64_t width, float* to,
                            int64_t to_stride) {
  const F32 d;
  for (int64_t t = 0; t < rows; ++t, from += width, to += to_stride) {
    for (int64_t i = 0; i < width; i += kLanes) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  }
}

HWY_INLINE void zero(float* to, int64_t size) { std::fill(to, to + size, 0.0f); }
HWY_INLINE void copy(const float* from, float* to, int64_t size) {
  std::copy(from, from + size, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_STATE_UPDATE_ROWS_INL_H_
