#include "mixers/common/layer_training.h"

#include <algorithm>
#include <array>
#include <vector>

#include "mixers/common/stage_call.h"
#include "mixers/common/trained_linear.h"

namespace tarn::mixers {
namespace {

using kernels::Heads;

/// Views of the kept values; the last value is y itself.
class Values {
 public:
  Values(const LayerTraining& call, int64_t rows) : program_(*call.program) {
    data_.push_back(const_cast<float*>(call.x));  // only read, as an input
    float* next = call.kept;
    for (size_t v = 1; v + 1 < program_.widths.size(); ++v) {
      if (v == program_.received) {
        data_.push_back(const_cast<float*>(call.received));  // only read, too
        continue;
      }
      data_.push_back(next);
      next += rows * program_.widths[v];
    }
    data_.push_back(call.y);
    saved_ = next;
  }
  Heads<float> operator[](const Slice& slice) const {
    return {data_[slice.value] + slice.column, program_.widths[slice.value], slice.dim};
  }
  float* saved() const { return saved_; }

 private:
  const LayerProgram& program_;
  std::vector<float*> data_;
  float* saved_ = nullptr;
};

template <class T>
using Inputs = std::array<Heads<T>, kMaxStageInputs>;

Inputs<const float> inputs_of(const Values& values, const Stage& stage) {
  Inputs<const float> inputs;
  for (size_t i = 0; i < stage.inputs.size(); ++i) inputs[i] = values[stage.inputs[i]];
  return inputs;
}

TrainedLinear linear_of(const LayerTraining& call, const Stage& stage,
                        std::span<float* const> dparams) {
  TrainedLinear linear;
  linear.out_dim = stage.out.width();
  linear.in_dim = stage.inputs[0].width();
  linear.weight = call.params[stage.first_param];
  linear.precision = call.precision;
  if (stage.param_count == 2) linear.bias = call.params[stage.first_param + 1];
  if (dparams.empty()) return linear;
  linear.dweight = dparams[stage.first_param];
  if (stage.param_count == 2) linear.dbias = dparams[stage.first_param + 1];
  return linear;
}

double operator_flops(const LayerTraining& call, OpPass pass) {
  double flops = 0.0;
  for (int64_t i = 0; i < call.sequences.count; ++i) {
    flops += call.def->flops(*call.config, pass, call.sequences.length[i]);
  }
  return flops;
}

OpArgs<float> op_args(const LayerTraining& call, const Stage& stage, const Values& values,
                      const Inputs<const float>& inputs) {
  OpArgs<float> args;
  args.config = call.config;
  args.sequences = call.sequences;
  args.positions = call.positions;
  args.inputs = {inputs.data(), stage.inputs.size()};
  args.params = call.params.subspan(stage.first_param, stage.param_count);
  args.out = values[stage.out];
  args.saved = values.saved();
  args.state = state_part(call.state, stage);
  args.pool = call.pool;
  args.arena = call.arena;
  return args;
}

StageArgs<float> stage_args(const LayerTraining& call, const Stage& stage, const Values& values,
                            const Inputs<const float>& inputs) {
  StageArgs<float> args;
  args.stage = &stage;
  args.sequences = call.sequences;
  args.positions = call.positions;
  args.inputs = {inputs.data(), stage.inputs.size()};
  args.params = call.params.subspan(stage.first_param, stage.param_count);
  args.out = values[stage.out];
  args.state = state_part(call.state, stage);
  args.pool = call.pool;
  args.arena = call.arena;
  return args;
}

void linear_forward(const LayerTraining& call, const Stage& stage, const Values& values,
                    int64_t rows) {
  const TrainedLinear linear = linear_of(call, stage, {});
  const PartTimer timer(call.times, "projections", linear.flops(rows), linear.precision);
  ArenaScope scope(*call.arena);
  const Heads<float> input = values[stage.inputs[0]];
  const Heads<float> out = values[stage.out];
  kernels::RowProduct product;
  product.rows = rows;
  product.a = input.data;
  product.a_stride = input.row_stride;
  product.bias = linear.bias;
  if (&stage == &call.program->stages.back()) product.addend = call.residual;
  product.out = out.data;
  product.addend_stride = product.out_stride = out.row_stride;
  kernels::multiply_rows(linear.pack(call.pool, *call.arena), product, call.pool);
}

/// The gradient of each value, and where a stage writes that of its inputs: in place if it is their
/// only reader, else into scratch that is added.
class GradientValues {
 public:
  GradientValues(const LayerTraining& call, const LayerGradients& gradients, int64_t rows)
      : program_(*call.program), rows_(rows), arena_(*call.arena) {
    const size_t count = program_.widths.size();
    data_.assign(count, nullptr);
    data_[0] = gradients.dx;
    if (gradients.residual_is_x) {
      std::copy_n(gradients.dy, rows * program_.widths[0], gradients.dx);
    } else {
      std::fill_n(gradients.dx, rows * program_.widths[0], 0.0f);
    }
    for (size_t v = 1; v + 1 < count; ++v) {
      const int64_t size = rows * program_.widths[v];
      data_[v] = v == program_.received ? gradients.dreceived : arena_.alloc<float>(size);
      if (v == program_.received) std::fill_n(data_[v], size, 0.0f);
    }
    data_[count - 1] = const_cast<float*>(gradients.dy);  // only read, as the last stage's
    for (const Stage& stage : program_.stages) {
      for (size_t i = 0; i < stage.inputs.size(); ++i) {
        if (stage.shared[i] && stage.inputs[i].value != 0) zero(stage.inputs[i]);
      }
    }
    start_handed_on(gradients.dhanded_on);
  }

  Heads<float> operator[](const Slice& slice) const {
    return {data_[slice.value] + slice.column, program_.widths[slice.value], slice.dim};
  }
  bool adds(const Stage& stage, size_t input) const {
    const size_t value = stage.inputs[input].value;
    return stage.shared[input] || value == 0 || value == program_.received;
  }
  /// Where the stage overwrites its inputs' gradients; scratch lives as long as the caller's scope.
  Inputs<float> targets(const Stage& stage) const {
    Inputs<float> result;
    for (size_t i = 0; i < stage.inputs.size(); ++i) {
      const Slice& slice = stage.inputs[i];
      result[i] = adds(stage, i) ? Heads<float>{arena_.alloc<float>(rows_ * slice.width()),
                                                slice.width(), slice.dim}
                                 : (*this)[slice];
    }
    return result;
  }
  void add(const Stage& stage, const Inputs<float>& targets, ThreadPool* pool) const {
    for (size_t i = 0; i < stage.inputs.size(); ++i) {
      if (!adds(stage, i)) continue;
      const Heads<float> sum = (*this)[stage.inputs[i]];
      const int64_t width = stage.inputs[i].width();
      parallel_for(pool, rows_, [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          float* __restrict to = sum.data + row * sum.row_stride;
          const float* __restrict from = targets[i].data + row * width;
          for (int64_t c = 0; c < width; ++c) to[c] += from[c];
        }
      });
    }
  }

 private:
  void zero(const Slice& slice) {
    const Heads<float> part = (*this)[slice];
    for (int64_t row = 0; row < rows_; ++row) {
      std::fill_n(part.data + row * part.row_stride, slice.width(), 0.0f);
    }
  }

  /// What is handed on begins with the gradient that arrives there; its readers add theirs.
  void start_handed_on(const float* arriving) {
    const int64_t width = program_.handed_on.width();
    if (width == 0) return;
    if (arriving == nullptr) {
      zero(program_.handed_on);
      return;
    }
    const Heads<float> part = (*this)[program_.handed_on];
    for (int64_t row = 0; row < rows_; ++row) {
      std::copy_n(arriving + row * width, width, part.at(row, 0));
    }
  }

  const LayerProgram& program_;
  int64_t rows_;
  Arena& arena_;
  std::vector<float*> data_;
};

void linear_backward(const LayerTraining& call, const LayerGradients& gradients, const Stage& stage,
                     const Values& values, const GradientValues& sums, int64_t rows) {
  const TrainedLinear linear = linear_of(call, stage, gradients.dparams);
  const PartTimer timer(call.times, "projections backward", 2.0 * linear.flops(rows),
                        linear.precision);
  ArenaScope scope(*call.arena);
  const Heads<float> dy = sums[stage.out];
  const Heads<float> x = values[stage.inputs[0]];
  const Heads<float> dx = sums[stage.inputs[0]];
  kernels::RowProduct product;
  product.rows = rows;
  product.a = dy.data;
  product.a_stride = dy.row_stride;
  product.out = dx.data;
  product.addend_stride = product.out_stride = dx.row_stride;
  if (sums.adds(stage, 0)) product.addend = dx.data;
  kernels::multiply_rows(linear.pack_for_gradient(call.pool, *call.arena), product, call.pool);
  linear.add_gradient(rows, dy.data, dy.row_stride, x.data, x.row_stride, call.pool);
}

void op_backward(const LayerTraining& call, const LayerGradients& gradients, const Stage& stage,
                 const Values& values, const GradientValues& sums) {
  const PartTimer timer(call.times, "operator backward", operator_flops(call, OpPass::kBackward));
  const Inputs<const float> inputs = inputs_of(values, stage);
  const Inputs<float> targets = sums.targets(stage);
  OpBackwardArgs args;
  args.forward = op_args(call, stage, values, inputs);
  args.dout = sums[stage.out];
  args.dfinal = state_part(gradients.dfinal, stage);
  args.dinputs = {targets.data(), stage.inputs.size()};
  args.dparams = gradients.dparams.subspan(stage.first_param, stage.param_count);
  args.dinitial = state_part(gradients.dinitial, stage);
  call.def->backward(args);
  sums.add(stage, targets, call.pool);
}

/// Parameters of rowwise stages: each block of rows sums into an array of its own, and the blocks'
/// sums are added in order.
void rowwise_backward(const StageGradientArgs& whole, const LayerProgram& program, int64_t rows,
                      ThreadPool* pool, Arena& arena) {
  const Stage& stage = *whole.forward.stage;
  const int64_t blocks = (rows + kStageRows - 1) / kStageRows;
  std::vector<int64_t> sizes;
  int64_t width = 0;
  for (size_t p = 0; p < stage.param_count; ++p) {
    int64_t size = 1;
    for (const int64_t extent : program.params[stage.first_param + p].shape) size *= extent;
    sizes.push_back(size);
    width += size;
  }
  float* partial = arena.alloc<float>(blocks * width);
  std::fill_n(partial, blocks * width, 0.0f);
  parallel_for(pool, blocks, [&](int64_t begin, int64_t end, int) {
    std::vector<float*> dparams(sizes.size());
    for (int64_t block = begin; block < end; ++block) {
      float* next = partial + block * width;
      for (size_t p = 0; p < sizes.size(); ++p) {
        dparams[p] = next;
        next += sizes[p];
      }
      StageGradientArgs part = whole;
      part.forward.first = block * kStageRows;
      part.forward.end = std::min(rows, (block + 1) * kStageRows);
      part.forward.pool = nullptr;
      part.dparams = dparams;
      stage.def->backward(part);
    }
  });
  for (int64_t block = 0; block < blocks; ++block) {
    const float* from = partial + block * width;
    for (size_t p = 0; p < sizes.size(); ++p) {
      for (int64_t i = 0; i < sizes[p]; ++i) whole.dparams[p][i] += from[i];
      from += sizes[p];
    }
  }
}

void other_backward(const LayerTraining& call, const LayerGradients& gradients, const Stage& stage,
                    const Values& values, const GradientValues& sums, int64_t rows) {
  const PartTimer timer(call.times, "gates and norms backward");
  const Inputs<const float> inputs = inputs_of(values, stage);
  const Inputs<float> targets = sums.targets(stage);
  StageGradientArgs args;
  args.forward = stage_args(call, stage, values, inputs);
  args.dout = sums[stage.out];
  args.dinputs = {targets.data(), stage.inputs.size()};
  args.dparams = gradients.dparams.subspan(stage.first_param, stage.param_count);
  args.dfinal = state_part(gradients.dfinal, stage);
  args.dinitial = state_part(gradients.dinitial, stage);
  if (stage.def->rowwise) {
    rowwise_backward(args, *call.program, rows, call.pool, *call.arena);
  } else {
    stage.def->backward(args);
  }
  sums.add(stage, targets, call.pool);
}

}  // namespace

int64_t layer_kept_columns(const LayerProgram& program) {
  int64_t columns = program.op.saved_per_row;
  for (size_t v = 1; v + 1 < program.widths.size(); ++v) {
    if (v != program.received) columns += program.widths[v];
  }
  return columns;
}

void layer_forward(const LayerTraining& call) {
  const int64_t rows = packed_rows(call.sequences);
  const Values values(call, rows);
  for (const Stage& stage : call.program->stages) {
    ArenaScope scope(*call.arena);
    const Inputs<const float> inputs = inputs_of(values, stage);
    switch (stage.kind) {
      case Stage::Kind::kLinear: linear_forward(call, stage, values, rows); break;
      case Stage::Kind::kOperator: {
        const PartTimer timer(call.times, "operator", operator_flops(call, OpPass::kForward));
        whole_form(*call.def, *call.config)(op_args(call, stage, values, inputs));
        break;
      }
      case Stage::Kind::kOther: {
        const PartTimer timer(call.times, "gates and norms");
        run_stage(stage_args(call, stage, values, inputs), rows);
        break;
      }
    }
  }
  if (call.handed_on == nullptr) return;
  const Slice& columns = call.program->handed_on;
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(values[columns].at(row, 0), columns.width(),
                call.handed_on + row * columns.width());
  }
}

void layer_backward(const LayerTraining& call, const LayerGradients& gradients) {
  const int64_t rows = packed_rows(call.sequences);
  ArenaScope scope(*call.arena);
  const Values values(call, rows);
  const GradientValues sums(call, gradients, rows);
  const std::vector<Stage>& stages = call.program->stages;
  for (size_t i = stages.size(); i-- > 0;) {
    ArenaScope stage_scope(*call.arena);
    switch (stages[i].kind) {
      case Stage::Kind::kLinear:
        linear_backward(call, gradients, stages[i], values, sums, rows);
        break;
      case Stage::Kind::kOperator: op_backward(call, gradients, stages[i], values, sums); break;
      case Stage::Kind::kOther:
        other_backward(call, gradients, stages[i], values, sums, rows);
        break;
    }
  }
}

}  // namespace tarn::mixers
