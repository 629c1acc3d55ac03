#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/result.h"
#include "base/rng.h"
#include "base/threads.h"
#include "model/model.h"
#include "runtime/sampler.h"
#include "runtime/state.h"
#include "runtime/utf8.h"

namespace tarn::runtime {

/// One sequence that a model is working on: tokens so far, state, random stream, last head output.
///
/// The model's inputs are the start token, then the tokens: input 0 predicts token 0. Tokens are
/// appended first and evaluated later, all that are waiting at once, by a `Generator`; no input is
/// evaluated twice. A session with no waiting inputs has an output to draw the next token from.
/// Move-only. Threads: one owner at a time.
class Session {
 public:
  struct Options {
    uint64_t seed = 0;
    uint64_t stream = 0;      ///< of the random numbers: the index of the sequence
    bool keep_tokens = true;  ///< false: tokens are dropped once evaluated (memory stays bounded)
  };
  Session(std::shared_ptr<const model::Model> model, const Options& options);
  Session(Session&&) noexcept = default;
  Session& operator=(Session&&) noexcept = default;

  /// Adds tokens to be evaluated by the next Generator::evaluate(). Errors, and nothing is added:
  /// a token outside the vocabulary, more tokens than the model's max_tokens.
  Status append(std::span<const int32_t> tokens);
  /// Draws the next token from output() and appends it. Errors: inputs are waiting, the sequence is
  /// at max_tokens, the output is not finite (Sampler::draw). Allocates nothing within reserve().
  Result<int32_t> draw(Sampler& sampler);
  /// Room for `tokens` tokens in history and state. Errors: SequenceState::reserve.
  Status reserve(int64_t tokens);

  /// Text that `token` completes, for models over bytes: valid UTF-8, held back until characters
  /// are complete. The unfinished bytes are part of a snapshot.
  std::string text_of(int32_t token);
  Utf8Stream& text() { return text_; }
  const Utf8Stream& text() const { return text_; }

  /// Forgets everything; the random stream starts again. Keeps the memory.
  void reset();
  /// An exact copy that continues with the same random numbers. Cost: a copy of the state.
  Session clone() const;
  /// A copy that continues with random numbers of its own. Cost: a copy of the state.
  Session fork(uint64_t stream) const;
  /// What rollback() returns to. Cost: a copy of the state.
  Session mark() const { return clone(); }
  /// Becomes what it was at `mark`, random stream included. Cost: a copy of the state into the memory
  /// that is there.
  void rollback(const Session& mark);

  const model::Model& model() const { return *model_; }
  const std::shared_ptr<const model::Model>& shared_model() const { return model_; }
  /// Tokens so far, without the start token; those already dropped are counted.
  int64_t token_count() const { return dropped_ + static_cast<int64_t>(tokens_.size()); }
  /// The tokens that are kept: the last tokens().size() of token_count().
  std::span<const int32_t> tokens() const { return tokens_; }
  /// Inputs evaluated so far, the start token included.
  int64_t position() const { return state_.position(); }
  /// Inputs that wait for evaluation, the start token included.
  int64_t waiting() const { return token_count() + 1 - position(); }
  /// Waiting inputs that the model has positions for.
  int64_t evaluable() const;
  /// Whether the sequence has max_tokens tokens: its last token is never evaluated.
  bool is_full() const;
  /// Whether output() predicts the next token.
  bool has_output() const { return waiting() == 0; }
  /// Head output after the last evaluated input; meaningful while has_output().
  std::span<const float> output() const { return output_; }
  SequenceState& state() { return state_; }
  const SequenceState& state() const { return state_; }
  Philox& rng() { return rng_; }
  const Philox& rng() const { return rng_; }
  bool keeps_tokens() const { return keep_tokens_; }

 private:
  Session(std::shared_ptr<const model::Model> model, SequenceState state);
  int32_t input(int64_t position) const;
  /// Unless keep_tokens: forgets evaluated tokens, all or when they are the larger part.
  void drop_evaluated();

  friend class Generator;       // evaluates
  friend struct SessionAccess;  // snapshots

  std::shared_ptr<const model::Model> model_;
  SequenceState state_;
  Philox rng_;
  Utf8Stream text_;
  std::vector<int32_t> tokens_;
  std::vector<float> output_;
  int64_t dropped_ = 0;
  bool keep_tokens_ = true;
};

/// Advances many sessions of one model together. Each session's bits depend on that session alone:
/// not on its batch mates, their number or the threads. Allocates nothing per token once it has
/// seen the largest batch. Threads: one caller at a time.
class Generator {
 public:
  /// `pool` may be null (serial); both outlive the generator.
  Generator(std::shared_ptr<const model::Model> model, ThreadPool* pool);

  /// Evaluates every waiting input of every session. A session with one waiting input takes the
  /// step form, with more the chunk form, so the way a session is computed depends on that session
  /// alone. The last token of a full sequence stays waiting.
  /// Errors, and nothing is evaluated: no room for the state (kResource).
  Status evaluate(std::span<Session* const> sessions);
  /// The next piece_size() of waiting inputs for each session, none of one without any. Calls with
  /// any batch mates and any `most` end in the bits of one evaluate(). Errors: as evaluate().
  Status advance(std::span<Session* const> sessions, int64_t most = kPieceTokens);
  /// Of `evaluable` waiting inputs those that one pass takes: all of them up to `most` + 1, else
  /// `most`, a multiple of piece_quantum(). One input is never left over: it would take the step
  /// form, whose bits differ from the chunk form's.
  static int64_t piece_size(int64_t evaluable, int64_t most) {
    return evaluable <= most + 1 ? evaluable : most;
  }
  /// Evaluates what waits, then draws and appends one token for each session; `drawn` (empty, or
  /// one per session) receives the tokens. Errors: the first of evaluate() and Session::draw();
  /// sessions without an error of their own have drawn.
  Status step(std::span<Session* const> sessions, const SamplerOptions& sampler,
              std::span<int32_t> drawn = {});

  /// Convenience for one session: append and evaluate.
  Status feed(Session& session, std::span<const int32_t> tokens);

  /// What shorter pieces must be multiples of: the largest MixerDef::cut_quantum of the model's
  /// mechanisms, kPieceTokens where one has none.
  int64_t piece_quantum() const { return piece_quantum_; }

  static constexpr int64_t kPieceTokens = 512;  ///< longest piece of one session in one pass
  static constexpr int64_t kPassRows = 4096;    ///< rows of one pass, at least one session's piece

 private:
  Status reserve(std::span<Session* const> sessions);
  bool advance_reserved(std::span<Session* const> sessions, int64_t most);
  /// Evaluates the next piece of the sessions that take `form` now; false if there are none.
  bool evaluate_round(std::span<Session* const> sessions, mixers::Form form, int64_t most);
  void evaluate_group(mixers::Form form, int64_t rows, int64_t most);
  void prepare_samplers(const SamplerOptions& options);

  std::shared_ptr<const model::Model> model_;
  ThreadPool* pool_;
  int64_t piece_quantum_;
  Arena arena_;
  StateBatch states_;
  std::vector<Sampler> samplers_;  // one per thread
  std::vector<Session*> group_;
  std::vector<SequenceState*> group_states_;
  std::vector<int64_t> begin_, length_, positions_;
  std::vector<int32_t> inputs_;
  std::vector<float> outputs_;
  std::vector<Status> statuses_;
};

}  // namespace tarn::runtime
