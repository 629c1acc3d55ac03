#include "mixers/common/projected_layer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace tarn::mixers {
namespace {

constexpr size_t kMaxInputs = 8;
constexpr size_t kMaxStateTensors = 8;
/// Sequences that take a step together: as many rows as one tile of the packed products.
constexpr int64_t kStepRows = 12;

int64_t total_rows(const kernels::Sequences& sequences) {
  int64_t rows = 0;
  for (int64_t i = 0; i < sequences.count; ++i) {
    rows = std::max(rows, sequences.begin[i] + sequences.length[i]);
  }
  return rows;
}

bool all_single(const kernels::Sequences& sequences) {
  return std::all_of(sequences.length, sequences.length + sequences.count,
                     [](int64_t length) { return length == 1; });
}

using FormFunction = void (*)(const OpArgs<float>&) noexcept;

FormFunction choose_form(const MixerDef& def, const LayerArgs& args) {
  switch (args.form) {
    case Form::kParallel: return def.parallel;
    case Form::kChunk: return def.chunk;
    case Form::kStep: return def.step;
    case Form::kAuto: break;
  }
  if (args.state && all_single(args.sequences)) return def.step;
  return def.chunk;
}

}  // namespace

int64_t input_width(const OpShape& shape) {
  int64_t width = 0;
  for (const OpInput& input : shape.inputs) width += input.heads * input.dim;
  return width;
}

std::vector<ParamSpec> projected_layer_params(const OpShape& shape, int64_t model_dim) {
  const int64_t in_width = input_width(shape);
  const int64_t out_width = shape.out_heads * shape.out_dim;
  const auto uniform = [](int64_t fan_in) {
    return Init{Init::Kind::kUniform, 1.0f / std::sqrt(static_cast<float>(fan_in)), 0};
  };
  std::vector<int64_t> input_rows;
  for (const OpInput& input : shape.inputs) input_rows.push_back(input.heads * input.dim);
  return {{"in.weight", {in_width, model_dim}, uniform(model_dim), true, std::move(input_rows)},
          {"in.bias", {in_width}, Init{}, false},
          {"out.weight", {model_dim, out_width}, uniform(out_width), true},
          {"out.bias", {model_dim}, Init{}, false}};
}

std::unique_ptr<MixerWeights> prepare_projected_layer(const OpShape& shape, int64_t model_dim,
                                                      std::span<const float* const> params,
                                                      const std::vector<StateSpec>& state,
                                                      const kernels::PackOptions& options) {
  TARN_CHECK(params.size() == 4 && shape.inputs.size() <= kMaxInputs);
  TARN_CHECK(state.size() <= kMaxStateTensors);
  auto weights = std::make_unique<ProjectedLayerWeights>();
  weights->shape = shape;
  if (!state.empty() && !state[0].per_token) {
    weights->state_bytes = static_cast<int64_t>(sizeof(float));
    for (const int64_t size : state[0].shape) weights->state_bytes *= size;
  }
  weights->in =
      kernels::PackedMatrix::pack(params[0], params[1], input_width(shape), model_dim, options);
  weights->out = kernels::PackedMatrix::pack(params[2], params[3], model_dim,
                                             shape.out_heads * shape.out_dim, options);
  return weights;
}

void forward_projected_layer(const MixerDef& def, const LayerArgs& args) noexcept {
  const auto& weights = static_cast<const ProjectedLayerWeights&>(*args.weights);
  const int64_t rows = total_rows(args.sequences);
  if (rows == 0) return;
  ArenaScope scope(*args.arena);
  const int64_t in_width = weights.in.out_dim();
  const int64_t out_width = weights.out.in_dim();
  const int64_t model_dim = weights.in.in_dim();
  float* projected = args.arena->alloc<float>(rows * in_width);
  float* mixed = args.arena->alloc<float>(rows * out_width);

  std::array<kernels::Heads<const float>, kMaxInputs> inputs;
  OpArgs<float> op;
  op.config = args.config;
  op.sequences = args.sequences;
  op.positions = args.positions;
  op.inputs = {inputs.data(), weights.shape.inputs.size()};
  op.state = args.state;
  op.pool = args.pool;
  op.arena = args.arena;
  const FormFunction form = choose_form(def, args);
  const bool stepping =
      form == def.step && args.state && args.pool == nullptr && rows == args.sequences.count;
  const int64_t blocks = stepping ? (rows + kStepRows - 1) / kStepRows : 1;
  std::array<float* const*, kMaxStateTensors> state;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = rows * block / blocks;
    const int64_t count = rows * (block + 1) / blocks - first;
    kernels::Upcoming upcoming;
    if (stepping) {
      op.sequences.count = count;
      if (args.positions != nullptr) op.positions = args.positions + first;
      const size_t tensors = args.state.tensors.size();
      for (size_t j = 0; j < tensors; ++j) state[j] = args.state.tensors[j] + first;
      op.state = {{state.data(), tensors}};
      upcoming = {state[0], count, weights.state_bytes};
    }
    float* block_inputs = projected + first * in_width;
    weights.in.multiply(count, args.x + first * model_dim, model_dim, block_inputs, in_width,
                        kernels::Activation::kNone, false, args.pool, upcoming);
    int64_t column = 0;
    for (size_t i = 0; i < weights.shape.inputs.size(); ++i) {
      const OpInput& input = weights.shape.inputs[i];
      inputs[i] = {block_inputs + column, in_width, input.dim};
      column += input.heads * input.dim;
    }
    op.out = {mixed + first * out_width, out_width, weights.shape.out_dim};
    form(op);
  }
  weights.out.multiply(rows, mixed, out_width, args.out, model_dim, kernels::Activation::kNone,
                       false, args.pool);
}

}  // namespace tarn::mixers
