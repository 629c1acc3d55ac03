#include <algorithm>
#include <array>

#include "base/buffer.h"
#include "base/check.h"
#include "mixers/common/stage_call.h"
#include "mixers/layer.h"

namespace tarn::mixers {
namespace {

using kernels::Heads;
using kernels::PackedMatrix;

/// Sequences that take a step together: as many rows as one tile of the packed products.
constexpr int64_t kStepRows = 12;

struct LayerWeights final : MixerWeights {
  LayerProgram program;
  std::vector<PackedMatrix> linear;    ///< per linear stage, in order
  std::vector<Buffer<float>> values;   ///< per parameter; empty where a linear map holds it
  std::vector<const float*> pointers;  ///< to `values`
  Arena arena;                         ///< of `prepared`
  const void* prepared = nullptr;      ///< OpArgs::prepared
  int64_t first_state_bytes = 0;       ///< of a sequence; 0: it grows, or there is none
  int64_t size_bytes() const override {
    int64_t bytes = 0;
    for (const PackedMatrix& matrix : linear) bytes += matrix.size_bytes();
    for (const Buffer<float>& buffer : values) bytes += buffer.size_bytes();
    return bytes + arena.capacity_bytes();
  }
};

bool all_single(const kernels::Sequences& sequences) {
  return std::all_of(sequences.length, sequences.length + sequences.count,
                     [](int64_t length) { return length == 1; });
}

Form choose_form(const LayerWeights& weights, const LayerArgs& args) {
  if (weights.program.states.empty()) return Form::kParallel;
  if (args.form != Form::kAuto) return args.form;
  return args.state && all_single(args.sequences) ? Form::kStep : Form::kChunk;
}

using FormFunction = void (*)(const OpArgs<float>&) noexcept;

/// Null where there is no operator.
FormFunction function_of(const MixerDef& def, Form form) {
  if (form == Form::kStep) return def.step;
  return form == Form::kParallel && def.parallel != nullptr ? def.parallel : def.chunk;
}

/// One pass over the stages for some of the sequences, whose rows follow one another.
struct Pass {
  const LayerWeights& weights;
  const LayerArgs& args;  ///< x, out, received and handed_on as of row 0 of the pass
  FormFunction form;
  int64_t rows;
  float* const* values;  ///< per value, dense; unused: [0] and what is received
  kernels::Upcoming upcoming;

  const float* value(size_t index) const {
    if (index == 0) return args.x;
    return index == weights.program.received ? args.received : values[index];
  }
  Heads<const float> slice(const Slice& slice) const {
    return {value(slice.value) + slice.column, weights.program.widths[slice.value], slice.dim};
  }
  Heads<float> output(const Stage& stage) const {
    return {values[stage.out.value], stage.out.width(), stage.out.dim};
  }

  void linear(const Stage& stage, const PackedMatrix& matrix, float* out,
              const kernels::Upcoming& ahead) const {
    const Slice& input = stage.inputs[0];
    matrix.multiply(rows, value(input.value) + input.column, weights.program.widths[input.value],
                    out, stage.out.width(), kernels::Activation::kNone, false, args.pool, ahead);
  }

  void op(const Stage& stage) const {
    std::array<Heads<const float>, kMaxStageInputs> inputs;
    for (size_t i = 0; i < stage.inputs.size(); ++i) inputs[i] = slice(stage.inputs[i]);
    OpArgs<float> call;
    call.config = args.config;
    call.sequences = args.sequences;
    call.positions = args.positions;
    call.inputs = {inputs.data(), stage.inputs.size()};
    call.params = {weights.pointers.data() + stage.first_param, stage.param_count};
    call.prepared = weights.prepared;
    call.out = output(stage);
    call.state = state_part(args.state, stage);
    call.pool = args.pool;
    call.arena = args.arena;
    form(call);
  }

  void other(const Stage& stage) const {
    std::array<Heads<const float>, kMaxStageInputs> inputs;
    for (size_t i = 0; i < stage.inputs.size(); ++i) inputs[i] = slice(stage.inputs[i]);
    StageArgs<float> call;
    call.stage = &stage;
    call.sequences = args.sequences;
    call.positions = args.positions;
    call.inputs = {inputs.data(), stage.inputs.size()};
    call.params = {weights.pointers.data() + stage.first_param, stage.param_count};
    call.out = output(stage);
    call.state = state_part(args.state, stage);
    call.pool = args.pool;
    call.arena = args.arena;
    run_stage(call, rows);
  }

  /// Stages [0, last).
  void run() const {
    size_t matrix = 0;
    const std::vector<Stage>& stages = weights.program.stages;
    for (size_t i = 0; i + 1 < stages.size(); ++i) {
      const Stage& stage = stages[i];
      switch (stage.kind) {
        case Stage::Kind::kLinear:
          linear(stage, weights.linear[matrix++], values[stage.out.value],
                 i == 0 ? upcoming : kernels::Upcoming());
          break;
        case Stage::Kind::kOperator: op(stage); break;
        case Stage::Kind::kOther: other(stage); break;
      }
    }
    if (args.handed_on != nullptr) hand_on(weights.program.handed_on);
  }

  void hand_on(const Slice& columns) const {
    const Heads<const float> from = slice(columns);
    const int64_t width = columns.width();
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(from.at(row, 0), width, args.handed_on + row * width);
    }
  }
};

}  // namespace

std::vector<ParamSpec> layer_params(const MixerDef& def, const MixerConfig& config) {
  return def.layer(config).params;
}

std::vector<StateSpec> layer_states(const MixerDef& def, const MixerConfig& config) {
  if (has_operator(def) && def.state_specs(config).empty()) return {};
  return def.layer(config).states;
}

LayerRows layer_rows(const MixerDef& def, const MixerConfig& config) {
  const LayerProgram program = def.layer(config);
  return {program.received_width(), program.handed_on.width()};
}

int64_t layer_scratch_columns(const MixerDef& def, const MixerConfig& config) {
  const LayerProgram program = def.layer(config);
  int64_t columns = -program.received_width();
  for (size_t v = 1; v + 1 < program.widths.size(); ++v) columns += program.widths[v];
  return columns;
}

std::unique_ptr<MixerWeights> prepare_layer(const MixerDef& def, const MixerConfig& config,
                                            std::span<const float* const> params,
                                            const kernels::PackOptions& options) {
  auto weights = std::make_unique<LayerWeights>();
  weights->program = def.layer(config);
  LayerProgram& program = weights->program;
  TARN_CHECK(params.size() == program.params.size() && program.states.size() <= kMaxLayerStates);
  if (has_operator(def) && def.state_specs(config).empty()) program.states.clear();
  if (!program.states.empty() && !program.states[0].per_token) {
    weights->first_state_bytes = static_cast<int64_t>(sizeof(float));
    for (const int64_t size : program.states[0].shape) weights->first_state_bytes *= size;
  }
  weights->values.resize(params.size());
  for (const Stage& stage : program.stages) {
    TARN_CHECK(stage.inputs.size() <= kMaxStageInputs);
    if (stage.kind == Stage::Kind::kLinear) {
      const float* bias = stage.param_count == 2 ? params[stage.first_param + 1] : nullptr;
      weights->linear.push_back(PackedMatrix::pack(
          params[stage.first_param], bias, stage.out.width(), stage.inputs[0].width(), options));
      continue;
    }
    for (size_t p = stage.first_param; p < stage.first_param + stage.param_count; ++p) {
      int64_t size = 1;
      for (const int64_t extent : program.params[p].shape) size *= extent;
      weights->values[p] = Buffer<float>(size);
      std::copy_n(params[p], size, weights->values[p].data());
    }
  }
  for (const Buffer<float>& buffer : weights->values) weights->pointers.push_back(buffer.data());
  for (const Stage& stage : program.stages) {
    if (stage.kind != Stage::Kind::kOperator || def.prepare == nullptr) continue;
    const std::span<const float* const> own(weights->pointers.data() + stage.first_param,
                                            stage.param_count);
    const bool reduced = options.format != kernels::WeightFormat::kF32;
    weights->prepared =
        def.prepare(config, own, reduced ? DType::kBF16 : DType::kF32, nullptr, weights->arena);
    if (!def.prepared_is_all) continue;
    for (size_t p = stage.first_param; p < stage.first_param + stage.param_count; ++p) {
      weights->values[p] = {};
      weights->pointers[p] = nullptr;
    }
  }
  return weights;
}

void run_layer(const MixerDef& def, const LayerArgs& args) noexcept {
  const auto& weights = static_cast<const LayerWeights&>(*args.weights);
  const LayerProgram& program = weights.program;
  const int64_t rows = packed_rows(args.sequences);
  if (rows == 0) return;
  ArenaScope scope(*args.arena);
  const size_t count = program.widths.size();
  float** values = args.arena->alloc<float*>(static_cast<int64_t>(count));
  const size_t last = program.stages.back().inputs[0].value;
  const Form chosen = choose_form(weights, args);
  const FormFunction form = function_of(def, chosen);
  const bool stepping =
      chosen == Form::kStep && args.state && args.pool == nullptr && rows == args.sequences.count;
  const int64_t blocks = stepping ? (rows + kStepRows - 1) / kStepRows : 1;
  const int64_t block_rows = stepping ? std::min(rows, kStepRows) : rows;
  for (size_t v = 1; v + 1 < count; ++v) {
    if (v == program.received) continue;
    values[v] = args.arena->alloc<float>((v == last ? rows : block_rows) * program.widths[v]);
  }
  float* const joined = values[last];
  LayerArgs part = args;
  std::array<float* const*, kMaxLayerStates> state;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = rows * block / blocks;
    const int64_t count_rows = rows * (block + 1) / blocks - first;
    kernels::Upcoming upcoming;
    if (stepping) {
      part.sequences.count = count_rows;
      if (args.positions != nullptr) part.positions = args.positions + first;
      const size_t tensors = args.state.tensors.size();
      for (size_t j = 0; j < tensors; ++j) state[j] = args.state.tensors[j] + first;
      part.state = {{state.data(), tensors}};
      upcoming = {state[0], count_rows, weights.first_state_bytes};
      part.x = args.x + first * program.model_dim();
      if (program.received != 0) part.received = args.received + first * program.received_width();
      if (args.handed_on != nullptr) {
        part.handed_on = args.handed_on + first * program.handed_on.width();
      }
      if (last != 0) values[last] = joined + first * program.widths[last];
    }
    Pass{weights, part, form, count_rows, values, upcoming}.run();
  }
  if (last != 0) values[last] = joined;
  Pass{weights, args, form, rows, values, {}}.linear(program.stages.back(), weights.linear.back(),
                                                     args.out, {});
}

}  // namespace tarn::mixers
