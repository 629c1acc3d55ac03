#include <array>
#include <vector>

#include "mixers/common/layer_training.h"
#include "mixers/common/stage_call.h"

namespace tarn::mixers {
namespace {

using kernels::Heads;

void multiply(const Stage& stage, std::span<const double* const> params, int64_t rows,
              Heads<const double> x, Heads<double> y) {
  const int64_t in_dim = stage.inputs[0].width();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t o = 0; o < stage.out.width(); ++o) {
      double sum = stage.param_count == 2 ? params[stage.first_param + 1][o] : 0.0;
      for (int64_t i = 0; i < in_dim; ++i) {
        sum += params[stage.first_param][o * in_dim + i] * x.at(row, 0)[i];
      }
      y.at(row, 0)[o] = sum;
    }
  }
}

}  // namespace

void layer_reference(const LayerReference& call) {
  const LayerProgram& program = *call.program;
  const int64_t rows = packed_rows(call.sequences);
  std::vector<std::vector<double>> values(program.widths.size());
  for (size_t v = 1; v < values.size(); ++v) {
    if (v != program.received) values[v].resize(static_cast<size_t>(rows * program.widths[v]));
  }
  const auto read = [&](const Slice& slice) -> Heads<const double> {
    const double* data = slice.value == 0                  ? call.x
                         : slice.value == program.received ? call.received
                                                           : values[slice.value].data();
    return {data + slice.column, program.widths[slice.value], slice.dim};
  };
  Arena arena;
  for (const Stage& stage : program.stages) {
    std::array<Heads<const double>, kMaxStageInputs> inputs;
    for (size_t i = 0; i < stage.inputs.size(); ++i) inputs[i] = read(stage.inputs[i]);
    const Heads<double> out{values[stage.out.value].data(), stage.out.width(), stage.out.dim};
    if (stage.kind == Stage::Kind::kLinear) {
      multiply(stage, call.params, rows, inputs[0], out);
    } else if (stage.kind == Stage::Kind::kOperator) {
      OpArgs<double> args;
      args.config = call.config;
      args.sequences = call.sequences;
      args.positions = call.positions;
      args.inputs = {inputs.data(), stage.inputs.size()};
      args.params = call.params.subspan(stage.first_param, stage.param_count);
      args.out = out;
      args.state = state_part(call.state, stage);
      args.arena = &arena;
      call.def->recurrent(args);
    } else {
      StageArgs<double> args;
      args.stage = &stage;
      args.sequences = call.sequences;
      args.positions = call.positions;
      args.first = 0;
      args.end = rows;
      args.inputs = {inputs.data(), stage.inputs.size()};
      args.params = call.params.subspan(stage.first_param, stage.param_count);
      args.out = out;
      args.state = state_part(call.state, stage);
      args.arena = &arena;
      stage.def->reference(args);
    }
  }
  std::copy(values.back().begin(), values.back().end(), call.y);
  if (call.handed_on == nullptr) return;
  const int64_t width = program.handed_on.width();
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(read(program.handed_on).at(row, 0), width, call.handed_on + row * width);
  }
}

}  // namespace tarn::mixers
