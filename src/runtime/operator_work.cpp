#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/json.h"
#include "model/parameters.h"
#include "runtime/operator_bench.h"
#include "runtime/operator_call.h"
#include "runtime/process_memory.h"

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

/// What a step after `tokens` tokens reads and writes of one sequence's state.
mixers::StateTraffic step_traffic(const mixers::MixerDef& mixer, const mixers::MixerConfig& config,
                                  int64_t tokens) {
  if (mixer.step_traffic != nullptr) return mixer.step_traffic(config, tokens);
  mixers::StateTraffic traffic;
  for (const mixers::StateSpec& spec : mixer.state_specs(config)) {
    const auto elements =
        static_cast<double>(checked_product(std::span<const int64_t>(spec.shape)).value_or(0));
    traffic.read += elements * (spec.per_token ? static_cast<double>(tokens) : 1);
    traffic.written += elements;
  }
  return traffic;
}

/// Values of the parameters that the operator itself reads.
double param_values(const mixers::OpShape& shape) {
  double values = 0;
  for (const mixers::ParamSpec& spec : shape.params) {
    values += static_cast<double>(model::element_count(spec.shape));
  }
  return values;
}

}  // namespace

Status check_memory(const mixers::OpShape& shape, int64_t rows, const CallBytes& bytes) {
  const int64_t available = machine_memory_bytes();
  const RowValues row = row_values(shape);
  // Doubles: sizes from outside may multiply beyond any integer.
  const double values = static_cast<double>(rows) * (row.inputs + row.out) + param_values(shape);
  const double total =
      static_cast<double>(bytes.values) * values + static_cast<double>(bytes.state);
  if (total <= static_cast<double>(available)) return {};
  return Error{
      ErrorCode::kResource,
      fmt::format("the tensors of {} tokens would take {:.3g} bytes, more than the {} that "
                  "this machine or its limits allow",
                  rows, total, available),
      {}};
}

Result<OperatorWork> operator_work(const mixers::MixerDef& mixer,
                                   const OperatorBenchOptions& options) {
  TARN_ASSIGN(const Json json, parse_json(options.config, mixer.name));
  TARN_ASSIGN(const auto config, mixer.parse_config(json, 64, mixer.name));
  const mixers::OpShape shape = mixer.op_shape(*config);
  const RowValues row = row_values(shape);
  const double params = param_values(shape);
  const double forward = row.inputs + row.out + row.saved;
  const double backward = 2 * row.inputs + 2 * row.out + row.saved;  // with dinputs and dout
  const auto sequences = static_cast<double>(options.batch);
  const auto rows = sequences * static_cast<double>(options.tokens);
  const auto flops = [&](mixers::OpPass pass) {
    return sequences * mixer.flops(*config, pass, options.tokens);
  };
  OperatorWork work;
  switch (options.pass) {
    case OperatorPass::kForward:
      work = {flops(mixers::OpPass::kForward), rows * forward + params};
      break;
    case OperatorPass::kBackward:  // adds to the parameters' gradients
      work = {flops(mixers::OpPass::kBackward), rows * backward + 3 * params};
      break;
    case OperatorPass::kForwardBackward:
      work = {flops(mixers::OpPass::kForward) + flops(mixers::OpPass::kBackward),
              rows * (forward + backward) + 4 * params};
      break;
    case OperatorPass::kStep: {
      const mixers::StateTraffic state = step_traffic(mixer, *config, options.tokens);
      work = {flops(mixers::OpPass::kStep),
              sequences * (row.inputs + row.out + state.read + state.written) + params};
      work.touched_state = 4 * sequences * std::max(state.read, state.written);
      break;
    }
  }
  const auto value_bytes = static_cast<double>(dtype_bytes(options.dtype));
  work.bytes *= value_bytes;
  work.touched_params = value_bytes * params;
  return work;
}

}  // namespace tarn::runtime
