#include "mixers/common/recurrent_layer.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::gru {

extern const MixerDef kDef;

namespace {

Result<std::shared_ptr<const MixerConfig>> parse_config(const Json& json, int64_t model_dim,
                                                        const std::string& where) {
  return parse_recurrent(kernels::RecurrentCell::kGru, json, model_dim, where);
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
    .parse_config = parse_config,
    .state_specs = recurrent_states,
    .op_shape = recurrent_shape,
    .recurrent = recurrent_loop,
    .parallel = recurrent_chunk,
    .chunk = recurrent_chunk,
    .step = recurrent_step,
    .backward = recurrent_backward,
    .flops = recurrent_flops,
    .prepare = recurrent_prepare,
    .layer = recurrent_layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::gru
