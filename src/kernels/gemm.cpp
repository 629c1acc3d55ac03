#include "kernels/gemm.h"

#include <utility>

#include "base/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/onednn_backend.h"

namespace tarn::kernels {
namespace {

const OneDnnBackend* installed_onednn = nullptr;

}  // namespace

void set_onednn_backend(const OneDnnBackend* backend) { installed_onednn = backend; }

std::string onednn_version() {
  return installed_onednn != nullptr ? installed_onednn->version() : "none";
}

struct PackedMatrix::Impl {
  PackedPanels panels;                   // kPacked
  std::unique_ptr<OneDnnMatrix> onednn;  // kOneDnn
  int64_t out_dim = 0;
  int64_t in_dim = 0;
};

PackedMatrix::PackedMatrix() : impl_(std::make_unique<Impl>()) {}
PackedMatrix::~PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;

PackedMatrix PackedMatrix::pack(const float* weight, const float* bias, int64_t out_dim,
                                int64_t in_dim, GemmBackend backend) {
  TARN_CHECK(out_dim >= 0 && in_dim >= 0);
  PackedMatrix matrix;
  matrix.impl_->out_dim = out_dim;
  matrix.impl_->in_dim = in_dim;
  if (backend == GemmBackend::kOneDnn) {
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
  return impl_->onednn != nullptr
             ? impl_->onednn->size_bytes()
             : impl_->panels.weights.size_bytes() + impl_->panels.bias.size_bytes();
}

void PackedMatrix::multiply(int64_t rows, const float* x, int64_t x_stride, float* out,
                            int64_t out_stride, Activation activation, bool accumulate,
                            ThreadPool* pool) const noexcept {
  TARN_DCHECK(!accumulate || activation == Activation::kNone);
  if (impl_->onednn != nullptr) {
    impl_->onednn->multiply(rows, x, x_stride, out, out_stride, activation, accumulate, pool);
    return;
  }
  multiply_panels({.panels = &impl_->panels,
                   .rows = rows,
                   .x = x,
                   .x_stride = x_stride,
                   .out = out,
                   .out_stride = out_stride,
                   .activation = activation,
                   .accumulate = accumulate},
                  pool);
}

}  // namespace tarn::kernels
