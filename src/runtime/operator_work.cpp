#include "base/checked.h"
#include "base/json.h"
#include "runtime/operator_bench.h"

namespace tarn::runtime {
namespace {

/// Values that one row (a token of a sequence) has.
struct RowValues {
  double inputs = 0, out = 0, saved = 0;
};

RowValues row_values(const mixers::OpShape& shape) {
  RowValues values;
  for (const mixers::OpInput& input : shape.inputs) {
    values.inputs += static_cast<double>(input.heads * input.dim);
  }
  values.out = static_cast<double>(shape.out_heads * shape.out_dim);
  values.saved = static_cast<double>(shape.saved_per_row);
  return values;
}

/// Values of one sequence's state that a step reads or writes after `tokens` tokens.
double state_values(const std::vector<mixers::StateSpec>& specs, int64_t tokens) {
  double values = 0;
  for (const mixers::StateSpec& spec : specs) {
    const auto elements =
        static_cast<double>(checked_product(std::span<const int64_t>(spec.shape)).value_or(0));
    // A fixed tensor is read and written; entries of a growing one are read, and one is added.
    values += elements * (spec.per_token ? static_cast<double>(tokens) + 1 : 2);
  }
  return values;
}

}  // namespace

Result<OperatorWork> operator_work(const mixers::MixerDef& mixer,
                                   const OperatorBenchOptions& options) {
  TARN_ASSIGN(const Json json, parse_json(options.config, mixer.name));
  TARN_ASSIGN(const auto config, mixer.parse_config(json, 64, mixer.name));
  const RowValues row = row_values(mixer.op_shape(*config));
  const double forward = row.inputs + row.out + row.saved;
  const double backward = 2 * row.inputs + 2 * row.out + row.saved;  // with dinputs and dout
  const auto sequences = static_cast<double>(options.batch);
  const auto rows = sequences * static_cast<double>(options.tokens);
  const auto flops = [&](mixers::OpPass pass) {
    return sequences * mixer.flops(*config, pass, options.tokens);
  };
  OperatorWork work;
  switch (options.pass) {
    case OperatorPass::kForward: work = {flops(mixers::OpPass::kForward), rows * forward}; break;
    case OperatorPass::kBackward: work = {flops(mixers::OpPass::kBackward), rows * backward}; break;
    case OperatorPass::kForwardBackward:
      work = {flops(mixers::OpPass::kForward) + flops(mixers::OpPass::kBackward),
              rows * (forward + backward)};
      break;
    case OperatorPass::kStep:
      work = {flops(mixers::OpPass::kStep),
              sequences * (row.inputs + row.out +
                           state_values(mixer.state_specs(*config), options.tokens))};
      break;
  }
  work.bytes *= static_cast<double>(dtype_bytes(options.dtype));
  return work;
}

}  // namespace tarn::runtime
