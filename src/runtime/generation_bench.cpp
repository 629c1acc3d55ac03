#include "runtime/generation_bench.h"

#include <algorithm>

#include "runtime/state.h"
#include "runtime/timing.h"

namespace tarn::runtime {
namespace {

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

/// Tokens of a whole sequence: more than what is timed when images are integrated.
int64_t whole_length(const GenerationBenchOptions& options, const model::Model& model) {
  const model::ModelConfig& config = model.config();
  const bool image = config.modality == model::Modality::kImage;
  return image && config.max_tokens > 0 ? config.max_tokens : length_of(options, model);
}

/// Whether the method is timed at positions, not token after token.
bool at_positions(const GenerationBenchOptions& options, const Method& method) {
  const model::Model& model = *method.entry->model;
  return method.mode == GenerateMode::kParallel || method.entry->baseline ||
         (!is_bounded(model) && length_of(options, model) < whole_length(options, model));
}

GenerateOptions generation_of(const GenerationBenchOptions& options, size_t batch,
                              const Method& method) {
  const model::Model& model = *method.entry->model;
  const int64_t whole = whole_length(options, model);
  GenerateOptions generation;
  generation.count = generation.batch = options.batches[batch];
  generation.length = length_of(options, model);
  generation.seed = options.seed;
  generation.mode = method.mode;
  generation.cancel = options.cancel;
  if (at_positions(options, method)) {
    generation.length = whole;
    generation.positions_to_time = spread_positions(whole, options.timed_positions);
  }
  return generation;
}

Status run_once(const GenerationBenchOptions& options, size_t batch, Method& method,
                ThreadPool* pool) {
  const int64_t whole = whole_length(options, *method.entry->model);
  const GenerateOptions generation = generation_of(options, batch, method);
  TARN_ASSIGN(const GenerateResult result, generate(method.entry->model, generation, pool));
  const double count = static_cast<double>(generation.count);
  const double timed = std::max(result.seconds, 1e-12) / static_cast<double>(generation.length);
  Samples& samples = method.samples[batch];
  samples.per_second.push_back(count / (timed * static_cast<double>(whole)));
  samples.tokens_per_second.push_back(count / timed);
  samples.first.push_back(result.ms_per_token_first);
  samples.last.push_back(result.ms_per_token_last);
  method.state_bytes = result.state_bytes_per_sequence;
  return {};
}

GenerationBenchRow::Figures figures_of(const GenerationBenchOptions& options, const Method& method,
                                       size_t batch) {
  const Samples& samples = method.samples[batch];
  const auto [low, high] =
      std::minmax_element(samples.per_second.begin(), samples.per_second.end());
  GenerationBenchRow::Figures figures{options.batches[batch],
                                      median(samples.per_second),
                                      *low,
                                      *high,
                                      median(samples.tokens_per_second),
                                      median(samples.first),
                                      median(samples.last),
                                      {},
                                      0};
  const model::Model& model = *method.entry->model;
  if (method.mode != GenerateMode::kRecurrent || !is_bounded(model)) return figures;
  const StepWork work = step_work(model, method.entry->format, figures.batch, 1);
  const double seconds = static_cast<double>(figures.batch) / figures.tokens_per_second;
  figures.weight_bytes_per_second = work.weight_bytes / seconds;
  if (options.roof != nullptr) {
    figures.share = step_share(*options.roof, method.entry->format, work, seconds);
  }
  return figures;
}

GenerationBenchRow row_of(const GenerationBenchOptions& options, const Method& method) {
  const model::Model& model = *method.entry->model;
  GenerationBenchRow row;
  row.model = method.entry->name;
  row.format = method.entry->format;
  row.baseline = method.entry->baseline;
  row.mode = method.mode;
  row.bounded_state = is_bounded(model);
  const bool positions = at_positions(options, method);
  row.integrated = positions || length_of(options, model) < whole_length(options, model);
  row.timed_positions = positions ? options.timed_positions : 0;
  row.timed_tokens = positions ? 0 : length_of(options, model);
  row.state_bytes_per_sequence = method.state_bytes;
  row.figures.reserve(options.batches.size());
  for (size_t i = 0; i < options.batches.size(); ++i) {
    row.figures.push_back(figures_of(options, method, i));
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
  const auto baselines = std::count_if(methods.begin(), methods.end(),
                                       [](const Method& one) { return one.entry->baseline; });
  const auto others = static_cast<int64_t>(methods.size()) - baselines;
  const int64_t total =
      (options.repeats * others + baselines) * static_cast<int64_t>(options.batches.size());
  const int64_t threads = pool != nullptr ? pool->num_threads() : 1;
  for (size_t batch = 0; batch < options.batches.size(); ++batch) {
    for (const Method& method : methods) {
      TARN_RETURN_IF_ERROR(
          check_generate(*method.entry->model, generation_of(options, batch, method), threads));
    }
  }
  int64_t done = 0;
  for (int64_t round = 0; round < options.repeats; ++round) {
    for (size_t batch = 0; batch < options.batches.size(); ++batch) {
      for (Method& method : methods) {
        if (method.entry->baseline && round > 0) continue;
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
