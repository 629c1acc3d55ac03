#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/threads.h"
#include "kernels/activation.h"

namespace tarn::kernels {

/// How a packed product is computed. Both give out = x·Wᵀ + bias.
enum class GemmBackend : uint8_t {
  kPacked,  ///< own panels: each element is one fused-multiply-add chain over k in order, so a
            ///< row's bits depend neither on the other rows, nor on threads, nor on vector width
  kOneDnn,  ///< oneDNN matmul: bits may depend on the number of rows
};

/// How weights are kept.
enum class WeightFormat : uint8_t {
  kF32,
  kBF16,  ///< rounded to bf16; inputs are rounded to bf16 too, sums are f32
  kInt8,  ///< 8-bit integers with a scale per output; inputs are quantised row by row (absolute
          ///< maximum to 127), sums are exact integers
};

/// Choices of packing. Reduced formats are computed by kPacked alone.
struct PackOptions {
  GemmBackend backend = GemmBackend::kPacked;
  WeightFormat format = WeightFormat::kF32;
};

/// oneDNN's version ("2.6.3"), or "none" when this build has no oneDNN.
std::string onednn_version();

/// Memory that will be needed soon: `count` blocks of `bytes` each.
struct Upcoming {
  const float* const* blocks = nullptr;
  int64_t count = 0;
  int64_t bytes = 0;
};

/// A weight [out_dim, in_dim] (row-major, as torch's Linear) and an optional bias [out_dim],
/// packed once for products with many inputs. Immutable after construction; threads: safe.
class PackedMatrix {
 public:
  PackedMatrix();
  ~PackedMatrix();
  PackedMatrix(PackedMatrix&&) noexcept;
  PackedMatrix& operator=(PackedMatrix&&) noexcept;

  /// Copies `weight` and `bias` (null: none) into the layout that `options` ask for. With a reduced
  /// format a row's bits depend on that row and the kind of CPU alone.
  static PackedMatrix pack(const float* weight, const float* bias, int64_t out_dim, int64_t in_dim,
                           const PackOptions& options = {});

  int64_t out_dim() const;
  int64_t in_dim() const;
  int64_t size_bytes() const;  ///< memory held

  /// out = f(x·Wᵀ + bias), or out += x·Wᵀ + bias when `accumulate` (then f must be kNone).
  /// x [rows, in_dim], out [rows, out_dim], row-strided, not aliasing. Any rows ≥ 0.
  /// A product that runs on the caller's thread alone also asks for `upcoming`, in order and as far
  /// as it hides behind the arithmetic: kPacked, 4 rows or more, 2·rows·out_dim·in_dim/12 bytes.
  void multiply(int64_t rows, const float* x, int64_t x_stride, float* out, int64_t out_stride,
                Activation activation, bool accumulate, ThreadPool* pool,
                const Upcoming& upcoming = {}) const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tarn::kernels
