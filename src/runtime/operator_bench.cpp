#include "runtime/operator_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/checked.h"
#include "base/json.h"
#include "runtime/operator_call.h"
#include "runtime/process_memory.h"

namespace tarn::runtime {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kShortestTiming = 2e-3;  // seconds; shorter calls are timed in bunches

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool is_cancelled(const OperatorBenchOptions& options) {
  return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed);
}

/// Times `call` as often as asked after one untimed call; fills the ms_ figures unless cancelled.
template <class Call>
void time_calls(const OperatorBenchOptions& options, Call call, OperatorBenchResult& result) {
  if (is_cancelled(options)) return;
  const Clock::time_point first = Clock::now();
  call();
  const double once = std::max(seconds_since(first), 1e-9);
  const int64_t bunch = std::max<int64_t>(1, static_cast<int64_t>(kShortestTiming / once));
  std::vector<double> times;
  for (int64_t i = 0; i < options.repeats; ++i) {
    if (is_cancelled(options)) return;
    const Clock::time_point start = Clock::now();
    for (int64_t j = 0; j < bunch; ++j) call();
    times.push_back(1e3 * seconds_since(start) / static_cast<double>(bunch));
  }
  std::sort(times.begin(), times.end());
  result.ms_median = times[times.size() / 2];
  result.ms_min = times.front();
  result.ms_max = times.back();
}

OperatorBenchResult bench_step(const mixers::MixerDef& mixer, const mixers::MixerConfig& config,
                               const mixers::OpShape& shape, const OperatorBenchOptions& options,
                               ThreadPool* pool) {
  Arena arena;
  OperatorCall<float> call(config, shape,
                           std::vector<int64_t>(static_cast<size_t>(options.batch), 1));
  call.randomise(options.seed);
  OperatorState state(mixer.state_specs(config), options.batch, options.tokens + 1);
  if (!state.randomise(options.seed, [&] { return is_cancelled(options); })) return {};
  // Every call answers the same position: the state keeps its size while it is timed.
  for (int64_t& position : call.positions()) position = options.tokens;
  mixers::OpArgs<float>& args = call.args();
  args.positions = call.positions().data();
  args.state = state.refs();
  args.pool = pool;
  args.arena = &arena;
  Arena kept;
  if (mixer.prepare != nullptr)
    args.prepared = mixer.prepare(config, args.params, DType::kF32, pool, kept);
  OperatorBenchResult result;
  time_calls(
      options, [&] { mixer.step(args); }, result);
  result.peak_extra_bytes = arena.capacity_bytes() + kept.capacity_bytes();
  result.tensor_bytes = call.bytes();
  result.state_bytes = state.bytes();
  return result;
}

OperatorBenchResult bench_bf16(const mixers::MixerDef& mixer, const mixers::MixerConfig& config,
                               const mixers::OpShape& shape, const OperatorBenchOptions& options,
                               ThreadPool* pool) {
  OperatorCall<uint16_t> call(
      config, shape, std::vector<int64_t>(static_cast<size_t>(options.batch), options.tokens));
  call.randomise(options.seed);
  for (uint16_t& value : call.out().span()) value = 0;  // touches the pages
  OperatorBenchResult result;
  result.tensor_bytes = call.bytes();
  const bool measures = reset_peak_resident();
  const int64_t before = peak_resident_bytes();
  Arena arena;
  Buffer<float> saved(call.rows() * shape.saved_per_row);
  call.args().saved = saved.data();
  call.args().pool = pool;
  call.args().arena = &arena;
  mixer.chunk_bf16(call.args());
  result.peak_extra_bytes = arena.capacity_bytes() + saved.size_bytes();
  if (measures) result.resident_growth_bytes = peak_resident_bytes() - before;
  time_calls(
      options, [&] { mixer.chunk_bf16(call.args()); }, result);
  return result;
}

OperatorBenchResult bench_sequences(const mixers::MixerDef& mixer,
                                    const mixers::MixerConfig& config, const mixers::OpShape& shape,
                                    const OperatorBenchOptions& options, ThreadPool* pool) {
  const bool with_backward = options.pass != OperatorPass::kForward;
  const std::vector<int64_t> lengths(static_cast<size_t>(options.batch), options.tokens);
  OperatorCall<float> call(config, shape, lengths);
  call.randomise(options.seed);
  // Pages are touched before the first call, so that its growth is the operator's own.
  for (float& value : call.out().span()) value = 0;
  std::unique_ptr<OperatorCall<float>> gradient;
  std::vector<kernels::Heads<float>> dinputs;
  if (with_backward) {
    gradient = std::make_unique<OperatorCall<float>>(config, shape, lengths);
    gradient->randomise(options.seed + 1);
    fill_random(gradient->out().span(), mixers::OpInput::Range::kNormal, options.seed + 2, 0);
    for (size_t i = 0; i < gradient->inputs().size(); ++i) {
      const auto& heads = gradient->args().inputs[i];
      dinputs.push_back({gradient->inputs()[i].data(), heads.row_stride, heads.head_stride});
    }
  }
  OperatorBenchResult result;
  result.tensor_bytes = call.bytes() + (gradient ? gradient->bytes() : 0);
  const bool measures = reset_peak_resident();
  const int64_t before = peak_resident_bytes();

  Arena arena;
  Buffer<float> saved(call.rows() * shape.saved_per_row);
  mixers::OpBackwardArgs args;
  args.forward = call.args();
  args.forward.saved = saved.data();
  args.forward.pool = pool;
  args.forward.arena = &arena;
  if (gradient) args.dout = gradient->args().out;
  args.dinputs = dinputs;
  if (with_backward) args.dparams = gradient->params();
  const auto whole = mixers::whole_form(mixer, config);
  auto run_forward = [&] { whole(args.forward); };
  auto run_backward = [&] { mixer.backward(args); };
  run_forward();
  if (with_backward) run_backward();
  result.peak_extra_bytes = arena.capacity_bytes() + saved.size_bytes();
  if (measures) result.resident_growth_bytes = peak_resident_bytes() - before;
  const auto run = [&] {
    if (options.pass != OperatorPass::kBackward) run_forward();
    if (with_backward) run_backward();
  };
  time_calls(options, run, result);
  return result;
}

}  // namespace

bool has_form(const mixers::MixerDef& mixer, const OperatorBenchOptions& options) {
  if (options.dtype == DType::kBF16) {
    return options.pass == OperatorPass::kForward && mixer.chunk_bf16 != nullptr;
  }
  if (options.pass == OperatorPass::kStep) return mixer.step != nullptr;
  if (options.pass == OperatorPass::kForward) return mixer.chunk != nullptr;
  return mixer.chunk != nullptr && mixer.backward != nullptr;
}

Status check_form(const mixers::MixerDef& mixer, const mixers::MixerConfig& config,
                  const OperatorBenchOptions& options) {
  if (!has_form(mixer, options)) {
    return Error{ErrorCode::kUnsupported, "the mixer has no such form", mixer.name};
  }
  const bool whole = options.pass != OperatorPass::kStep && options.dtype == DType::kF32;
  if (whole || !mixer.state_specs(config).empty()) return {};
  return Error{ErrorCode::kUnsupported, "a config that is not causal has no such form", mixer.name};
}

Result<OperatorBenchResult> bench_operator(const mixers::MixerDef& mixer,
                                           const OperatorBenchOptions& options, ThreadPool* pool) {
  TARN_ASSIGN(const Json json, parse_json(options.config, mixer.name));
  TARN_ASSIGN(const auto config, mixer.parse_config(json, 64, mixer.name));
  const mixers::OpShape shape = mixer.op_shape(*config);
  const bool step = options.pass == OperatorPass::kStep;
  const bool backward =
      options.pass == OperatorPass::kBackward || options.pass == OperatorPass::kForwardBackward;
  TARN_RETURN_IF_ERROR(check_form(mixer, *config, options));
  int64_t state_bytes = 0;
  for (const mixers::StateSpec& spec : mixer.state_specs(*config)) {
    const int64_t elements = checked_product(std::span<const int64_t>(spec.shape)).value_or(0);
    const int64_t entries = step && spec.per_token ? options.tokens + 1 : 1;
    state_bytes += 4 * elements * entries * options.batch;
  }
  const auto rows = checked_mul(options.batch, step ? int64_t{1} : options.tokens);
  TARN_RETURN_IF_ERROR(check_memory(
      shape, rows.value_or(INT64_MAX),
      {.values = sizeof(float) * (backward ? 2 : 1), .state = step ? state_bytes : 0}));
  TARN_ASSIGN(const OperatorWork work, operator_work(mixer, options));
  const auto bench = step                            ? bench_step
                     : options.dtype == DType::kBF16 ? bench_bf16
                                                     : bench_sequences;
  OperatorBenchResult result = bench(mixer, *config, shape, options, pool);
  if (is_cancelled(options)) {
    return Error{ErrorCode::kCancelled, "the benchmark was stopped on request", {}};
  }
  result.flops = work.flops;
  result.bytes = work.bytes;
  result.working_set_bytes =
      result.tensor_bytes + static_cast<int64_t>(work.touched_state + work.touched_params);
  return result;
}

}  // namespace tarn::runtime
