#include <torch/library.h>

#include "mixers/common/torch_mixer.h"

namespace tarn::mixers::linear_attention {

extern const MixerDef kDef;
extern const TorchMixerDef kTorchDef;

const TorchMixerDef kTorchDef{&kDef, torch_projected_layer};

TORCH_LIBRARY_FRAGMENT(tarn, library) {
  library.def("chunk_linear_attention(Tensor inputs, str config, int model_dim) -> Tensor",
              [](const at::Tensor& inputs, const std::string& config, int64_t model_dim) {
                return torch_operator_from_text(kDef, inputs, config, model_dim);
              });
}

}  // namespace tarn::mixers::linear_attention
