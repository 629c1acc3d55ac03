#include "runtime/crossover.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "base/json.h"
#include "runtime/operator_bench.h"

namespace tarn::runtime {
namespace {

/// Bytes of one sequence's state: a fixed part, and a part per token.
struct StateSize {
  int64_t fixed = 0, per_token = 0;
};

Result<StateSize> state_size(const mixers::MixerDef& mixer, const std::string& config_text) {
  TARN_ASSIGN(const Json json, parse_json(config_text, mixer.name));
  TARN_ASSIGN(const auto config, mixer.parse_config(json, 64, mixer.name));
  StateSize size;
  for (const mixers::StateSpec& spec : mixer.state_specs(*config)) {
    const int64_t bytes = 4 * checked_product(std::span<const int64_t>(spec.shape)).value_or(0);
    (spec.per_token ? size.per_token : size.fixed) += bytes;
  }
  return size;
}

struct Side {
  const mixers::MixerDef& mixer;
  OperatorBenchOptions options;
};

Result<Side> prepare(const mixers::MixerDef& mixer, const CrossoverOptions& options,
                     ThreadPool* pool) {
  Side side{mixer, {}};
  TARN_ASSIGN(side.options.config,
              operator_config(mixer, options.num_heads, options.key_dim, options.value_dim));
  side.options.pass = OperatorPass::kStep;
  side.options.batch = options.batch;
  side.options.repeats = options.repeats;
  side.options.cancel = options.cancel;
  TARN_RETURN_IF_ERROR(check_operator(mixer, side.options, pool));
  return side;
}

}  // namespace

double crossing(const std::vector<int64_t>& tokens, const std::vector<double>& bounded,
                const std::vector<double>& growing) {
  size_t first = tokens.size();
  while (first > 0 && growing[first - 1] >= bounded[first - 1]) --first;
  if (first == tokens.size()) return -1;
  if (first == 0) return static_cast<double>(tokens[0]);
  const double before = growing[first - 1] - bounded[first - 1];
  const double after = growing[first] - bounded[first];
  const double part = before / (before - after);
  return static_cast<double>(tokens[first - 1]) +
         part * static_cast<double>(tokens[first] - tokens[first - 1]);
}

Result<CrossoverResult> measure_crossover(const mixers::MixerDef& bounded,
                                          const mixers::MixerDef& growing,
                                          const CrossoverOptions& options, ThreadPool* pool) {
  if (!bounded.bounded_state || growing.bounded_state) {
    return invalid_argument(
        fmt::format("wanted a mixer with a bounded state and one whose state grows, got {} and {}",
                    bounded.name, growing.name));
  }
  TARN_ASSIGN(Side fixed, prepare(bounded, options, pool));
  TARN_ASSIGN(Side cache, prepare(growing, options, pool));
  TARN_ASSIGN(const StateSize fixed_size, state_size(bounded, fixed.options.config));
  TARN_ASSIGN(const StateSize cache_size, state_size(growing, cache.options.config));
  CrossoverResult result;
  result.predicted_tokens = static_cast<double>(fixed_size.fixed - cache_size.fixed) /
                            static_cast<double>(cache_size.per_token);
  std::vector<double> bounded_ms, growing_ms, bounded_bytes, growing_bytes;
  for (int64_t tokens : options.tokens) {
    if (options.progress) {
      options.progress(static_cast<int64_t>(result.points.size()),
                       static_cast<int64_t>(options.tokens.size()));
    }
    // The position before this token, so that the growing state holds exactly `tokens` entries.
    fixed.options.tokens = cache.options.tokens = tokens - 1;
    TARN_ASSIGN(const OperatorBenchResult one, bench_operator(bounded, fixed.options, pool));
    TARN_ASSIGN(const OperatorBenchResult other, bench_operator(growing, cache.options, pool));
    result.points.push_back({tokens, one.state_bytes / options.batch,
                             other.state_bytes / options.batch, one.ms_median, other.ms_median});
    bounded_ms.push_back(one.ms_median);
    growing_ms.push_back(other.ms_median);
    bounded_bytes.push_back(static_cast<double>(one.state_bytes));
    growing_bytes.push_back(static_cast<double>(other.state_bytes));
  }
  result.memory_tokens = crossing(options.tokens, bounded_bytes, growing_bytes);
  result.time_tokens = crossing(options.tokens, bounded_ms, growing_ms);
  return result;
}

}  // namespace tarn::runtime
