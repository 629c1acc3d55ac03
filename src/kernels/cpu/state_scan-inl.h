// The recurrence that every form of the state-update family runs, compiled once per target.
#if defined(TARN_KERNELS_CPU_STATE_SCAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_STATE_SCAN_INL_H_
#undef TARN_KERNELS_CPU_STATE_SCAN_INL_H_
#else
#define TARN_KERNELS_CPU_STATE_SCAN_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// state += write_t ⊗ value_t, then out_t = scale_t · (read_t · state), token by token.
/// The state [rows, columns] stays in registers for a block of tokens, row by row, so the work is
/// the 2·rows·columns fused multiply-adds per token of the recurrence itself: no product of tokens
/// with tokens, no transposes, no reductions across lanes. Per element the order is that of the
/// token loop, so bits depend on no block size and the one-token form gives the same ones.
/// Strides are in elements and may be negative (time reversed).
struct Scan {
  int64_t rows = 0;
  int64_t columns = 0;
  const float* write = nullptr;  ///< [tokens, rows]
  int64_t write_stride = 0;
  const float* value = nullptr;  ///< [tokens, columns]
  int64_t value_stride = 0;
  const float* read = nullptr;  ///< [tokens, rows]
  int64_t read_stride = 0;
  float* state = nullptr;  ///< [rows, columns]
  int64_t state_stride = 0;
  float* out = nullptr;  ///< [tokens, columns]
  int64_t out_stride = 0;
  const float* scale = nullptr;  ///< [tokens]; or null: 1
  int64_t scale_stride = 0;
  bool stream = false;  ///< out bypasses the caches; whole aligned vectors only
};

constexpr int kScanVectors = kManyRegisters ? 4 : 2;

/// kRows rows of the state pass a block of tokens; `sum` collects what the tokens read.
template <int kRows, int kTokens, int kVectors, bool kTail>
HWY_INLINE void scan_rows(const Scan& s, int64_t row, Tail tail, VecF32 (&sum)[kTokens][kVectors]) {
  const F32 d;
  float* at = s.state + row * s.state_stride;
  VecF32 state[kRows][kVectors];
  TARN_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TARN_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      const float* from = at + r * s.state_stride + j * kLanes;
      state[r][j] = kTail && j == kVectors - 1 ? load_partial(from, tail) : hn::LoadU(d, from);
    }
  }
  TARN_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const float* write_at = s.write + t * s.write_stride + row;
    const float* read_at = s.read + t * s.read_stride + row;
    const float* value_at = s.value + t * s.value_stride;
    VecF32 write[kRows];
    VecF32 read[kRows];
    TARN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      write[r] = hn::Set(d, write_at[r]);
      read[r] = hn::Set(d, read_at[r]);
    }
    TARN_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      const float* from = value_at + j * kLanes;
      const VecF32 value =
          kTail && j == kVectors - 1 ? load_partial(from, tail) : hn::LoadU(d, from);
      TARN_UNROLL
      for (int r = 0; r < kRows; ++r) {
        state[r][j] = hn::MulAdd(write[r], value, state[r][j]);
        sum[t][j] = hn::MulAdd(read[r], state[r][j], sum[t][j]);
      }
    }
  }
  TARN_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TARN_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      float* to = at + r * s.state_stride + j * kLanes;
      if (kTail && j == kVectors - 1) {
        store_partial(state[r][j], to, tail);
      } else {
        hn::StoreU(state[r][j], d, to);
      }
    }
  }
}

/// All rows of the state for one block of tokens and one panel of columns.
template <int kTokens, int kVectors, bool kTail>
HWY_NOINLINE void scan_block(const Scan& shared, int64_t tail_size) {
  // Blocks of 8 vectors of state and up to 16 of sums fill 32 registers, 2 and 8 fill 16.
  constexpr int kRows = !kManyRegisters || kTokens == 1 ? 1 : kVectors <= 2 ? 4 : 2;
  const F32 d;
  // A copy: the compiler has to assume that vector stores change what a reference leads to.
  const Scan s = shared;
  const Tail tail(tail_size);
  VecF32 sum[kTokens][kVectors];
  TARN_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    TARN_UNROLL
    for (int j = 0; j < kVectors; ++j) sum[t][j] = hn::Zero(d);
  }
  int64_t row = 0;
  for (; row + kRows <= s.rows; row += kRows) {
    scan_rows<kRows, kTokens, kVectors, kTail>(s, row, tail, sum);
  }
  for (; row < s.rows; ++row) scan_rows<1, kTokens, kVectors, kTail>(s, row, tail, sum);
  TARN_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const VecF32 scale = hn::Set(d, s.scale == nullptr ? 1.0f : s.scale[t * s.scale_stride]);
    TARN_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      float* to = s.out + t * s.out_stride + j * kLanes;
      const VecF32 scaled = hn::Mul(sum[t][j], scale);
      if (s.stream) {
        hn::Stream(scaled, d, to);
      } else if (kTail && j == kVectors - 1) {
        store_partial(scaled, to, tail);
      } else {
        hn::StoreU(scaled, d, to);
      }
    }
  }
}

/// The part of a scan that writes columns [begin, end).
HWY_INLINE Scan columns_of(Scan s, int64_t begin, int64_t end) {
  s.value += begin;
  s.state += begin;
  s.out += begin;
  s.columns = end - begin;
  return s;
}

HWY_INLINE Scan advance(Scan s, int64_t tokens) {
  s.write += tokens * s.write_stride;
  s.value += tokens * s.value_stride;
  s.read += tokens * s.read_stride;
  s.out += tokens * s.out_stride;
  if (s.scale != nullptr) s.scale += tokens * s.scale_stride;
  return s;
}

/// All tokens for one panel of columns.
template <int kVectors, bool kTail>
HWY_INLINE void scan_panel(Scan s, int64_t tokens, int64_t tail) {
  constexpr int kTokens = 4;
  for (; tokens >= kTokens; tokens -= kTokens) {
    scan_block<kTokens, kVectors, kTail>(s, tail);
    s = advance(s, kTokens);
  }
  for (; tokens >= 2; tokens -= 2) {
    scan_block<2, kVectors, kTail>(s, tail);
    s = advance(s, 2);
  }
  if (tokens > 0) scan_block<1, kVectors, kTail>(s, tail);
}

template <int kVectors>
HWY_INLINE void scan_panel_any(const Scan& s, int64_t tokens, int64_t tail) {
  if (kMaskedIsFree || tail != kLanes) {
    scan_panel<kVectors, true>(s, tokens, tail);
  } else {
    scan_panel<kVectors, false>(s, tokens, tail);
  }
}

/// Runs the recurrence over `tokens` tokens.
inline void scan(const Scan& whole, int64_t tokens) {
  constexpr int64_t kPanel = kScanVectors * kLanes;
  for (int64_t first = 0; first < whole.columns; first += kPanel) {
    const int64_t width = std::min(kPanel, whole.columns - first);
    const int64_t vectors = (width + kLanes - 1) / kLanes;
    const int64_t tail = width - (vectors - 1) * kLanes;
    Scan s = whole;
    s.value += first;
    s.state += first;
    s.out += first;
    if (vectors == kScanVectors) {
      scan_panel_any<kScanVectors>(s, tokens, tail);
    } else if (vectors == 3) {
      scan_panel_any<3>(s, tokens, tail);
    } else if (vectors == 2) {
      scan_panel_any<2>(s, tokens, tail);
    } else {
      scan_panel_any<1>(s, tokens, tail);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_STATE_SCAN_INL_H_
