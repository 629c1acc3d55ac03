// Blocks of channels, lane by lane, of rows and of states; compiled once per target.
#if defined(TARN_KERNELS_CPU_CHANNEL_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_CHANNEL_BLOCKS_INL_H_
#undef TARN_KERNELS_CPU_CHANNEL_BLOCKS_INL_H_
#else
#define TARN_KERNELS_CPU_CHANNEL_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/diagonal_scan_calls.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/diagonal_scan.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

constexpr int kBlockVectors = kManyRegisters ? 4 : 2;
/// Channels of a block; divides 64.
constexpr int64_t kBlock = kBlockVectors * kLanes;

/// A block's part of rows that will be needed, one per token: such pieces lie far apart, where the
/// hardware's own prefetchers do not follow.
struct Upcoming {
  const float* at = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;

  template <class T>
  static Upcoming of(Rows<T> from, int64_t row, int64_t rows, int64_t channel) {
    return {rows > 0 ? from.at(row) + channel : nullptr, from.stride, rows};
  }
  HWY_INLINE void prefetch(int64_t row) const {
    constexpr int64_t kLine = 16;
    if (row >= rows) return;
    for (int64_t i = 0; i < kBlock; i += kLine) hwy::Prefetch(at + row * stride + i);
  }
};

/// `count` ≤ kBlock channels of some rows to rows of kBlock, zeros beyond.
HWY_INLINE void load_rows(Rows<const float> from, int64_t row, int64_t rows, int64_t channel,
                          int64_t count, float* HWY_RESTRICT to) {
  const F32 d;
  for (int64_t r = 0; r < rows; ++r, to += kBlock) {
    const float* x = from.at(row + r) + channel;
    if (count == kBlock) {
      for (int v = 0; v < kBlockVectors; ++v) {
        hn::Store(hn::LoadU(d, x + v * kLanes), d, to + v * kLanes);
      }
    } else {
      std::fill(std::copy_n(x, count, to), to + kBlock, 0.0f);
    }
  }
}

HWY_INLINE void store_rows(const float* HWY_RESTRICT from, int64_t row, int64_t rows,
                           int64_t channel, int64_t count, Rows<float> to) {
  const F32 d;
  for (int64_t r = 0; r < rows; ++r, from += kBlock) {
    float* x = to.at(row + r) + channel;
    if (count == kBlock) {
      for (int v = 0; v < kBlockVectors; ++v) {
        hn::StoreU(hn::Load(d, from + v * kLanes), d, x + v * kLanes);
      }
    } else {
      std::copy_n(from, count, x);
    }
  }
}

/// to[c·to_stride + r] = from[r·from_stride + c] for r < rows, c < columns: tiles of 4×4, a step's
/// time is mostly this.
inline void transpose(int64_t rows, int64_t columns, const float* HWY_RESTRICT from,
                      int64_t from_stride, float* HWY_RESTRICT to, int64_t to_stride) {
  int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 4> d;
  const hn::Repartition<double, decltype(d)> pairs;
  const auto low = [&](auto a, auto b) {
    return hn::BitCast(d, hn::InterleaveLower(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  const auto high = [&](auto a, auto b) {
    return hn::BitCast(d, hn::InterleaveUpper(pairs, hn::BitCast(pairs, a), hn::BitCast(pairs, b)));
  };
  for (; r + 4 <= rows; r += 4) {
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4) {
      const float* x = from + r * from_stride + c;
      const auto x0 = hn::LoadU(d, x), x1 = hn::LoadU(d, x + from_stride);
      const auto x2 = hn::LoadU(d, x + 2 * from_stride), x3 = hn::LoadU(d, x + 3 * from_stride);
      const auto even0 = hn::InterleaveLower(d, x0, x1), odd0 = hn::InterleaveUpper(d, x0, x1);
      const auto even1 = hn::InterleaveLower(d, x2, x3), odd1 = hn::InterleaveUpper(d, x2, x3);
      float* y = to + c * to_stride + r;
      hn::StoreU(low(even0, even1), d, y);
      hn::StoreU(high(even0, even1), d, y + to_stride);
      hn::StoreU(low(odd0, odd1), d, y + 2 * to_stride);
      hn::StoreU(high(odd0, odd1), d, y + 3 * to_stride);
    }
    for (; c < columns; ++c) {
      for (int64_t i = r; i < r + 4; ++i) to[c * to_stride + i] = from[i * from_stride + c];
    }
  }
#endif
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = from[r * from_stride + c];
  }
}

/// A block's part of a [channels, planes] matrix to planes of kBlock, zeros beyond; null: zeros.
inline void load_planes(const float* from, int64_t planes, int64_t channel, int64_t count,
                        float* HWY_RESTRICT to) {
  if (from == nullptr || count < kBlock) std::fill_n(to, planes * kBlock, 0.0f);
  if (from != nullptr) transpose(count, planes, from + channel * planes, planes, to, kBlock);
}

inline void store_planes(const float* HWY_RESTRICT from, int64_t planes, int64_t channel,
                         int64_t count, float* to) {
  transpose(planes, count, from, kBlock, to + channel * planes, planes);
}

inline void add_planes(const float* HWY_RESTRICT from, int64_t planes, int64_t channel,
                       int64_t count, float* to) {
  to += channel * planes;
  for (int64_t e = 0; e < count; ++e, to += planes) {
    for (int64_t p = 0; p < planes; ++p) to[p] += from[p * kBlock + e];
  }
}

/// Planes of kBlock to or from planes with another stride.
inline void copy_planes(const float* HWY_RESTRICT from, int64_t from_stride, int64_t planes,
                        float* HWY_RESTRICT to, int64_t to_stride) {
  for (int64_t p = 0; p < planes; ++p) {
    std::copy_n(from + p * from_stride, kBlock, to + p * to_stride);
  }
}

/// Items [begin, end) are groups of channels of sequences, sequence by sequence: calls
/// `body(sequence, chunk, channel, count)` for each block; `chunk` is the place of the sequence's
/// first chunk among the borders.
template <class Body>
HWY_INLINE void for_each_block(const DiagonalScanProblem& problem, const Borders& borders,
                               int64_t begin, int64_t end, const Body& body) {
  const ChannelGroups groups(problem.num_channels);
  int64_t chunk = 0;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t sequence = item / groups.count();
    const int64_t group = item % groups.count();
    if (item == begin || group == 0) chunk = borders.before(sequence);
    for (int64_t e = groups.begin(group); e < groups.end(group); e += kBlock) {
      body(sequence, chunk, e, std::min(kBlock, groups.end(group) - e));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_CHANNEL_BLOCKS_INL_H_
