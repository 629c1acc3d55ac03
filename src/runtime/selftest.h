#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "base/threads.h"
#include "mixers/mixer.h"
#include "model/model.h"

namespace tarn::runtime {

/// Relative error between the head outputs a and b of two forms.
struct FormDifference {
  double max_error = 0;      ///< max |a − b| / max |b| over all rows
  double max_row_error = 0;  ///< the same within one row, largest over the rows
  double norm_error = 0;     ///< |a − b| / |b| in the 2-norm over all rows
};

struct FormComparison {
  int64_t tokens = 0;
  /// Chunk against parallel; nothing where no layer has a parallel form other than its chunks and one
  /// chunk takes all tokens: that would compare a computation with itself.
  std::optional<FormDifference> chunk_parallel;
  FormDifference step_parallel;  ///< step against parallel
  FormDifference step_chunk;     ///< step against chunk
  double parallel_seconds = 0;
  double chunk_seconds = 0;
  double step_seconds = 0;
  /// The largest max_error and max_row_error of those that there are.
  double max_error() const;
  double max_row_error() const;
};

/// Runs one sequence through the parallel, the chunk (with state) and the step form and compares
/// every row's head output. The inputs are the start token, then `tokens` (all but the last are
/// evaluated). `cancel` is looked at before every pass over at most 1,024 tokens; the parallel form is
/// a single pass. Errors: no tokens, a token outside the vocabulary, more than max_tokens; cancelled.
Result<FormComparison> compare_forms(std::shared_ptr<const model::Model> model,
                                     std::span<const int32_t> tokens, ThreadPool* pool,
                                     const std::atomic<bool>* cancel = nullptr);
/// The same over `count` tokens drawn uniformly from the head's classes.
Result<FormComparison> compare_forms(std::shared_ptr<const model::Model> model, int64_t count,
                                     uint64_t seed, ThreadPool* pool,
                                     const std::atomic<bool>* cancel = nullptr);

struct LongRunOptions {
  int64_t tokens = 1'000'000;
  uint64_t seed = 0;
  std::string config{};    ///< JSON of the mixer's config; empty: its first example
  int64_t model_dim = 16;  ///< for parsing the config; the operator itself does not use it
  std::function<void(int64_t done, int64_t total)> progress{};  ///< every 1,000 tokens
  const std::atomic<bool>* cancel = nullptr;                    ///< looked at before every token
};

struct LongRunResult {
  std::string config;  ///< as used
  int64_t tokens = 0;
  double norm_error = 0;        ///< |out − reference| / |reference| over all tokens, 2-norm
  double max_window_error = 0;  ///< the largest such ratio of a window of 1,000 tokens
  double last_window_error = 0;
  int64_t state_bytes = 0;
  /// Growth of the process's resident memory over the run, after a warm-up of 1,000 tokens: the
  /// largest seen at the end of a window. −1 where the system does not say.
  int64_t resident_growth_bytes = 0;
  double seconds = 0;
  /// Of the step form alone: medians over the windows of the first and of the last tenth of the run.
  double us_per_token_first = 0, us_per_token_last = 0;
};

/// Runs the step form (f32) of one operator next to its double-precision reference, token by token,
/// both carrying their state, on random inputs made on the fly (sums of four uniforms for normals).
/// Memory does not depend on the number of tokens for a mixer with a bounded state; others are
/// limited to 65,536 tokens. Errors: bad config, no step form, tokens out of range, cancelled.
Result<LongRunResult> long_run_check(const mixers::MixerDef& mixer, const LongRunOptions& options);

/// Resident memory of this process in bytes (/proc/self/statm), or −1.
int64_t resident_bytes();

}  // namespace tarn::runtime
