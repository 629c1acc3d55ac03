#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/result.h"
#include "base/threads.h"
#include "model/model.h"
#include "runtime/ctc.h"
#include "runtime/state.h"

namespace tarn::runtime {

/// Hears one utterance while it is spoken: a causal model over frames with its states, and the most
/// probable path so far. What it named it never takes back. Up to rounding the outputs are those of the
/// whole utterance at once, however it is cut. Memory: the model's state and kMaxPieceRows rows of
/// activations, whatever the length (states that grow grow). Threads: one owner at a time.
class StreamingRecogniser {
 public:
  static constexpr int64_t kMaxPieceRows = 256;

  /// `pool` may be null; it outlives the recogniser. Errors: a model over symbols, or not causal.
  static Result<StreamingRecogniser> open(std::shared_ptr<const model::Model> model,
                                          ThreadPool* pool);
  StreamingRecogniser(StreamingRecogniser&&) noexcept = default;

  /// The next frames [any number, features]; those that do not fill an input row wait for the next ones.
  /// Errors: a size that is no multiple of the features, more rows than max_tokens, no memory for a state
  /// that grows, outputs that are not finite; after one of them only reset() helps.
  Status push(std::span<const float> frames);
  /// The utterance is over: fills up an incomplete row with zeros and hears that.
  Status finish();
  /// Begins another utterance.
  void reset();

  const std::vector<int32_t>& labels() const { return path_.labels(); }
  /// The labels since the last call, which are then no longer kept: for sound without an end.
  std::vector<int32_t> take_labels() { return path_.take_labels(); }
  int64_t state_bytes() const { return state_.used_bytes(); }

 private:
  StreamingRecogniser(std::shared_ptr<const model::Model> model, ThreadPool* pool);
  /// `rows` complete input rows.
  Status hear(const float* frames, int64_t rows);

  std::shared_ptr<const model::Model> model_;
  ThreadPool* pool_;
  SequenceState state_;
  StateBatch bound_;
  Arena arena_;
  CtcPath path_;
  std::vector<float> waiting_;  ///< frames that do not fill a row yet
  std::vector<float> outputs_;
};

}  // namespace tarn::runtime
