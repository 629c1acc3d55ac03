#include <array>
#include <utility>

#include "mixers/common/operator_rows.h"
#include "mixers/common/stage_call.h"
#include "mixers/layer.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::bidirectional {

extern const MixerDef kDef;

namespace {

using kernels::Heads;
using kernels::Sequences;

constexpr int64_t kDirections = 2;
constexpr std::array<const char*, kDirections> kNames = {"forward", "reverse"};

struct Config final : MixerConfig {
  int64_t model_dim = 0;
  ConfiguredMixer inner;

  OpShape inner_shape() const { return inner.def->op_shape(*inner.config); }
};

const Config& config_of(const MixerConfig* config) { return static_cast<const Config&>(*config); }

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  const Json* inner = reader.required("mixer");
  TARN_RETURN_IF_ERROR(reader.finish());
  const std::string inside = reader.path("mixer");
  TARN_ASSIGN(config->inner, parse_mixer(*inner, model_dim, inside));
  const MixerDef& def = *config->inner.def;
  const std::string name = std::string("mixer \"") + def.name + "\" ";
  if (!has_operator(def)) {
    return invalid_argument(name + "has no operator that could read a sequence from its end",
                            inside);
  }
  if (def.state_specs(*config->inner.config).empty()) {
    return invalid_argument(name + "is not causal: each of its outputs sees both sides already",
                            inside);
  }
  const LayerRows rows = layer_rows(def, *config->inner.config);
  if (rows.received > 0 || rows.handed_on > 0) {
    return invalid_argument(name + "exchanges rows with other layers, wanted one that does not",
                            inside);
  }
  const size_t inputs = config->inner_shape().inputs.size();
  if (kDirections * inputs > kMaxStageInputs) {
    return invalid_argument(name + "has an operator of " + std::to_string(inputs) +
                                " inputs, at most " +
                                std::to_string(kMaxStageInputs / kDirections) + " are possible",
                            inside);
  }
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

std::string direction_name(int64_t direction, const std::string& name) {
  return std::string(kNames[static_cast<size_t>(direction)]) + "." + name;
}

OpShape op_shape(const MixerConfig& base) {
  OpShape shape = config_of(&base).inner_shape();
  const OpShape inner = shape;
  shape.inputs.clear();
  shape.params.clear();
  for (int64_t direction = 0; direction < kDirections; ++direction) {
    for (OpInput input : inner.inputs) {
      input.name = direction_name(direction, input.name);
      shape.inputs.push_back(std::move(input));
    }
    for (ParamSpec param : inner.params) {
      param.name = direction_name(direction, param.name);
      shape.params.push_back(std::move(param));
    }
  }
  shape.out_heads *= kDirections;
  shape.saved_per_row *= kDirections;
  return shape;
}

std::vector<StateSpec> no_states(const MixerConfig&) { return {}; }

/// What `prepare` makes: one thing per direction.
using Prepared = std::array<const void*, kDirections>;

/// The inner operator's call of one direction: its half of the inputs, parameters, output columns and
/// saved values.
template <class T>
OpArgs<T> direction_args(const OpArgs<T>& args, int64_t direction) {
  const Config& config = config_of(args.config);
  const OpShape shape = config.inner_shape();
  const auto half = static_cast<size_t>(direction);
  OpArgs<T> inner = args;
  inner.config = config.inner.config.get();
  inner.inputs = args.inputs.subspan(half * shape.inputs.size(), shape.inputs.size());
  inner.params = args.params.subspan(half * shape.params.size(), shape.params.size());
  inner.out.data += direction * shape.out_heads * args.out.head_stride;
  if (args.saved != nullptr) {
    inner.saved += direction * spanned_rows(args.sequences) * shape.saved_per_row;
  }
  inner.prepared =
      args.prepared == nullptr ? nullptr : (*static_cast<const Prepared*>(args.prepared))[half];
  inner.state = {};
  return inner;
}

void recurrent(const OpArgs<double>& args) {
  for (int64_t direction = 0; direction < kDirections; ++direction) {
    config_of(args.config).inner.def->recurrent(direction_args(args, direction));
  }
}

void whole(const OpArgs<float>& args) noexcept {
  for (int64_t direction = 0; direction < kDirections; ++direction) {
    config_of(args.config).inner.def->chunk(direction_args(args, direction));
  }
}

void backward(const OpBackwardArgs& args) noexcept {
  const Config& config = config_of(args.forward.config);
  const OpShape shape = config.inner_shape();
  for (int64_t direction = 0; direction < kDirections; ++direction) {
    const auto half = static_cast<size_t>(direction);
    OpBackwardArgs inner;
    inner.forward = direction_args(args.forward, direction);
    inner.dout = args.dout;
    inner.dout.data += direction * shape.out_heads * args.dout.head_stride;
    inner.dinputs = args.dinputs.subspan(half * shape.inputs.size(), shape.inputs.size());
    inner.dparams = args.dparams.subspan(half * shape.params.size(), shape.params.size());
    config.inner.def->backward(inner);
  }
}

const void* prepare(const MixerConfig& base, std::span<const float* const> params, DType format,
                    ThreadPool* pool, Arena& arena) noexcept {
  const Config& config = config_of(&base);
  if (config.inner.def->prepare == nullptr) return nullptr;
  auto* prepared = arena.alloc<Prepared>(1);
  const size_t count = params.size() / kDirections;
  for (size_t half = 0; half < kDirections; ++half) {
    (*prepared)[half] = config.inner.def->prepare(
        *config.inner.config, params.subspan(half * count, count), format, pool, arena);
  }
  return prepared;
}

double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const ConfiguredMixer& inner = config_of(&base).inner;
  return static_cast<double>(kDirections) * inner.def->flops(*inner.config, pass, tokens);
}

/// Copies the rows of every sequence in reverse order.
template <class T>
void reverse_rows(const Sequences& sequences, int64_t width, Heads<const T> from, Heads<T> to) {
  for (int64_t i = 0; i < sequences.count; ++i) {
    const int64_t first = sequences.begin[i];
    const int64_t last = first + sequences.length[i] - 1;
    for (int64_t row = first; row <= last; ++row) {
      std::copy_n(from.at(first + last - row, 0), width, to.at(row, 0));
    }
  }
}

template <class T>
void copy_rows(int64_t rows, int64_t width, Heads<const T> from, Heads<T> to) {
  for (int64_t row = 0; row < rows; ++row) std::copy_n(from.at(row, 0), width, to.at(row, 0));
}

/// The inputs side by side, the last one with every sequence from its end.
template <class T>
void turn_forward(const StageArgs<T>& args) {
  const std::vector<Slice>& slices = args.stage->inputs;
  Heads<T> out = args.out;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (i + 1 == slices.size()) {
      reverse_rows(args.sequences, slices[i].width(), args.inputs[i], out);
    } else {
      copy_rows(packed_rows(args.sequences), slices[i].width(), args.inputs[i], out);
    }
    out.data += slices[i].width();
  }
}

void turn_forward_f32(const StageArgs<float>& args) noexcept { turn_forward(args); }

void turn_backward(const StageGradientArgs& args) noexcept {
  const std::vector<Slice>& slices = args.forward.stage->inputs;
  const Sequences& sequences = args.forward.sequences;
  Heads<const float> dout = args.dout;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (i + 1 == slices.size()) {
      reverse_rows(sequences, slices[i].width(), dout, args.dinputs[i]);
    } else {
      copy_rows(packed_rows(sequences), slices[i].width(), dout, args.dinputs[i]);
    }
    dout.data += slices[i].width();
  }
}

constexpr StageDef kTurn{"turn", false, turn_forward_f32, turn_forward<double>, turn_backward};

Slice turn_last(LayerBuilder& builder, std::vector<Slice> inputs) {
  int64_t width = 0;
  for (const Slice& input : inputs) width += input.width();
  return builder.stage(kTurn, std::move(inputs), 1, width);
}

/// The inner layer's stages in one direction, part by part: where its values lie in the new layer.
class Direction {
 public:
  Direction(const LayerProgram& program, int64_t direction, const Slice& x)
      : program_(program), prefix_(direction_name(direction, "")), values_(program.widths.size()) {
    values_[0] = x;
  }

  std::vector<Slice> inputs_of(const Stage& stage) const {
    std::vector<Slice> inputs;
    for (Slice input : stage.inputs) {
      const Slice& place = values_[input.value];
      input.value = place.value;
      input.column += place.column;
      inputs.push_back(input);
    }
    return inputs;
  }

  void copy(LayerBuilder& builder, const Stage& stage) {
    place(stage, builder.copy(program_, stage, inputs_of(stage), prefix_));
  }

  void place(const Stage& stage, const Slice& columns) { values_[stage.out.value] = columns; }

 private:
  const LayerProgram& program_;
  std::string prefix_;
  std::vector<Slice> values_;
};

LayerProgram layer(const MixerConfig& base) {
  const Config& config = config_of(&base);
  const LayerProgram inner = config.inner.def->layer(*config.inner.config);
  LayerBuilder builder(op_shape(base), {}, config.model_dim);
  const Slice turned = turn_last(builder, {builder.x()});
  std::array<Direction, kDirections> directions = {Direction(inner, 0, builder.x()),
                                                   Direction(inner, 1, turned)};
  for (size_t i = 0; i + 1 < inner.stages.size(); ++i) {
    const Stage& stage = inner.stages[i];
    if (stage.kind != Stage::Kind::kOperator) {
      for (Direction& direction : directions) direction.copy(builder, stage);
      continue;
    }
    std::vector<Slice> inputs;
    for (const Direction& direction : directions) {
      for (const Slice& input : direction.inputs_of(stage)) inputs.push_back(input);
    }
    const Slice out = builder.op(std::move(inputs));
    for (int64_t d = 0; d < kDirections; ++d) {
      directions[static_cast<size_t>(d)].place(
          stage, out.part(d * stage.out.width(), stage.out.heads, stage.out.dim));
    }
  }
  const Stage& last = inner.stages.back();
  const Slice joined =
      turn_last(builder, {directions[0].inputs_of(last)[0], directions[1].inputs_of(last)[0]});
  return builder.finish("out", joined, {.bias = last.param_count == 2});
}

std::vector<std::string> example_configs() {
  return {
      R"({"mixer": {"name": "gated_delta_rule", "num_heads": 2, "key_dim": 16, "value_dim": 16}})",
      R"({"mixer": {"name": "linear_attention", "num_heads": 2, "key_dim": 5, "value_dim": 3}})",
      R"({"mixer": {"name": "softmax_attention", "num_heads": 2, "key_dim": 6}})",
      R"({"mixer": {"name": "lstm", "hidden_dim": 9}})",
      R"({"mixer": {"name": "lsh_attention", "num_heads": 2, "key_dim": 5, "num_buckets": 4,
          "rounds": 2, "chunk": 8}})"};
}

}  // namespace

const MixerDef kDef{
    .name = "bidirectional",
    .summary = "any causal mechanism twice, from both ends of the sequence",
    .recurrence = "y = W [a(x) | reverse(b(reverse(x)))], a and b two copies of a mechanism",
    .source = "Schuster 1997, Bidirectional recurrent neural networks, section 3",
    .state_formula = "none: whole sequences only",
    .bounded_state = true,
    .read_config = read_config,
    .state_specs = no_states,
    .op_shape = op_shape,
    .recurrent = recurrent,
    .parallel = whole,
    .chunk = whole,
    .step = nullptr,
    .backward = backward,
    .flops = flops,
    .prepare = prepare,
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::bidirectional
