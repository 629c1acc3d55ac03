#include "kernels/activation.h"

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels::HWY_NAMESPACE {

void apply_activation_impl(Activation activation, int64_t size, float* x) {
  activate_block(activation, 1, size, x, size);
}

}  // namespace tarn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {

HWY_EXPORT(apply_activation_impl);

void apply_activation(Activation activation, int64_t size, float* x) noexcept {
  HWY_DYNAMIC_DISPATCH(apply_activation_impl)(activation, size, x);
}

}  // namespace tarn::kernels
#endif
