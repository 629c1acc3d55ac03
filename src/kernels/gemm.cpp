#include "kernels/gemm.h"

#include <utility>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/reduced_gemm.h"
#include "kernels/onednn_backend.h"

namespace tarn::kernels {
namespace {

const OneDnnBackend* installed_onednn = nullptr;

const ReducedKernels& reduced_kernels() {
  const ReducedKernels* fast = avx512_reduced_kernels();
  return fast != nullptr ? *fast : generic_reduced_kernels();
}

}  // namespace

void set_onednn_backend(const OneDnnBackend* backend) { installed_onednn = backend; }

std::string onednn_version() {
  return installed_onednn != nullptr ? installed_onednn->version() : "none";
}

struct PackedMatrix::Impl {
  PackedPanels panels;    // kPacked, f32
  ReducedPanels reduced;  // kPacked, other formats
  WeightFormat format = WeightFormat::kF32;
  std::unique_ptr<OneDnnMatrix> onednn;  // kOneDnn
  int64_t out_dim = 0;
  int64_t in_dim = 0;
};

PackedMatrix::PackedMatrix() : impl_(std::make_unique<Impl>()) {}
PackedMatrix::~PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;

PackedMatrix PackedMatrix::pack(const float* weight, const float* bias, int64_t out_dim,
                                int64_t in_dim, const PackOptions& options) {
  TARN_CHECK(out_dim >= 0 && in_dim >= 0);
  PackedMatrix matrix;
  matrix.impl_->out_dim = out_dim;
  matrix.impl_->in_dim = in_dim;
  matrix.impl_->format = options.format;
  if (options.format != WeightFormat::kF32) {
    TARN_CHECK(options.backend == GemmBackend::kPacked);
    matrix.impl_->reduced = pack_reduced(weight, bias, out_dim, in_dim, options.format);
  } else if (options.backend == GemmBackend::kOneDnn) {
    TARN_CHECK(installed_onednn != nullptr);
    matrix.impl_->onednn = installed_onednn->pack(weight, bias, out_dim, in_dim);
  } else {
    matrix.impl_->panels = pack_panels(weight, bias, out_dim, in_dim);
  }
  return matrix;
}

int64_t PackedMatrix::out_dim() const { return impl_->out_dim; }
int64_t PackedMatrix::in_dim() const { return impl_->in_dim; }

int64_t PackedMatrix::size_bytes() const {
  if (impl_->format != WeightFormat::kF32) return impl_->reduced.size_bytes();
  return impl_->onednn != nullptr
             ? impl_->onednn->size_bytes()
             : impl_->panels.weights.size_bytes() + impl_->panels.bias.size_bytes();
}

void PackedMatrix::multiply(int64_t rows, const float* x, int64_t x_stride, float* out,
                            int64_t out_stride, Activation activation, bool accumulate,
                            ThreadPool* pool, const Upcoming& upcoming) const noexcept {
  TARN_DCHECK(!accumulate || activation == Activation::kNone);
  const auto product = [&]<class Panels>(const Panels& panels) {
    return ProductWith<Panels>{&panels,    rows,       x,          x_stride, out,
                               out_stride, activation, accumulate, upcoming};
  };
  if (impl_->format != WeightFormat::kF32) {
    multiply_reduced(reduced_kernels(), product(impl_->reduced), pool);
  } else if (impl_->onednn != nullptr) {
    impl_->onednn->multiply(rows, x, x_stride, out, out_stride, activation, accumulate, pool);
  } else {
    multiply_panels(product(impl_->panels), pool);
  }
}

}  // namespace tarn::kernels
