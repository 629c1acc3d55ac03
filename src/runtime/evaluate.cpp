#include "runtime/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>

#include "base/arena.h"
#include "runtime/sampler.h"
#include "runtime/state.h"

namespace tarn::runtime {

namespace {

constexpr int64_t kPieceTokens = 1024;
/// Rows of one pass for each thread: a fraction of a second of work between looks at `cancel`. More
/// would gain nothing, because the decoder takes about 1,000 rows at once.
constexpr int64_t kPassRows = 4096;

using Sequences = std::span<const std::vector<int32_t>>;

Status check_sequences(const model::ModelConfig& config, Sequences sequences) {
  const int64_t classes = std::min(config.head.classes, config.vocabulary);
  int64_t tokens = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const std::string where = "sequence " + std::to_string(i);
    const auto length = static_cast<int64_t>(sequences[i].size());
    if (config.max_tokens > 0 && length > config.max_tokens) {
      return invalid_argument("has " + std::to_string(length) +
                                  " tokens, the model takes at most " +
                                  std::to_string(config.max_tokens),
                              where);
    }
    for (size_t t = 0; t < sequences[i].size(); ++t) {
      const int32_t token = sequences[i][t];
      if (token >= 0 && token < classes) continue;
      return invalid_argument("token " + std::to_string(t) + " is " + std::to_string(token) +
                                  ", must be in [0, " + std::to_string(classes) + ")",
                              where);
    }
    tokens += length;
  }
  if (tokens == 0) return invalid_argument("there is no token to evaluate");
  return {};
}

/// Tokens of a sequence that one pass takes.
int64_t piece_tokens(mixers::Form form) {
  switch (form) {
    case mixers::Form::kStep: return 1;
    case mixers::Form::kParallel: return INT64_MAX;
    default: return kPieceTokens;
  }
}

/// Sequences of one pass: as many as asked for, while their rows are at most kPassRows per thread.
int64_t pass_sequences(Sequences sequences, const EvaluateOptions& options, ThreadPool* pool) {
  size_t longest = 1;
  for (const auto& sequence : sequences) longest = std::max(longest, sequence.size());
  const int64_t rows = std::min(piece_tokens(options.form), static_cast<int64_t>(longest));
  const int64_t threads = pool != nullptr ? pool->num_threads() : 1;
  const int64_t most = std::max<int64_t>(1, kPassRows / rows) * threads;
  return std::min({options.batch, static_cast<int64_t>(sequences.size()), most});
}

/// Evaluates a batch of sequences piece by piece; owns what is reused from batch to batch.
class Evaluator {
 public:
  Evaluator(std::shared_ptr<const model::Model> model, const EvaluateOptions& options,
            ThreadPool* pool)
      : cancel_(options.cancel),
        model_(std::move(model)),
        form_(options.form == mixers::Form::kAuto ? mixers::Form::kChunk : options.form),
        pool_(pool),
        batch_(*model_) {
    piece_ = piece_tokens(form_);
    if (form_ == mixers::Form::kParallel) return;
    for (int64_t i = 0; i < options.batch; ++i) states_.emplace_back(model_);
  }

  /// Bits of each of `sequences` into `bits`; `first` is the index of the first one, for messages.
  Status run(Sequences sequences, int64_t first, std::span<double> bits) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      bits[i] = 0.0;
      if (states_.empty()) continue;
      states_[i].reset();
      TARN_RETURN_IF_ERROR(states_[i].reserve(static_cast<int64_t>(sequences[i].size())));
    }
    int64_t done = 0;
    while (gather(sequences, done)) {
      if (cancel_ != nullptr && cancel_->load(std::memory_order_relaxed)) {
        return Error{ErrorCode::kCancelled, "evaluation was stopped on request", {}};
      }
      forward();
      TARN_RETURN_IF_ERROR(score(first, bits));
      done += std::min(piece_, INT64_MAX - done);
    }
    return {};
  }

 private:
  /// The rows of the next piece of every sequence that has one; false if none has.
  bool gather(Sequences sequences, int64_t done) {
    lanes_.clear();
    begin_.clear();
    length_.clear();
    inputs_.clear();
    targets_.clear();
    for (size_t i = 0; i < sequences.size(); ++i) {
      const std::vector<int32_t>& tokens = sequences[i];
      const auto count = static_cast<int64_t>(tokens.size());
      if (done >= count) continue;
      const int64_t end = done + std::min(piece_, count - done);
      lanes_.push_back(i);
      begin_.push_back(static_cast<int64_t>(inputs_.size()));
      length_.push_back(end - done);
      for (int64_t t = done; t < end; ++t) {
        inputs_.push_back(t == 0 ? static_cast<int32_t>(model_->config().start_token)
                                 : tokens[static_cast<size_t>(t - 1)]);
        targets_.push_back(tokens[static_cast<size_t>(t)]);
      }
    }
    positions_.assign(lanes_.size(), done);
    return !lanes_.empty();
  }

  void forward() {
    const auto output_dim = static_cast<size_t>(model_->config().head.output_dim());
    outputs_.resize(inputs_.size() * output_dim);
    const model::TokenBatch batch{
        {static_cast<int64_t>(lanes_.size()), begin_.data(), length_.data()},
        positions_.data(),
        inputs_.data()};
    model::LayerStates layers;
    if (!states_.empty()) {
      bound_.clear();
      for (const size_t lane : lanes_) bound_.push_back(&states_[lane]);
      batch_.bind(bound_);
      layers = batch_.layers();
    }
    model_->forward(batch, layers, form_, model::Outputs::kAllRows, outputs_.data(), pool_, arena_);
    for (size_t i = 0; i < bound_.size(); ++i) bound_[i]->set_position(positions_[i] + length_[i]);
  }

  Status score(int64_t first, std::span<double> bits) {
    const model::HeadConfig& head = model_->config().head;
    const auto output_dim = static_cast<size_t>(head.output_dim());
    row_bits_.resize(targets_.size());
    const auto body = [&](int64_t begin, int64_t end, int) {
      for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
        const auto output = std::span<const float>(outputs_).subspan(row * output_dim, output_dim);
        row_bits_[row] = -head_log_prob(head, output, targets_[row]) / std::numbers::ln2;
      }
    };
    parallel_for(pool_, static_cast<int64_t>(targets_.size()), body);
    for (size_t i = 0; i < lanes_.size(); ++i) {
      for (int64_t t = 0; t < length_[i]; ++t) {
        const double value = row_bits_[static_cast<size_t>(begin_[i] + t)];
        if (!std::isfinite(value)) {
          return corrupt("the model's output for token " + std::to_string(positions_[i] + t) +
                             " gives " + std::to_string(value) + " bits, a finite number is needed",
                         "sequence " + std::to_string(first + static_cast<int64_t>(lanes_[i])));
        }
        bits[lanes_[i]] += value;
      }
    }
    return {};
  }

  const std::atomic<bool>* cancel_;
  std::shared_ptr<const model::Model> model_;
  mixers::Form form_;
  ThreadPool* pool_;
  int64_t piece_ = kPieceTokens;
  Arena arena_;
  StateBatch batch_;
  std::vector<SequenceState> states_;  // empty: the parallel form
  std::vector<SequenceState*> bound_;
  std::vector<size_t> lanes_;  // sequences of the batch that take part in this piece
  std::vector<int64_t> begin_, length_, positions_;
  std::vector<int32_t> inputs_, targets_;
  std::vector<float> outputs_;
  std::vector<double> row_bits_;
};

/// Mean and its error from the bits of every sequence.
void summarise(Sequences sequences, std::span<const double> bits, EvaluateResult* result) {
  double total_bits = 0.0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    total_bits += bits[i];
    result->tokens += static_cast<int64_t>(sequences[i].size());
  }
  const auto tokens = static_cast<double>(result->tokens);
  const auto count = static_cast<double>(sequences.size());
  result->sequences = static_cast<int64_t>(sequences.size());
  result->bits_per_dim = total_bits / tokens;
  if (sequences.size() < 2) return;
  double squares = 0.0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const double rest = bits[i] - result->bits_per_dim * static_cast<double>(sequences[i].size());
    squares += rest * rest;
  }
  result->standard_error = std::sqrt(squares * count / (count - 1.0)) / tokens;
}

}  // namespace

Result<EvaluateResult> evaluate(std::shared_ptr<const model::Model> model, Sequences sequences,
                                const EvaluateOptions& options, ThreadPool* pool) {
  if (options.batch < 1) {
    return invalid_argument("batch is " + std::to_string(options.batch) + ", must be at least 1");
  }
  TARN_RETURN_IF_ERROR(check_causal(*model));
  TARN_RETURN_IF_ERROR(check_sequences(model->config(), sequences));
  const auto total = static_cast<int64_t>(sequences.size());
  EvaluateOptions resolved = options;
  resolved.batch = pass_sequences(sequences, options, pool);
  const auto start = std::chrono::steady_clock::now();
  Evaluator evaluator(model, resolved, pool);
  std::vector<double> bits(sequences.size());
  for (int64_t begin = 0; begin < total; begin += resolved.batch) {
    const auto first = static_cast<size_t>(begin);
    const auto size = static_cast<size_t>(std::min(resolved.batch, total - begin));
    TARN_RETURN_IF_ERROR(
        evaluator.run(sequences.subspan(first, size), begin, std::span(bits).subspan(first, size)));
    if (options.progress) options.progress(begin + static_cast<int64_t>(size), total);
  }
  EvaluateResult result;
  summarise(sequences, bits, &result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace tarn::runtime
