#include "mixers/common/recurrent_layer.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::lstm {

extern const MixerDef kDef;

namespace {

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  return read_recurrent(kernels::RecurrentCell::kLstm, reader, model_dim);
}

std::vector<std::string> example_configs() {
  return {R"({"hidden_dim": 64})", R"({"hidden_dim": 5})", R"({"hidden_dim": 35})",
          R"({"hidden_dim": 19, "bidirectional": true})"};
}

}  // namespace

const MixerDef kDef{
    .name = "lstm",
    .summary =
        "long short-term memory: a cell state with input, forget and output gates; or in both "
        "directions",
    .recurrence = "c = f c + i g; h = o tanh(c); i, f, o = sigmoid(x + W h), g = tanh(x + W h)",
    .source = "Hochreiter 1997, with forget gates (Gers 2000); equations as in torch.nn.LSTM",
    .state_formula = "8*E",
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

}  // namespace tarn::mixers::lstm
