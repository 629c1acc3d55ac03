#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "base/arena.h"
#include "mixers/common/torch_mixer.h"

namespace tarn::mixers {
namespace {

using kernels::Heads;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What a call of the operator needs besides tensors; kept for the backward pass.
struct Call final : torch::CustomClassHolder {
  const MixerDef* def = nullptr;
  std::shared_ptr<const MixerConfig> config;
  ThreadPool* pool = nullptr;
  OpShape shape;
};

// Scratch of the kernels; kept between calls, so a steady training loop allocates none.
Arena& arena() {
  static thread_local Arena instance;
  return instance;
}

/// The inputs of OpShape as column slices of rows of `width` values.
template <class T>
std::vector<Heads<T>> slices(const OpShape& shape, T* data, int64_t width) {
  std::vector<Heads<T>> result;
  int64_t column = 0;
  for (const OpInput& input : shape.inputs) {
    result.push_back({data + column, width, input.dim});
    column += input.heads * input.dim;
  }
  return result;
}

int64_t input_columns(const OpShape& shape) {
  int64_t columns = 0;
  for (const OpInput& input : shape.inputs) columns += input.heads * input.dim;
  return columns;
}

/// A dense [B, T] batch.
struct DenseSequences {
  explicit DenseSequences(int64_t batch, int64_t tokens) : begin(batch), length(batch, tokens) {
    for (int64_t i = 0; i < batch; ++i) begin[static_cast<size_t>(i)] = i * tokens;
  }
  kernels::Sequences view() const {
    return {static_cast<int64_t>(begin.size()), begin.data(), length.data()};
  }
  std::vector<int64_t> begin;
  std::vector<int64_t> length;
};

struct OperatorFunction : torch::autograd::Function<OperatorFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inputs,
                            const c10::intrusive_ptr<Call>& call) {
    const OpShape& shape = call->shape;
    const int64_t batch = inputs.size(0);
    const int64_t tokens = inputs.size(1);
    const int64_t width = inputs.size(2);
    const int64_t out_width = shape.out_heads * shape.out_dim;
    at::Tensor out = at::empty({batch, tokens, out_width}, inputs.options());
    at::Tensor saved = at::empty({batch * tokens, shape.saved_per_row}, inputs.options());
    const DenseSequences sequences(batch, tokens);
    const auto heads = slices<const float>(shape, inputs.const_data_ptr<float>(), width);
    OpArgs<float> args;
    args.config = call->config.get();
    args.sequences = sequences.view();
    args.inputs = heads;
    args.out = {out.mutable_data_ptr<float>(), out_width, shape.out_dim};
    args.saved = saved.mutable_data_ptr<float>();
    args.pool = call->pool;
    args.arena = &arena();
    (call->def->chunk != nullptr ? call->def->chunk : call->def->parallel)(args);
    context->save_for_backward({inputs, out, saved});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list kept = context->get_saved_variables();
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    const at::Tensor& inputs = kept[0];
    const at::Tensor dout = gradients[0].contiguous();
    const int64_t width = inputs.size(2);
    const int64_t out_width = dout.size(2);
    at::Tensor dinputs = at::empty(inputs.sizes(), inputs.options());
    const DenseSequences sequences(inputs.size(0), inputs.size(1));
    const auto heads = slices<const float>(call->shape, inputs.const_data_ptr<float>(), width);
    const auto dheads = slices<float>(call->shape, dinputs.mutable_data_ptr<float>(), width);
    at::Tensor out = kept[1];
    at::Tensor saved = kept[2];
    OpBackwardArgs args;
    args.forward.config = call->config.get();
    args.forward.sequences = sequences.view();
    args.forward.inputs = heads;
    args.forward.out = {out.data_ptr<float>(), out_width, call->shape.out_dim};
    args.forward.saved = saved.data_ptr<float>();
    args.forward.pool = call->pool;
    args.forward.arena = &arena();
    args.dout = {dout.const_data_ptr<float>(), out_width, call->shape.out_dim};
    args.dinputs = dheads;
    call->def->backward(args);
    return {dinputs, at::Tensor()};
  }
};

}  // namespace

at::Tensor torch_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        at::ScalarType precision) {
  return at::linear(x.to(precision), weight.to(precision), bias.to(precision));
}

at::Tensor torch_operator(const MixerDef& def, std::shared_ptr<const MixerConfig> config,
                          const at::Tensor& inputs, ThreadPool* pool) {
  auto call = c10::make_intrusive<Call>();
  call->def = &def;
  call->pool = pool;
  call->shape = def.op_shape(*config);
  call->config = std::move(config);
  const int64_t columns = input_columns(call->shape);
  TORCH_CHECK(inputs.dim() == 3 && inputs.size(2) == columns, def.name,
              ": inputs must be [batch, tokens, ", columns, "], got ", inputs.sizes());
  TORCH_CHECK(inputs.device().is_cpu(), def.name, ": inputs must be on the CPU");
  TORCH_CHECK(def.backward != nullptr, def.name, " has no gradient");
  return OperatorFunction::apply(inputs.to(at::kFloat).contiguous(), call);
}

at::Tensor torch_operator_from_text(const MixerDef& def, const at::Tensor& inputs,
                                    const std::string& config, int64_t model_dim) {
  const Result<Json> json = parse_json(config, "config");
  TORCH_CHECK(json.ok(), json.error().to_string());
  const auto parsed = def.parse_config(*json, model_dim, "config");
  TORCH_CHECK(parsed.ok(), parsed.error().to_string());
  return torch_operator(def, *parsed, inputs, nullptr);
}

at::Tensor torch_projected_layer(const TorchMixerDef& mixer, const TorchLayerArgs& args) {
  const std::span<const at::Tensor> p = args.parameters;
  const at::Tensor inputs = torch_linear(args.x, p[0], p[1], args.precision);
  const at::Tensor out = torch_operator(*mixer.def, args.config, inputs, args.pool);
  return torch_linear(out, p[2], p[3], args.precision);
}

}  // namespace tarn::mixers
