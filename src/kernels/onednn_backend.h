#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/threads.h"
#include "kernels/activation.h"

namespace tarn::kernels {

/// A weight in oneDNN's layout; multiply is that of PackedMatrix.
class OneDnnMatrix {
 public:
  virtual ~OneDnnMatrix() = default;
  virtual int64_t size_bytes() const = 0;
  virtual void multiply(int64_t rows, const float* x, int64_t x_stride, float* out,
                        int64_t out_stride, Activation activation, bool accumulate,
                        ThreadPool* pool) const noexcept = 0;
};

/// What the program that links oneDNN lends to the kernels, which do not link it: the training
/// program has libtorch's own oneDNN in its process.
struct OneDnnBackend {
  std::string (*version)() = nullptr;
  std::unique_ptr<OneDnnMatrix> (*pack)(const float* weight, const float* bias, int64_t out_dim,
                                        int64_t in_dim) = nullptr;
};

/// Makes GemmBackend::kOneDnn available; `backend` outlives every use. Call it once, before any
/// matrix is packed.
void set_onednn_backend(const OneDnnBackend* backend);

}  // namespace tarn::kernels
