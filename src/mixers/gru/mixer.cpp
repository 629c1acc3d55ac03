#include "mixers/common/recurrent_layer.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::gru {

extern const MixerDef kDef;

namespace {

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  return read_recurrent(kernels::RecurrentCell::kGru, reader, model_dim);
}

std::vector<std::string> example_configs() {
  return {R"({"hidden_dim": 64})", R"({"hidden_dim": 5})", R"({"hidden_dim": 35})",
          R"({"hidden_dim": 19, "bidirectional": true})"};
}

}  // namespace

const MixerDef kDef{
    .name = "gru",
    .summary =
        "gated recurrent unit: a hidden state with reset and update gates; or in both directions",
    .recurrence = "h = n + z (h - n); r, z = sigmoid(x + W h), n = tanh(x + r (W h))",
    .source = "Cho 2014, arXiv 1406.1078; equations as in torch.nn.GRU",
    .state_formula = "4*E",
    .bounded_state = true,
    .read_config = read_config,
    .state_specs = recurrent_states,
    .op_shape = recurrent_shape,
    .recurrent = recurrent_loop,
    .parallel = recurrent_chunk,
    .chunk = recurrent_chunk,
    .step = recurrent_step,
    .backward = recurrent_backward,
    .flops = recurrent_flops,
    .prepare = recurrent_prepare,
    .prepared_is_all = true,
    .layer = recurrent_layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::gru
