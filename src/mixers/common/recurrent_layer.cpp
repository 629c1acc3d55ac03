#include "mixers/common/recurrent_layer.h"

#include <algorithm>
#include <cmath>

#include "mixers/common/operator_rows.h"
#include "mixers/layer_program.h"

namespace tarn::mixers {
namespace {

using kernels::PackedOperand;
using kernels::RecurrentCell;
using kernels::RecurrentProblem;
using kernels::RecurrentState;
using kernels::Rows;
using kernels::Sequences;

constexpr const char* kSuffixes[] = {"", "_reverse"};

const RecurrentConfig& config_of(const MixerConfig* config) {
  return static_cast<const RecurrentConfig&>(*config);
}

/// torch's, for all weights of a cell.
float start_bound(const RecurrentConfig& config) {
  return 1.0f / std::sqrt(static_cast<float>(config.hidden_dim));
}

template <class Args>
RecurrentProblem problem_of(const Args& args) {
  const RecurrentConfig& config = config_of(args.config);
  return {config.cell, args.sequences, config.hidden_dim, args.pool};
}

template <class T>
RecurrentState<T> recurrent_state_of(const StateRefs<T>& state) {
  if (!state) return {};
  return {state.tensors[0], state.tensors.size() > 1 ? state.tensors[1] : nullptr};
}

/// Copies the rows of every sequence in reverse order; rows of no sequence are left alone.
template <class T, class From>
void reverse_rows(const Sequences& sequences, int64_t width, Rows<From> from, Rows<T> to) {
  for (int64_t i = 0; i < sequences.count; ++i) {
    const int64_t begin = sequences.begin[i];
    const int64_t last = begin + sequences.length[i] - 1;
    for (int64_t row = begin; row <= last; ++row) {
      std::copy_n(from.at(last - (row - begin)), width, to.at(row));
    }
  }
}

template <class T>
Rows<T> scratch_rows(const Sequences& sequences, int64_t width, Arena& arena) {
  return {arena.alloc<T>(spanned_rows(sequences) * width), width};
}

/// Calls body(gates, out) of the direction that reads sequences from their ends, on copies in
/// reverse order, and puts its outputs where they belong.
template <class T, class Body>
void run_reversed(const OpArgs<T>& args, Arena& arena, const Body& body) {
  const RecurrentConfig& config = config_of(args.config);
  const auto gates = scratch_rows<T>(args.sequences, config.gates_dim(), arena);
  const auto out = scratch_rows<T>(args.sequences, config.hidden_dim, arena);
  reverse_rows(args.sequences, config.gates_dim(), rows_of(args.inputs[1]), gates);
  body(gates, out);
  reverse_rows(args.sequences, config.hidden_dim, out,
               Rows<T>{args.out.data + config.hidden_dim, args.out.row_stride});
}

/// What the forward pass saves in a direction: the second one's in its own, reversed order.
Rows<float> saved_of(const OpArgs<float>& args, int64_t direction) {
  if (args.saved == nullptr) return {};
  const int64_t width = problem_of(args).saved_dim();
  return {args.saved + direction * width, config_of(args.config).directions() * width};
}

/// What the forward forms read of a direction's parameters.
struct Prepared {
  PackedOperand weight;
  const float* bias = nullptr;
};

/// One for each direction.
const Prepared* prepared_of(const OpArgs<float>& args, Arena& arena) {
  const void* prepared = args.prepared;
  if (prepared == nullptr) {
    prepared = recurrent_prepare(*args.config, args.params, DType::kF32, args.pool, arena);
  }
  return static_cast<const Prepared*>(prepared);
}

}  // namespace

Result<std::shared_ptr<const MixerConfig>> read_recurrent(RecurrentCell cell, JsonReader& reader,
                                                          int64_t model_dim) {
  auto config = std::make_shared<RecurrentConfig>();
  config->cell = cell;
  config->model_dim = model_dim;
  config->hidden_dim = reader.integer("hidden_dim", 1, 65536);
  config->bidirectional = reader.boolean("bidirectional", false);
  TARN_RETURN_IF_ERROR(reader.finish());
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape recurrent_shape(const MixerConfig& base) {
  const RecurrentConfig& config = config_of(&base);
  const int64_t width = config.gates_dim();
  const Init start{Init::Kind::kUniform, start_bound(config)};
  OpShape shape;
  for (int64_t direction = 0; direction < config.directions(); ++direction) {
    const std::string suffix = kSuffixes[direction];
    shape.inputs.push_back({"gates" + suffix, 1, width, OpInput::Range::kNormal});
    shape.params.push_back(
        {"recurrent" + suffix + ".weight",
         {width, config.hidden_dim},
         start,
         true,
         std::vector<int64_t>(static_cast<size_t>(config.num_gates()), config.hidden_dim)});
    shape.params.push_back({"recurrent" + suffix + ".bias", {width}, start, false});
  }
  shape.out_heads = 1;
  shape.out_dim = config.directions() * config.hidden_dim;
  shape.saved_per_row = config.directions() * (config.num_gates() + 1) * config.hidden_dim;
  return shape;
}

std::vector<StateSpec> recurrent_states(const MixerConfig& base) {
  const RecurrentConfig& config = config_of(&base);
  if (config.bidirectional) return {};
  std::vector<StateSpec> specs = {{"h", {config.hidden_dim}, 0.0f, false}};
  if (config.cell == RecurrentCell::kLstm) specs.push_back({"c", {config.hidden_dim}, 0.0f, false});
  return specs;
}

void recurrent_loop(const OpArgs<double>& args) {
  const RecurrentProblem problem = problem_of(args);
  kernels::reference::recurrent(problem, rows_of(args.inputs[0]), args.params[0], args.params[1],
                                recurrent_state_of(args.state), rows_of(args.out));
  if (!config_of(args.config).bidirectional) return;
  Arena arena;
  run_reversed(args, arena, [&](Rows<double> gates, Rows<double> out) {
    kernels::reference::recurrent(problem, gates, args.params[2], args.params[3], {}, out);
  });
}

const void* recurrent_prepare(const MixerConfig& base, std::span<const float* const> params,
                              DType format, ThreadPool* pool, Arena& arena) noexcept {
  const RecurrentConfig& config = config_of(&base);
  RecurrentProblem problem{config.cell, {}, config.hidden_dim, pool};
  auto* prepared = arena.alloc<Prepared>(config.directions());
  for (int64_t direction = 0; direction < config.directions(); ++direction) {
    const auto first = static_cast<size_t>(2 * direction);
    float* bias = arena.alloc<float>(config.gates_dim());
    std::copy_n(params[first + 1], config.gates_dim(), bias);
    prepared[direction] = {kernels::pack_recurrent(problem, format, params[first], arena), bias};
  }
  return prepared;
}

void recurrent_chunk(const OpArgs<float>& args) noexcept {
  Arena& arena = *args.arena;
  ArenaScope scope(arena);
  const RecurrentProblem problem = problem_of(args);
  const Prepared* prepared = prepared_of(args, arena);
  kernels::recurrent_forward(problem, rows_of(args.inputs[0]), prepared[0].weight, prepared[0].bias,
                             recurrent_state_of(args.state), rows_of(args.out), saved_of(args, 0),
                             arena);
  if (!config_of(args.config).bidirectional) return;
  run_reversed(args, arena, [&](Rows<float> gates, Rows<float> out) {
    kernels::recurrent_forward(problem, gates, prepared[1].weight, prepared[1].bias, {}, out,
                               saved_of(args, 1), arena);
  });
}

void recurrent_step(const OpArgs<float>& args) noexcept {
  ArenaScope scope(*args.arena);
  const Prepared& prepared = *prepared_of(args, *args.arena);
  kernels::recurrent_step(problem_of(args), rows_of(args.inputs[0]), prepared.weight, prepared.bias,
                          recurrent_state_of(args.state), rows_of(args.out), *args.arena);
}

void recurrent_backward(const OpBackwardArgs& args) noexcept {
  const OpArgs<float>& forward = args.forward;
  const RecurrentConfig& config = config_of(forward.config);
  const Sequences& sequences = forward.sequences;
  const int64_t width = config.hidden_dim;
  Arena& arena = *forward.arena;
  ArenaScope scope(arena);
  const RecurrentProblem problem = problem_of(forward);
  const RecurrentState<float> state = recurrent_state_of(forward.state);
  kernels::recurrent_backward(problem, DType::kF32, forward.params[0], rows_of(forward.out),
                              saved_of(forward, 0), {state.h, state.c}, rows_of(args.dout),
                              recurrent_state_of(args.dfinal),
                              {rows_of(args.dinputs[0]), args.dparams[0], args.dparams[1],
                               recurrent_state_of(args.dinitial)},
                              arena);
  if (!config.bidirectional) return;
  const auto out = scratch_rows<float>(sequences, width, arena);
  const auto dout = scratch_rows<float>(sequences, width, arena);
  const auto dgates = scratch_rows<float>(sequences, config.gates_dim(), arena);
  reverse_rows(sequences, width, Rows<float>{forward.out.data + width, forward.out.row_stride},
               out);
  reverse_rows(sequences, width, Rows<const float>{args.dout.data + width, args.dout.row_stride},
               dout);
  kernels::recurrent_backward(problem, DType::kF32, forward.params[2], out, saved_of(forward, 1),
                              {}, dout, {}, {dgates, args.dparams[2], args.dparams[3], {}}, arena);
  reverse_rows(sequences, config.gates_dim(), dgates, rows_of(args.dinputs[1]));
}

double recurrent_flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const RecurrentConfig& config = config_of(&base);
  const double product = 2.0 * static_cast<double>(config.directions()) *
                         static_cast<double>(config.gates_dim()) *
                         static_cast<double>(config.hidden_dim);
  if (pass == OpPass::kStep) return product;
  return (pass == OpPass::kForward ? product : 2.0 * product) * static_cast<double>(tokens);
}

LayerProgram recurrent_layer(const MixerConfig& base) {
  const RecurrentConfig& config = config_of(&base);
  const std::vector<int64_t> blocks(static_cast<size_t>(config.num_gates()), config.hidden_dim);
  LayerBuilder builder(recurrent_shape(base), recurrent_states(base), config.model_dim);
  std::vector<Slice> gates;
  for (int64_t direction = 0; direction < config.directions(); ++direction) {
    gates.push_back(
        builder.linear(std::string("in") + kSuffixes[direction], builder.x(), blocks,
                       {.bias = true, .start = Init{Init::Kind::kUniform, start_bound(config)}}));
  }
  return builder.finish("out", builder.op(std::move(gates)), {.bias = true});
}

}  // namespace tarn::mixers
