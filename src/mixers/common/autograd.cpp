#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>
#include <vector>

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
  // Of a whole layer only:
  PartTimes* times = nullptr;
  TorchLinear in, out;

  double flops(OpPass pass, const at::Tensor& inputs) const {
    return static_cast<double>(inputs.size(0)) * def->flops(*config, pass, inputs.size(1));
  }
};

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

/// The operator on `inputs` [B, T, columns]: fills `out` and what backward needs besides.
void run_operator(const Call& call, const at::Tensor& inputs, const at::Tensor& out,
                  const at::Tensor& saved) {
  const DenseSequences sequences(inputs.size(0), inputs.size(1));
  const auto heads =
      slices<const float>(call.shape, inputs.const_data_ptr<float>(), inputs.size(2));
  OpArgs<float> args;
  args.config = call.config.get();
  args.sequences = sequences.view();
  args.inputs = heads;
  args.out = {out.mutable_data_ptr<float>(), out.size(2), call.shape.out_dim};
  args.saved = saved.mutable_data_ptr<float>();
  args.pool = call.pool;
  args.arena = &training_arena();
  (call.def->chunk != nullptr ? call.def->chunk : call.def->parallel)(args);
}

/// Gradient of the inputs, from that of `out`.
at::Tensor run_operator_backward(const Call& call, const at::Tensor& inputs, const at::Tensor& out,
                                 const at::Tensor& saved, const at::Tensor& dout) {
  const int64_t width = inputs.size(2);
  at::Tensor dinputs = at::empty(inputs.sizes(), inputs.options());
  const DenseSequences sequences(inputs.size(0), inputs.size(1));
  const auto heads = slices<const float>(call.shape, inputs.const_data_ptr<float>(), width);
  const auto dheads = slices<float>(call.shape, dinputs.mutable_data_ptr<float>(), width);
  OpBackwardArgs args;
  args.forward.config = call.config.get();
  args.forward.sequences = sequences.view();
  args.forward.inputs = heads;
  args.forward.out = {out.mutable_data_ptr<float>(), out.size(2), call.shape.out_dim};
  args.forward.saved = saved.mutable_data_ptr<float>();
  args.forward.pool = call.pool;
  args.forward.arena = &training_arena();
  args.dout = {dout.const_data_ptr<float>(), dout.size(2), call.shape.out_dim};
  args.dinputs = dheads;
  call.def->backward(args);
  return dinputs;
}

/// Where `out` and the values for backward go.
std::pair<at::Tensor, at::Tensor> operator_outputs(const Call& call, const at::Tensor& inputs) {
  const int64_t batch = inputs.size(0);
  const int64_t tokens = inputs.size(1);
  return {at::empty({batch, tokens, call.shape.out_heads * call.shape.out_dim}, inputs.options()),
          at::empty({batch * tokens, call.shape.saved_per_row}, inputs.options())};
}

c10::intrusive_ptr<Call> call_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
}

struct OperatorFunction : torch::autograd::Function<OperatorFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inputs,
                            const c10::intrusive_ptr<Call>& call) {
    const auto [out, saved] = operator_outputs(*call, inputs);
    run_operator(*call, inputs, out, saved);
    context->save_for_backward({inputs, out, saved});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list kept = context->get_saved_variables();
    const auto call = call_of(context);
    return {run_operator_backward(*call, kept[0], kept[1], kept[2], gradients[0].contiguous()),
            at::Tensor()};
  }
};

/// out = x·Wᵀ + b, plus `addend`; all dense, x [B, T, in].
void apply_linear(const Call& call, const TorchLinear& linear, const at::Tensor& x,
                  const at::Tensor* addend, const at::Tensor& out) {
  const int64_t rows = x.size(0) * x.size(1);
  const PartTimer timer(call.times, "projections", linear.flops(rows), linear.precision);
  ArenaScope scope(training_arena());
  kernels::RowProduct product;
  product.rows = rows;
  product.a = x.const_data_ptr<float>();
  product.a_stride = x.size(2);
  product.bias = linear.bias.const_data_ptr<float>();
  if (addend != nullptr) product.addend = addend->const_data_ptr<float>();
  product.addend_stride = product.out_stride = out.size(2);
  product.out = out.mutable_data_ptr<float>();
  kernels::multiply_rows(linear.pack(call.pool, training_arena()), product, call.pool);
}

/// dx = dy·W, plus `addend`, and the gradient of the parameters.
at::Tensor apply_linear_backward(const Call& call, const TorchLinear& linear, const at::Tensor& x,
                                 const at::Tensor& dy, const at::Tensor* addend) {
  const int64_t rows = x.size(0) * x.size(1);
  const PartTimer timer(call.times, "projections backward", 2.0 * linear.flops(rows),
                        linear.precision);
  at::Tensor dx = at::empty(x.sizes(), x.options());
  ArenaScope scope(training_arena());
  kernels::RowProduct product;
  product.rows = rows;
  product.a = dy.const_data_ptr<float>();
  product.a_stride = dy.size(2);
  if (addend != nullptr) product.addend = addend->const_data_ptr<float>();
  product.addend_stride = product.out_stride = x.size(2);
  product.out = dx.mutable_data_ptr<float>();
  kernels::multiply_rows(linear.pack_for_gradient(call.pool, training_arena()), product, call.pool);
  linear.add_gradient(rows, dy.const_data_ptr<float>(), x.const_data_ptr<float>(), call.pool);
  return dx;
}

/// residual + out(operator(in(x))) as one node. No `residual`: it is x itself.
struct ProjectedLayerFunction : torch::autograd::Function<ProjectedLayerFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& residual,
                            const c10::intrusive_ptr<Call>& call) {
    at::Tensor inputs = at::empty({x.size(0), x.size(1), call->in.weight.size(0)}, x.options());
    apply_linear(*call, call->in, x, nullptr, inputs);
    const auto [out, saved] = operator_outputs(*call, inputs);
    {
      const PartTimer timer(call->times, "operator", call->flops(OpPass::kForward, inputs));
      run_operator(*call, inputs, out, saved);
    }
    at::Tensor y = at::empty(x.sizes(), x.options());
    apply_linear(*call, call->out, out, residual ? &*residual : &x, y);
    context->save_for_backward({x, inputs, out, saved});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->saved_data["separate"] = residual.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list kept = context->get_saved_variables();
    const auto call = call_of(context);
    const bool separate = context->saved_data["separate"].toBool();
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dout = apply_linear_backward(*call, call->out, kept[2], dy, nullptr);
    at::Tensor dinputs;
    {
      const PartTimer timer(call->times, "operator backward",
                            call->flops(OpPass::kBackward, kept[1]));
      dinputs = run_operator_backward(*call, kept[1], kept[2], kept[3], dout);
    }
    const at::Tensor dx =
        apply_linear_backward(*call, call->in, kept[0], dinputs, separate ? nullptr : &dy);
    return {dx, separate ? dy : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Arena& training_arena() {
  static thread_local Arena instance;
  return instance;
}

double TorchLinear::flops(int64_t rows) const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(weight.numel());
}

kernels::PackedOperand TorchLinear::pack(ThreadPool* pool, Arena& arena) const {
  return kernels::pack_operand(precision, kernels::Layout::kTransposed,
                               weight.const_data_ptr<float>(), weight.size(1), weight.size(1),
                               weight.size(0), pool, arena);
}

kernels::PackedOperand TorchLinear::pack_for_gradient(ThreadPool* pool, Arena& arena) const {
  return kernels::pack_operand(precision, kernels::Layout::kPlain, weight.const_data_ptr<float>(),
                               weight.size(1), weight.size(0), weight.size(1), pool, arena);
}

void TorchLinear::add_gradient(int64_t rows, const float* dy, const float* x,
                               ThreadPool* pool) const {
  TORCH_CHECK(weight.grad().defined() && bias.grad().defined(), "a linear map has no gradients");
  kernels::WeightGradient gradient;
  gradient.format = precision;
  gradient.rows = rows;
  gradient.out_dim = gradient.dy_stride = weight.size(0);
  gradient.in_dim = gradient.x_stride = weight.size(1);
  gradient.dy = dy;
  gradient.x = x;
  gradient.dweight = weight.grad().mutable_data_ptr<float>();
  gradient.dbias = bias.grad().mutable_data_ptr<float>();
  kernels::add_weight_gradient(gradient, pool);
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
  TORCH_CHECK(mixer.def->backward != nullptr, mixer.def->name, " has no gradient");
  auto call = c10::make_intrusive<Call>();
  call->def = mixer.def;
  call->config = args.config;
  call->pool = args.pool;
  call->shape = mixer.def->op_shape(*args.config);
  call->times = args.times;
  call->in = {args.parameters[0], args.parameters[1], args.precision};
  call->out = {args.parameters[2], args.parameters[3], args.precision};
  const bool separate = !args.residual.is_same(args.x);
  return ProjectedLayerFunction::apply(
      args.x, separate ? std::optional(args.residual) : std::nullopt, call);
}

}  // namespace tarn::mixers
