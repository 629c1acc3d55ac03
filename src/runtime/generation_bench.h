#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "model/model.h"
#include "runtime/generate.h"
#include "runtime/generation_roof.h"

namespace tarn::runtime {

struct GenerationBenchOptions {
  struct Entry {
    std::string name;
    std::shared_ptr<const model::Model> model;
    kernels::WeightFormat format = kernels::WeightFormat::kF32;  ///< that the model is packed in
    /// Only there to compare with: timed once, at `timed_positions`, whatever its state.
    bool baseline = false;
  };
  std::vector<Entry> models;
  std::vector<int64_t> batches = {1, 64};
  /// Tokens per sequence; 0: the model's max_tokens. For images a smaller number is what is timed:
  /// figures are integrated to whole images (bounded states: the same time for every token).
  int64_t length = 0;
  int64_t repeats = 3;  ///< rounds over all methods and batches; figures are medians over them
  /// Prefix lengths at which whole-prefix generation, baselines and, where images are integrated,
  /// growing states are timed; totals are integrated.
  int64_t timed_positions = 6;
  uint64_t seed = 1;
  const GenerationRoof* roof = nullptr;                       ///< null: no shares
  std::function<void(int64_t done, int64_t total)> progress;  ///< runs
  const std::atomic<bool>* cancel = nullptr;
};

/// One way to generate with one model.
struct GenerationBenchRow {
  std::string model;
  kernels::WeightFormat format = kernels::WeightFormat::kF32;
  bool baseline = false;
  GenerateMode mode = GenerateMode::kRecurrent;
  bool bounded_state = false;   ///< the same state size at every token
  bool integrated = false;      ///< from timed positions or tokens, not from whole sequences
  int64_t timed_positions = 0;  ///< 0: tokens were timed one after another
  int64_t timed_tokens = 0;     ///< that many of each sequence
  int64_t state_bytes_per_sequence = 0;
  struct Figures {
    int64_t batch = 0;
    double sequences_per_second = 0;  ///< median over the rounds; min and max beside it
    double sequences_per_second_min = 0, sequences_per_second_max = 0;
    double tokens_per_second = 0;
    double ms_per_token_first = 0, ms_per_token_last = 0;
    /// Of bounded states that are carried along: how close to the limits, and what was read of the
    /// products' weights in a second.
    StepShare share;
    double weight_bytes_per_second = 0;
  };
  std::vector<Figures> figures;  ///< one per batch size
};

/// Times every model with its state, one token at a time, and models whose state grows also without
/// a state (the whole prefix for every token: the baseline of Katharopoulos 2020, table 1). The
/// methods alternate within each round, so that a slow spell of the machine hits all of them.
/// Errors: those of generate(); a model without max_tokens needs `length`.
Result<std::vector<GenerationBenchRow>> bench_generation(const GenerationBenchOptions& options,
                                                         ThreadPool* pool);

}  // namespace tarn::runtime
