// Products of small matrices inside other kernels, compiled once per target.
#if defined(TARN_KERNELS_CPU_SMALL_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_SMALL_GEMM_INL_H_
#undef TARN_KERNELS_CPU_SMALL_GEMM_INL_H_
#else
#define TARN_KERNELS_CPU_SMALL_GEMM_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

constexpr int kGemmRows = 6;
constexpr int kGemmVectors = kManyRegisters ? 4 : 2;

/// A [M, K] with any two strides (in elements): A(i, k) = data[i·row_stride + k·column_stride], so
/// a transposed operand is a swap of the strides.
struct GemmLeft {
  const float* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
};

/// One register block: kRows rows × kVectors vectors of C over the whole of K. `tail_size` is the
/// number of lanes of the last vector, used when kTail.
template <int kRows, int kVectors, bool kTail>
HWY_INLINE void gemm_block(int64_t depth, GemmLeft a, const float* HWY_RESTRICT b, int64_t b_stride,
                           float* HWY_RESTRICT c, int64_t c_stride, bool accumulate,
                           int64_t tail_size) {
  const F32 d;
  const Tail tail(tail_size);
  VecF32 sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      const float* from = c + i * c_stride + j * kLanes;
      if (!accumulate) {
        sum[i][j] = hn::Zero(d);
      } else if (kTail && j == kVectors - 1) {
        sum[i][j] = load_partial(from, tail);
      } else {
        sum[i][j] = hn::LoadU(d, from);
      }
    }
  }
  const float* a_column = a.data;
  for (int64_t k = 0; k < depth; ++k) {
    VecF32 row[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      const float* from = b + j * kLanes;
      row[j] = kTail && j == kVectors - 1 ? load_partial(from, tail) : hn::LoadU(d, from);
    }
    for (int i = 0; i < kRows; ++i) {
      const VecF32 scalar = hn::Set(d, a_column[i * a.row_stride]);
      for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::MulAdd(scalar, row[j], sum[i][j]);
    }
    a_column += a.column_stride;
    b += b_stride;
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      float* to = c + i * c_stride + j * kLanes;
      if (kTail && j == kVectors - 1) {
        store_partial(sum[i][j], to, tail);
      } else {
        hn::StoreU(sum[i][j], d, to);
      }
    }
  }
}

/// All rows of one panel of kVectors vectors.
template <int kVectors, bool kTail>
HWY_NOINLINE void gemm_panel(int64_t rows, int64_t depth, GemmLeft a, const float* b,
                             int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                             int64_t tail) {
  int64_t i = 0;
  for (; i + kGemmRows <= rows; i += kGemmRows) {
    gemm_block<kGemmRows, kVectors, kTail>(depth, a, b, b_stride, c, c_stride, accumulate, tail);
    a.data += kGemmRows * a.row_stride;
    c += kGemmRows * c_stride;
  }
  switch (rows - i) {
    case 5:
      gemm_block<5, kVectors, kTail>(depth, a, b, b_stride, c, c_stride, accumulate, tail);
      break;
    case 4:
      gemm_block<4, kVectors, kTail>(depth, a, b, b_stride, c, c_stride, accumulate, tail);
      break;
    case 3:
      gemm_block<3, kVectors, kTail>(depth, a, b, b_stride, c, c_stride, accumulate, tail);
      break;
    case 2:
      gemm_block<2, kVectors, kTail>(depth, a, b, b_stride, c, c_stride, accumulate, tail);
      break;
    case 1:
      gemm_block<1, kVectors, kTail>(depth, a, b, b_stride, c, c_stride, accumulate, tail);
      break;
    default: break;
  }
}

template <int kVectors>
HWY_INLINE void gemm_panel_any(int64_t rows, int64_t depth, GemmLeft a, const float* b,
                               int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                               int64_t tail) {
  if (kMaskedIsFree || tail != kLanes) {
    gemm_panel<kVectors, true>(rows, depth, a, b, b_stride, c, c_stride, accumulate, tail);
  } else {
    gemm_panel<kVectors, false>(rows, depth, a, b, b_stride, c, c_stride, accumulate, tail);
  }
}

/// C = A·B, or C += A·B when `accumulate`. A [rows, depth] by two strides, B [depth, columns] and
/// C [rows, columns] row-strided with column stride 1; no alignment needed; C aliases neither.
/// Each element is one chain c = fma(a_k, b_k, c) over k in order, whatever the blocking, so its
/// bits depend only on its own row of A and column of B. depth 0 gives zeros (or leaves C).
/// Meant for operands that fit the L1 or L2 cache: nothing is packed. Cost: 2·rows·columns·depth.
inline void small_gemm(int64_t rows, int64_t columns, int64_t depth, GemmLeft a, const float* b,
                       int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  constexpr int64_t kPanel = kGemmVectors * kLanes;
  for (int64_t j = 0; j < columns; j += kPanel) {
    const int64_t width = std::min(kPanel, columns - j);
    const int64_t vectors = (width + kLanes - 1) / kLanes;
    const int64_t tail = width - (vectors - 1) * kLanes;
    const float* bj = b + j;
    float* cj = c + j;
    if (vectors == kGemmVectors) {
      gemm_panel_any<kGemmVectors>(rows, depth, a, bj, b_stride, cj, c_stride, accumulate, tail);
    } else if (vectors == 3) {
      gemm_panel_any<3>(rows, depth, a, bj, b_stride, cj, c_stride, accumulate, tail);
    } else if (vectors == 2) {
      gemm_panel_any<2>(rows, depth, a, bj, b_stride, cj, c_stride, accumulate, tail);
    } else {
      gemm_panel_any<1>(rows, depth, a, bj, b_stride, cj, c_stride, accumulate, tail);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_SMALL_GEMM_INL_H_
