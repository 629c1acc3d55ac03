#pragma once

#include <algorithm>
#include <cstdint>

#include "base/buffer.h"
#include "base/threads.h"
#include "kernels/activation.h"
#include "kernels/gemm.h"

namespace tarn::kernels {

inline constexpr int64_t kPanelWidth = 32;  ///< outputs per panel, whatever the SIMD target

/// A weight [out_dim, in_dim] as panels [out_dim/32][in_dim][32], the last one padded with zeros,
/// and its bias padded alike.
struct PackedPanels {
  int64_t out_dim = 0;
  int64_t in_dim = 0;
  int64_t num_panels = 0;
  Buffer<float> weights;
  Buffer<float> bias;
};

PackedPanels pack_panels(const float* weight, const float* bias, int64_t out_dim, int64_t in_dim);

/// One product with a packed weight; as PackedMatrix::multiply.
template <class Panels>
struct ProductWith {
  const Panels* panels = nullptr;
  int64_t rows = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  Activation activation = Activation::kNone;
  bool accumulate = false;
  Upcoming upcoming = {};
};

/// Hands out upcoming memory, a piece for each tile of a product. A tile asks for a line of it with
/// every step of its loop, so that requests and arithmetic share the time.
class UpcomingPieces {
 public:
  /// Pieces of `bytes` bytes. A block is covered by whole pieces, the last two of which may overlap;
  /// blocks that are smaller than a piece are left out.
  UpcomingPieces(const Upcoming& upcoming, int64_t bytes)
      : upcoming_(upcoming.bytes < bytes ? Upcoming{} : upcoming), piece_(bytes) {}

  /// The next piece, or null.
  const char* next() {
    if (block_ >= upcoming_.count) return nullptr;
    const int64_t offset = std::min(offset_, upcoming_.bytes - piece_);
    const char* piece = reinterpret_cast<const char*>(upcoming_.blocks[block_]) + offset;
    offset_ += piece_;
    if (offset_ >= upcoming_.bytes) {
      offset_ = 0;
      ++block_;
    }
    return piece;
  }

 private:
  const Upcoming upcoming_;
  const int64_t piece_;
  int64_t block_ = 0;
  int64_t offset_ = 0;
};

/// Bytes of upcoming memory that a tile asks for: a line for each input.
inline int64_t upcoming_bytes(int64_t depth) { return 64 * depth; }

/// Whether a product is worth sharing among threads. Below five rows or so it takes the time of
/// reading its weights, beyond that more for each row, about alike in every format; waking threads
/// and waiting for them costs the time of a hundred KiB, and far more where a CPU is busy otherwise.
inline bool worth_sharing(int64_t rows, int64_t weight_bytes) {
  constexpr double kFreeRows = 5;
  constexpr double kMinBytes = 640 << 10;
  const double passes = std::max(1.0, static_cast<double>(rows) / kFreeRows);
  return passes * static_cast<double>(weight_bytes) >= kMinBytes;
}

using PanelProduct = ProductWith<PackedPanels>;

void multiply_panels(const PanelProduct& product, ThreadPool* pool) noexcept;

}  // namespace tarn::kernels
