#include "runtime/generation_bench.h"

#include <algorithm>

#include "runtime/state.h"

namespace tarn::runtime {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// What the rounds of one method at one batch size gave.
struct Samples {
  std::vector<double> per_second, tokens_per_second, first, last;
};

struct Method {
  const GenerationBenchOptions::Entry* entry = nullptr;
  GenerateMode mode = GenerateMode::kRecurrent;
  std::vector<Samples> samples;  // one per batch size
  int64_t state_bytes = 0;
};

/// Prefix lengths from 1 to `length`, evenly spread.
std::vector<int64_t> spread_positions(int64_t length, int64_t count) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < count; ++i) {
    positions.push_back(1 + (length - 1) * i / std::max<int64_t>(1, count - 1));
  }
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

int64_t length_of(const GenerationBenchOptions& options, const model::Model& model) {
  return options.length > 0 ? options.length : model.config().max_tokens;
}

bool is_bounded(const model::Model& model) {
  return SequenceState::used_bytes_at(model, 1) == SequenceState::used_bytes_at(model, 2);
}

Status run_once(const GenerationBenchOptions& options, size_t batch, Method& method,
                ThreadPool* pool) {
  GenerateOptions generation;
  generation.count = generation.batch = options.batches[batch];
  generation.length = length_of(options, *method.entry->model);
  generation.seed = options.seed;
  generation.mode = method.mode;
  generation.cancel = options.cancel;
  if (method.mode == GenerateMode::kParallel) {
    generation.positions_to_time = spread_positions(generation.length, options.timed_positions);
  }
  TARN_ASSIGN(const GenerateResult result, generate(method.entry->model, generation, pool));
  const double count = static_cast<double>(generation.count);
  const double seconds = std::max(result.seconds, 1e-12);
  Samples& samples = method.samples[batch];
  samples.per_second.push_back(count / seconds);
  samples.tokens_per_second.push_back(count * static_cast<double>(generation.length) / seconds);
  samples.first.push_back(result.ms_per_token_first);
  samples.last.push_back(result.ms_per_token_last);
  method.state_bytes = result.state_bytes_per_sequence;
  return {};
}

GenerationBenchRow row_of(const GenerationBenchOptions& options, const Method& method) {
  GenerationBenchRow row;
  row.model = method.entry->name;
  row.mode = method.mode;
  row.bounded_state = is_bounded(*method.entry->model);
  row.integrated = method.mode == GenerateMode::kParallel;
  row.timed_positions = row.integrated ? options.timed_positions : 0;
  row.state_bytes_per_sequence = method.state_bytes;
  for (size_t i = 0; i < options.batches.size(); ++i) {
    const Samples& samples = method.samples[i];
    const auto [low, high] =
        std::minmax_element(samples.per_second.begin(), samples.per_second.end());
    row.figures.push_back({options.batches[i], median(samples.per_second), *low, *high,
                           median(samples.tokens_per_second), median(samples.first),
                           median(samples.last)});
  }
  return row;
}

}  // namespace

Result<std::vector<GenerationBenchRow>> bench_generation(const GenerationBenchOptions& options,
                                                         ThreadPool* pool) {
  std::vector<Method> methods;
  for (const auto& entry : options.models) {
    if (length_of(options, *entry.model) == 0) {
      return invalid_argument("the model has no max_tokens; give the length to generate",
                              entry.name);
    }
    const std::vector<Samples> none(options.batches.size());
    methods.push_back({&entry, GenerateMode::kRecurrent, none, 0});
    if (!is_bounded(*entry.model)) {
      methods.push_back({&entry, GenerateMode::kParallel, none, 0});
    }
  }
  const int64_t total = options.repeats * static_cast<int64_t>(methods.size()) *
                        static_cast<int64_t>(options.batches.size());
  int64_t done = 0;
  for (int64_t round = 0; round < options.repeats; ++round) {
    for (size_t batch = 0; batch < options.batches.size(); ++batch) {
      for (Method& method : methods) {
        if (options.progress) options.progress(done, total);
        TARN_RETURN_IF_ERROR(run_once(options, batch, method, pool));
        ++done;
      }
    }
  }
  std::vector<GenerationBenchRow> rows;
  for (const Method& method : methods) rows.push_back(row_of(options, method));
  return rows;
}

}  // namespace tarn::runtime
