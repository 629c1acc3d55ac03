#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "mixers/layer.h"
#include "model/model.h"

namespace tarn::runtime {

struct EvaluateOptions {
  int64_t batch = 8;  ///< sequences per pass; fewer when so many would make it long
  mixers::Form form = mixers::Form::kChunk;  ///< kAuto counts as kChunk
  /// Of each sequence, nonzero where the token counts; no element at all: every token counts.
  std::span<const std::vector<uint8_t>> counted{};
  /// Ends of the ranges of positions that bits are also given for, increasing: (4, 16) asks for
  /// tokens 0 to 3, 4 to 15 and those from 16 on. No element: no ranges.
  std::span<const int64_t> position_ends{};
  std::function<void(int64_t done, int64_t total)> progress{};  ///< sequences, after every pass
  const std::atomic<bool>* cancel = nullptr;  ///< looked at before every piece of every pass
};

/// The counted tokens at positions `begin` to `end` − 1 of all sequences.
struct PositionScore {
  int64_t begin = 0;
  int64_t end = 0;  ///< of the last range: the longest sequence's length
  int64_t counted_tokens = 0;
  double bits_per_dim = 0;  ///< 0 without tokens
};

struct EvaluateResult {
  double bits_per_dim = 0;    ///< total bits / counted tokens
  double standard_error = 0;  ///< of bits_per_dim over sequences (0 for a single one)
  /// Share of the counted tokens that are the most probable class; none with a mixture head, where
  /// every class would have to be tried.
  std::optional<double> accuracy;
  int64_t sequences = 0;
  int64_t tokens = 0;          ///< all
  int64_t counted_tokens = 0;  ///< those that bits and accuracy are about
  double seconds = 0;
  std::vector<PositionScore> by_position;  ///< of the ranges asked for, the last one to the end
};

/// Bits per counted token of `sequences` under the model, −log2 p(token t | tokens before), summed
/// in double precision in a fixed order, and how often the most probable class is right (of equal
/// ones the first). The chunk form carries the state over pieces of 1,024 tokens,
/// so memory does not grow with their length; the parallel form takes whole sequences without
/// state; the step form evaluates one token at a time. Sequences may differ in length; empty ones
/// count as sequences without tokens. Standard error: of the ratio estimator, sqrt(Σ(bits_i −
/// m·n_i)²· N/(N − 1))/Σn, n_i counted tokens. Errors: no token that counts, a mask of another
/// length, a token outside the classes, a sequence longer
/// than max_tokens (all name the sequence); a head output that is not finite; cancelled.
Result<EvaluateResult> evaluate(std::shared_ptr<const model::Model> model,
                                std::span<const std::vector<int32_t>> sequences,
                                const EvaluateOptions& options, ThreadPool* pool);

}  // namespace tarn::runtime
