#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "mixers/common/layer_training.h"
#include "mixers/common/torch_mixer.h"

namespace tarn::mixers {
namespace {

using kernels::Heads;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The sequences of rows x [B, T, …]: a dense batch, or packed ones of the given lengths.
struct RowSequences {
  explicit RowSequences(const at::Tensor& x, const std::vector<int64_t>* lengths = nullptr) {
    if (lengths == nullptr) {
      length.assign(static_cast<size_t>(x.size(0)), x.size(1));
    } else {
      length = *lengths;
    }
    int64_t rows = 0;
    for (const int64_t count : length) {
      begin.push_back(rows);
      rows += count;
    }
    TORCH_CHECK(rows == x.size(0) * x.size(1), "sequences have ", rows, " rows, x has ", x.sizes());
  }
  kernels::Sequences view() const {
    return {static_cast<int64_t>(begin.size()), begin.data(), length.data()};
  }
  std::vector<int64_t> begin;
  std::vector<int64_t> length;
};

/// What a node needs besides tensors; kept for the backward pass.
template <class T>
struct Kept final : torch::CustomClassHolder {
  explicit Kept(T v) : value(std::move(v)) {}
  T value;
};

template <class T>
void keep(AutogradContext* context, T value) {
  context->saved_data["call"] =
      c10::IValue::make_capsule(c10::make_intrusive<Kept<T>>(std::move(value)));
}

template <class T>
c10::intrusive_ptr<Kept<T>> kept_by(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Kept<T>>(context->saved_data["call"].toCapsule());
}

struct OperatorCall {
  const MixerDef* def = nullptr;
  std::shared_ptr<const MixerConfig> config;
  ThreadPool* pool = nullptr;
  OpShape shape;

  /// The inputs of OpShape as column slices of rows of `width` values.
  template <class T>
  std::vector<Heads<T>> slices(T* data, int64_t width) const {
    std::vector<Heads<T>> result;
    int64_t column = 0;
    for (const OpInput& input : shape.inputs) {
      result.push_back({data + column, width, input.dim});
      column += input.heads * input.dim;
    }
    return result;
  }
};

/// Everything one pass of the operator points to.
struct OperatorPass {
  OperatorPass(const OperatorCall& call, const at::Tensor& inputs, at::TensorList parameters,
               const at::Tensor& out, const at::Tensor& saved)
      : sequences(inputs),
        heads(call.slices<const float>(inputs.const_data_ptr<float>(), inputs.size(2))) {
    for (const at::Tensor& parameter : parameters) {
      params.push_back(parameter.const_data_ptr<float>());
    }
    args.config = call.config.get();
    args.sequences = sequences.view();
    args.inputs = heads;
    args.params = params;
    args.out = {out.mutable_data_ptr<float>(), out.size(2), call.shape.out_dim};
    args.saved = saved.mutable_data_ptr<float>();
    args.pool = call.pool;
    args.arena = &training_arena();
  }
  OperatorPass(const OperatorPass&) = delete;
  OperatorPass& operator=(const OperatorPass&) = delete;

  RowSequences sequences;
  std::vector<Heads<const float>> heads;
  std::vector<const float*> params;
  OpArgs<float> args;
};

struct OperatorFunction : torch::autograd::Function<OperatorFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inputs,
                            at::TensorList parameters, const OperatorCall& call) {
    const int64_t batch = inputs.size(0);
    const int64_t tokens = inputs.size(1);
    at::Tensor out =
        at::empty({batch, tokens, call.shape.out_heads * call.shape.out_dim}, inputs.options());
    const at::Tensor saved =
        at::empty({batch * tokens, call.shape.saved_per_row}, inputs.options());
    const OperatorPass pass(call, inputs, parameters, out, saved);
    whole_form(*call.def, *call.config)(pass.args);
    variable_list kept = {inputs, out, saved};
    kept.insert(kept.end(), parameters.begin(), parameters.end());
    context->save_for_backward(kept);
    keep(context, call);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder = kept_by<OperatorCall>(context);
    const OperatorCall& call = holder->value;
    const variable_list kept = context->get_saved_variables();
    const at::TensorList parameters = at::TensorList(kept).slice(3);
    const at::Tensor dout = gradients[0].contiguous();
    const at::Tensor dinputs = at::empty(kept[0].sizes(), kept[0].options());
    const OperatorPass pass(call, kept[0], parameters, kept[1], kept[2]);
    const auto dheads = call.slices<float>(dinputs.mutable_data_ptr<float>(), dinputs.size(2));
    variable_list result = {dinputs};
    std::vector<float*> dparams;
    for (const at::Tensor& parameter : parameters) {
      result.push_back(at::zeros_like(parameter));
      dparams.push_back(result.back().mutable_data_ptr<float>());
    }
    OpBackwardArgs args;
    args.forward = pass.args;
    args.dout = {dout.const_data_ptr<float>(), dout.size(2), call.shape.out_dim};
    args.dinputs = dheads;
    args.dparams = dparams;
    call.def->backward(args);
    result.emplace_back();  // of `call`
    return result;
  }
};

struct LayerCall {
  const MixerDef* def = nullptr;
  std::shared_ptr<const MixerConfig> config;
  std::shared_ptr<const LayerProgram> program;
  std::shared_ptr<const std::vector<int64_t>> lengths;  ///< null: dense
  std::vector<const float*> params;
  std::vector<float*> dparams;
  DType precision = DType::kF32;
  ThreadPool* pool = nullptr;
  PartTimes* times = nullptr;

  LayerTraining training(const RowSequences& sequences, const at::Tensor& x,
                         const at::Tensor& values) const {
    LayerTraining result;
    result.def = def;
    result.config = config.get();
    result.program = program.get();
    result.sequences = sequences.view();
    result.params = params;
    result.x = x.const_data_ptr<float>();
    result.kept = values.mutable_data_ptr<float>();
    result.precision = precision;
    result.pool = pool;
    result.arena = &training_arena();
    result.times = times;
    return result;
  }
};

struct LayerFunction : torch::autograd::Function<LayerFunction> {
  /// No `residual`: it is x itself. Returns y, and what is handed on if the layer does that.
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const std::optional<at::Tensor>& residual,
                               const std::optional<at::Tensor>& received, const LayerCall& call) {
    const RowSequences sequences(x, call.lengths.get());
    at::Tensor y = at::empty(x.sizes(), x.options());
    const at::Tensor values =
        at::empty({x.size(0) * x.size(1), layer_kept_columns(*call.program)}, x.options());
    LayerTraining training = call.training(sequences, x, values);
    training.residual = (residual ? *residual : x).const_data_ptr<float>();
    training.y = y.mutable_data_ptr<float>();
    variable_list kept = {x, values};
    variable_list results = {y};
    if (received) {
      kept.push_back(*received);
      training.received = received->const_data_ptr<float>();
    }
    if (const int64_t width = call.program->handed_on.width(); width > 0) {
      results.push_back(at::empty({x.size(0), x.size(1), width}, x.options()));
      training.handed_on = results[1].mutable_data_ptr<float>();
    }
    layer_forward(training);
    context->save_for_backward(kept);
    context->saved_data["separate"] = residual.has_value();
    keep(context, call);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder = kept_by<LayerCall>(context);
    const LayerCall& call = holder->value;
    const variable_list kept = context->get_saved_variables();
    const bool separate = context->saved_data["separate"].toBool();
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dx = at::empty(kept[0].sizes(), kept[0].options());
    const RowSequences sequences(kept[0], call.lengths.get());
    LayerGradients wanted;
    wanted.dy = dy.const_data_ptr<float>();
    wanted.dx = dx.mutable_data_ptr<float>();
    wanted.residual_is_x = !separate;
    wanted.dparams = call.dparams;
    LayerTraining training = call.training(sequences, kept[0], kept[1]);
    at::Tensor dreceived;
    if (kept.size() > 2) {
      training.received = kept[2].const_data_ptr<float>();
      dreceived = at::empty(kept[2].sizes(), kept[2].options());
      wanted.dreceived = dreceived.mutable_data_ptr<float>();
    }
    at::Tensor dhanded_on;
    if (gradients.size() > 1 && gradients[1].defined()) {
      dhanded_on = gradients[1].contiguous();
      wanted.dhanded_on = dhanded_on.const_data_ptr<float>();
    }
    layer_backward(training, wanted);
    return {dx, separate ? dy : at::Tensor(), dreceived, at::Tensor()};
  }
};

}  // namespace

Arena& training_arena() {
  static thread_local Arena instance;
  return instance;
}

at::Tensor torch_operator(const MixerDef& def, std::shared_ptr<const MixerConfig> config,
                          const at::Tensor& inputs, at::TensorList parameters, ThreadPool* pool) {
  OperatorCall call{&def, nullptr, pool, def.op_shape(*config)};
  call.config = std::move(config);
  int64_t columns = 0;
  for (const OpInput& input : call.shape.inputs) columns += input.heads * input.dim;
  TORCH_CHECK(inputs.dim() == 3 && inputs.size(2) == columns, def.name,
              ": inputs must be [batch, tokens, ", columns, "], got ", inputs.sizes());
  TORCH_CHECK(inputs.device().is_cpu(), def.name, ": inputs must be on the CPU");
  TORCH_CHECK(def.backward != nullptr, def.name, " has no gradient");
  TORCH_CHECK(parameters.size() == call.shape.params.size(), def.name, " has ",
              call.shape.params.size(), " parameters, got ", parameters.size());
  variable_list converted;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParamSpec& spec = call.shape.params[i];
    TORCH_CHECK(parameters[i].sizes() == at::IntArrayRef(spec.shape), def.name, ": parameter ",
                spec.name, " must be ", spec.shape, ", got ", parameters[i].sizes());
    converted.push_back(parameters[i].to(at::kFloat).contiguous());
  }
  return OperatorFunction::apply(inputs.to(at::kFloat).contiguous(), at::TensorList(converted),
                                 call);
}

TorchLayerResult torch_layer(const MixerDef& def, const TorchLayerArgs& args) {
  TORCH_CHECK(has_gradient(def), def.name, " has no gradient");
  LayerCall call;
  call.def = &def;
  call.config = args.config;
  call.lengths = args.lengths;
  call.program = std::make_shared<const LayerProgram>(def.layer(*args.config));
  for (const at::Tensor& parameter : args.parameters) {
    TORCH_CHECK(parameter.grad().defined(), def.name, ": a parameter has no gradient");
    call.params.push_back(parameter.const_data_ptr<float>());
    call.dparams.push_back(parameter.grad().mutable_data_ptr<float>());
  }
  call.precision = args.precision;
  call.pool = args.pool;
  call.times = args.times;
  const auto optional = [](const at::Tensor& tensor, bool given) {
    return given ? std::optional(tensor) : std::nullopt;
  };
  const variable_list results =
      LayerFunction::apply(args.x, optional(args.residual, !args.residual.is_same(args.x)),
                           optional(args.received, call.program->received != 0), call);
  return {results[0], results.size() > 1 ? results[1] : at::Tensor()};
}

TORCH_LIBRARY_FRAGMENT(tarn, library) {
  for (const MixerDef* def : all_mixers()) {
    if (!has_operator(*def)) continue;
    const std::string schema =
        "chunk_" + std::string(def->name) +
        "(Tensor inputs, Tensor[] parameters, str config, int model_dim) -> Tensor";
    library.def(schema.c_str(), [def](const at::Tensor& inputs, at::TensorList parameters,
                                      const std::string& config, int64_t model_dim) {
      const Result<Json> json = parse_json(config, "config");
      TORCH_CHECK(json.ok(), json.error().to_string());
      const auto parsed = def->parse_config(*json, model_dim, "config");
      TORCH_CHECK(parsed.ok(), parsed.error().to_string());
      return torch_operator(*def, *parsed, inputs, parameters, nullptr);
    });
  }
}

}  // namespace tarn::mixers
