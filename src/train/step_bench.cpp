#include "train/step_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numbers>
#include <utility>

#include "base/rng.h"
#include "runtime/roof_bench.h"
#include "train/learner.h"

namespace tarn::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGiga = 1e9;

double bits(const Learner::Outcome& outcome, const Batch& batch) {
  return outcome.nats /
         (static_cast<double>(std::max<int64_t>(1, batch.counted)) * std::numbers::ln2);
}

Status measure_limits(ThreadPool* pool, StepBenchResult& result) {
  runtime::RoofOptions options;
  options.kinds = {"f32_fma", "bf16_dot"};
  TARN_ASSIGN(const auto figures, runtime::measure_roof(options, *pool));
  // The best round: a limit is what the machine does while nothing else runs on it.
  result.f32_flops_per_second = kGiga * figures[0].max;
  result.bf16_flops_per_second = figures[1].rounds > 0 ? kGiga * figures[1].max : 0.0;
  return {};
}

void add_rest(double seconds, StepBenchResult& result) {
  for (const PartTimes::Part& part : result.parts) seconds -= part.seconds;
  result.parts.push_back(
      {"other", static_cast<int64_t>(result.step_ms.size()), seconds, 0.0, DType::kF32});
}

/// Flops per second that limit the products of a part; 0: unknown.
double limit_of(const StepBenchResult& result, const PartTimes::Part& part) {
  return part.format == DType::kBF16 ? result.bf16_flops_per_second : result.f32_flops_per_second;
}

double total_seconds(const StepBenchResult& result) {
  double seconds = 0.0;
  for (const PartTimes::Part& part : result.parts) seconds += part.seconds;
  return seconds;
}

}  // namespace

double StepBenchResult::median_ms() const {
  std::vector<double> sorted = step_ms;
  std::ranges::sort(sorted);
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : 0.5 * (sorted[half - 1] + sorted[half]);
}

double StepBenchResult::tokens_per_second() const {
  return static_cast<double>(batch * tokens) * 1e3 / median_ms();
}

Result<StepBenchResult> bench_steps(const TrainConfig& config,
                                    const std::function<const Batch&(int64_t)>& next,
                                    const StepBenchOptions& options, ThreadPool* pool) {
  StepBenchResult result;
  TARN_RETURN_IF_ERROR(measure_limits(pool, result));
  PartTimes times;
  // The schedule of learning rates is defined up to the last update.
  TrainConfig long_enough = config;
  long_enough.training.updates = std::max(config.training.updates, options.warm_up + options.steps);
  Learner learner(long_enough, pool, &times);
  double seconds = 0.0;
  for (int64_t step = 0; step < options.warm_up + options.steps; ++step) {
    if (step == options.warm_up) times.clear();
    const Clock::time_point start = Clock::now();
    const Batch* batch = nullptr;
    {
      const PartTimer timer(&times, "batch");
      batch = &next(step);
    }
    const Learner::Outcome outcome = learner.learn(*batch, step);
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    if (!outcome.applied) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("loss or gradient of step {} is not finite: not timed", step),
                   "training step"};
    }
    if (step == 0) result.first_bits = bits(outcome, *batch);
    result.last_bits = bits(outcome, *batch);
    result.batch = batch->count;
    result.tokens = batch->rows() / batch->count;
    if (options.stop != nullptr && options.stop->load() != 0) {
      return Error{ErrorCode::kCancelled, "stopped on request", {}};
    }
    if (step < options.warm_up) continue;
    seconds += elapsed;
    result.step_ms.push_back(1e3 * elapsed);
  }
  result.threads = pool->num_threads();
  result.precision = config.training.precision;
  result.parts = times.parts();
  add_rest(seconds, result);
  return result;
}

Batch random_batch(const model::ModelConfig& model, int64_t count, int64_t length, uint64_t seed) {
  Batch batch;
  batch.count = count;
  batch.length = length;
  batch.counted = count * length;
  const auto symbols = static_cast<uint32_t>(std::min(model.head.classes, model.vocabulary));
  Philox random{seed, 0};
  for (int64_t row = 0; row < count * length; ++row) {
    const bool first = row % length == 0;
    batch.inputs.push_back(first ? static_cast<int32_t>(model.start_token) : batch.targets.back());
    batch.targets.push_back(static_cast<int32_t>(random.next_below(symbols)));
  }
  return batch;
}

Json to_json(const StepBenchResult& result) {
  const auto [least, most] = std::ranges::minmax_element(result.step_ms);
  const auto steps = static_cast<double>(result.step_ms.size());
  const double total = total_seconds(result);
  Json::Array parts;
  for (const PartTimes::Part& part : result.parts) {
    Json row = Json::Object{{"name", part.name},
                            {"calls_per_step", static_cast<double>(part.calls) / steps},
                            {"ms_per_step", 1e3 * part.seconds / steps},
                            {"share", part.seconds / total}};
    if (part.flops > 0.0) {
      const double rate = part.flops / part.seconds;
      row.set("format", dtype_name(part.format));
      row.set("gflops_per_second", rate / kGiga);
      if (limit_of(result, part) > 0.0) {
        row.set("percent_of_roof", 100.0 * rate / limit_of(result, part));
      }
    }
    parts.push_back(std::move(row));
  }
  return Json::Object{
      {"batch", result.batch},
      {"tokens", result.tokens},
      {"threads", result.threads},
      {"precision", dtype_name(result.precision)},
      {"steps", static_cast<int64_t>(result.step_ms.size())},
      {"tokens_per_second", result.tokens_per_second()},
      {"ms_per_step",
       Json::Object{{"median", result.median_ms()}, {"min", *least}, {"max", *most}}},
      {"first_bits", result.first_bits},
      {"last_bits", result.last_bits},
      {"roof", Json::Object{{"f32_gflops_per_second", result.f32_flops_per_second / kGiga},
                            {"bf16_gflops_per_second", result.bf16_flops_per_second / kGiga}}},
      {"parts", std::move(parts)}};
}

std::string to_text(const StepBenchResult& result) {
  const auto [least, most] = std::ranges::minmax_element(result.step_ms);
  const auto steps = static_cast<double>(result.step_ms.size());
  const double total = total_seconds(result);
  std::string text = fmt::format(
      "batch {} of {} tokens, {} threads, {}: {:.0f} tokens/s, {:.1f} ms per step (median of {}; "
      "{:.1f} to {:.1f})\n\n{:<24}{:>7}{:>10}{:>8}{:>10}{:>10}\n",
      result.batch, result.tokens, result.threads, dtype_name(result.precision),
      result.tokens_per_second(), result.median_ms(), result.step_ms.size(), *least, *most, "part",
      "calls", "ms/step", "share", "GFLOP/s", "of roof");
  for (const PartTimes::Part& part : result.parts) {
    const double rate = part.flops / part.seconds;
    const double limit = limit_of(result, part);
    text += fmt::format(
        "{:<24}{:>7.0f}{:>10.2f}{:>7.1f}%{:>10}{:>10}\n", part.name,
        static_cast<double>(part.calls) / steps, 1e3 * part.seconds / steps,
        100.0 * part.seconds / total, part.flops > 0.0 ? fmt::format("{:.1f}", rate / kGiga) : "",
        part.flops > 0.0 && limit > 0.0 ? fmt::format("{:.1f}%", 100.0 * rate / limit) : "");
  }
  text +=
      fmt::format("{:<24}{:>7}{:>10.2f}{:>7.1f}%\n", "whole step", 1, 1e3 * total / steps, 100.0);
  return text;
}

}  // namespace tarn::train
