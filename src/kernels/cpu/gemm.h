#pragma once

#include <cstdint>

#include "base/buffer.h"
#include "base/threads.h"
#include "kernels/activation.h"

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
};

using PanelProduct = ProductWith<PackedPanels>;

void multiply_panels(const PanelProduct& product, ThreadPool* pool) noexcept;

}  // namespace tarn::kernels
