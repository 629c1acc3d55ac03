#include "mixers/layer_program.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace tarn::mixers {
namespace {

bool overlap(const Slice& a, const Slice& b) {
  return a.value == b.value && a.column < b.column + b.width() && b.column < a.column + a.width();
}

/// Marks the inputs whose columns others read too, and checks that nothing is computed in vain.
void find_readers(LayerProgram& program) {
  std::vector<const Slice*> readers;
  for (const Stage& stage : program.stages) {
    for (const Slice& input : stage.inputs) readers.push_back(&input);
  }
  if (program.handed_on.width() > 0) readers.push_back(&program.handed_on);
  for (Stage& stage : program.stages) {
    for (const Slice& input : stage.inputs) {
      stage.shared.push_back(std::any_of(readers.begin(), readers.end(), [&](const Slice* other) {
        return other != &input && overlap(*other, input);
      }));
    }
    if (&stage == &program.stages.back()) continue;
    for (int64_t column = 0; column < stage.out.width(); ++column) {
      const Slice one{stage.out.value, column, 1, 1};
      TARN_CHECK(std::any_of(readers.begin(), readers.end(),
                             [&](const Slice* reader) { return overlap(*reader, one); }));
    }
  }
}

}  // namespace

LayerBuilder::LayerBuilder(OpShape op, std::vector<StateSpec> states, int64_t model_dim) {
  program_.op = std::move(op);
  program_.states = std::move(states);
  program_.widths = {model_dim};
}

Slice LayerBuilder::add(Stage stage, int64_t heads, int64_t dim) {
  for (const Slice& input : stage.inputs) {
    TARN_CHECK(input.value < program_.widths.size());
    TARN_CHECK(input.column + input.width() <= program_.widths[input.value]);
  }
  stage.out = {program_.widths.size(), 0, heads, dim};
  program_.widths.push_back(heads * dim);
  program_.stages.push_back(std::move(stage));
  return program_.stages.back().out;
}

Slice LayerBuilder::receive(int64_t width) {
  TARN_CHECK(program_.received == 0 && width > 0);
  program_.received = program_.widths.size();
  program_.widths.push_back(width);
  return {program_.received, 0, 1, width};
}

void LayerBuilder::hand_on(const Slice& columns) {
  TARN_CHECK(program_.handed_on.width() == 0 && columns.width() > 0);
  TARN_CHECK(columns.value != 0 && columns.value != program_.received);
  program_.handed_on = columns;
}

Slice LayerBuilder::linear(const std::string& name, const Slice& input, std::vector<int64_t> blocks,
                           const LinearOptions& options) {
  int64_t height = 0;
  for (const int64_t block : blocks) height += block;
  const Init uniform{Init::Kind::kUniform, 1.0f / std::sqrt(static_cast<float>(input.width()))};
  Stage stage;
  stage.kind = Stage::Kind::kLinear;
  stage.inputs = {input};
  stage.first_param = program_.params.size();
  stage.param_count = options.bias ? 2 : 1;
  if (blocks.size() == 1) blocks.clear();
  const auto named = [&](const std::string& own, const char* part) {
    return own.empty() ? name + part : own;
  };
  program_.params.push_back({named(options.weight_name, ".weight"),
                             {height, input.width()},
                             options.start.value_or(uniform),
                             true,
                             std::move(blocks)});
  if (options.bias) {
    program_.params.push_back(
        {named(options.bias_name, ".bias"), {height}, options.bias_start, false});
  }
  return add(std::move(stage), 1, height);
}

Slice LayerBuilder::op(std::vector<Slice> inputs) {
  const OpShape& op = program_.op;
  TARN_CHECK(inputs.size() == op.inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    TARN_CHECK(inputs[i].width() == op.inputs[i].heads * op.inputs[i].dim);
    inputs[i].heads = op.inputs[i].heads;
    inputs[i].dim = op.inputs[i].dim;
  }
  for (const Stage& other : program_.stages) TARN_CHECK(other.kind != Stage::Kind::kOperator);
  Stage stage;
  stage.kind = Stage::Kind::kOperator;
  stage.inputs = std::move(inputs);
  stage.first_param = program_.params.size();
  stage.param_count = op.params.size();
  stage.state_count = program_.states.size();
  for (const Stage& other : program_.stages) stage.state_count -= other.state_count;
  program_.params.insert(program_.params.end(), op.params.begin(), op.params.end());
  return add(std::move(stage), op.out_heads, op.out_dim);
}

Slice LayerBuilder::stage(const StageDef& def, std::vector<Slice> inputs, int64_t heads,
                          int64_t dim, std::vector<ParamSpec> params, std::vector<StateSpec> states,
                          std::shared_ptr<const StageOptions> options) {
  TARN_CHECK(!def.rowwise || states.empty());
  Stage stage;
  stage.def = &def;
  stage.inputs = std::move(inputs);
  stage.first_param = program_.params.size();
  stage.param_count = params.size();
  stage.first_state = program_.states.size();
  stage.state_count = states.size();
  stage.options = std::move(options);
  for (ParamSpec& spec : params) program_.params.push_back(std::move(spec));
  for (StateSpec& spec : states) program_.states.push_back(std::move(spec));
  return add(std::move(stage), heads, dim);
}

Slice LayerBuilder::copy(const LayerProgram& program, const Stage& stage, std::vector<Slice> inputs,
                         const std::string& prefix) {
  TARN_CHECK(stage.kind != Stage::Kind::kOperator);
  Stage copied = stage;
  copied.inputs = std::move(inputs);
  copied.first_param = program_.params.size();
  copied.first_state = program_.states.size();
  copied.state_count = 0;
  copied.shared.clear();
  for (size_t p = 0; p < stage.param_count; ++p) {
    ParamSpec spec = program.params[stage.first_param + p];
    spec.name = prefix + spec.name;
    program_.params.push_back(std::move(spec));
  }
  return add(std::move(copied), stage.out.heads, stage.out.dim);
}

LayerProgram LayerBuilder::finish(const std::string& name, const Slice& input,
                                  const LinearOptions& options) {
  linear(name, input, {program_.model_dim()}, options);
  find_readers(program_);
  return std::move(program_);
}

LayerProgram projected_layer(OpShape op, std::vector<StateSpec> states, int64_t model_dim) {
  std::vector<int64_t> blocks;
  for (const OpInput& input : op.inputs) blocks.push_back(input.heads * input.dim);
  std::vector<Slice> inputs;
  int64_t column = 0;
  for (const OpInput& input : op.inputs) {
    inputs.push_back({1, column, input.heads, input.dim});
    column += input.heads * input.dim;
  }
  const LayerBuilder::LinearOptions with_bias{.bias = true};
  LayerBuilder builder(std::move(op), std::move(states), model_dim);
  const Slice rows = builder.linear("in", builder.x(), std::move(blocks), with_bias);
  for (Slice& input : inputs) input.value = rows.value;
  return builder.finish("out", builder.op(std::move(inputs)), with_bias);
}

}  // namespace tarn::mixers
