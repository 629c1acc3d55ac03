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
using Masks = std::span<const std::vector<uint8_t>>;

/// Tokens of sequence `i` that count; without masks all of them do.
int64_t counted_tokens(Sequences sequences, Masks masks, size_t i) {
  if (masks.empty()) return static_cast<int64_t>(sequences[i].size());
  return std::count_if(masks[i].begin(), masks[i].end(), [](uint8_t mask) { return mask != 0; });
}

/// What the tokens of one sequence that count come to.
struct Score {
  double bits = 0.0;
  int64_t right = 0;  ///< tokens that are the most probable class
  /// Bits and tokens of every range of positions.
  std::vector<std::pair<double, int64_t>> ranges = {};
};

Status check_sequences(const model::ModelConfig& config, Sequences sequences, Masks masks) {
  const int64_t classes = std::min(config.head.classes, config.vocabulary);
  int64_t tokens = 0;
  if (!masks.empty() && masks.size() != sequences.size()) {
    return invalid_argument("there are " + std::to_string(masks.size()) + " masks for " +
                            std::to_string(sequences.size()) + " sequences");
  }
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
    if (!masks.empty() && masks[i].size() != sequences[i].size()) {
      return invalid_argument("has " + std::to_string(length) + " tokens and a mask of " +
                                  std::to_string(masks[i].size()),
                              where);
    }
    tokens += counted_tokens(sequences, masks, i);
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
        position_ends_(options.position_ends),
        model_(std::move(model)),
        form_(options.form == mixers::Form::kAuto ? mixers::Form::kChunk : options.form),
        pool_(pool),
        batch_(*model_) {
    piece_ = piece_tokens(form_);
    if (form_ == mixers::Form::kParallel) return;
    for (int64_t i = 0; i < options.batch; ++i) states_.emplace_back(model_);
  }

  /// The score of each of `sequences`; `first` is the index of the first one, for messages.
  Status run(Sequences sequences, Masks masks, int64_t first, std::span<Score> scores) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      scores[i] = {};
      if (!position_ends_.empty()) scores[i].ranges.resize(position_ends_.size() + 1);
      if (states_.empty()) continue;
      states_[i].reset();
      TARN_RETURN_IF_ERROR(states_[i].reserve(static_cast<int64_t>(sequences[i].size())));
    }
    int64_t done = 0;
    while (gather(sequences, masks, done)) {
      if (cancel_ != nullptr && cancel_->load(std::memory_order_relaxed)) {
        return Error{ErrorCode::kCancelled, "evaluation was stopped on request", {}};
      }
      forward();
      TARN_RETURN_IF_ERROR(score(first, scores));
      done += std::min(piece_, INT64_MAX - done);
    }
    return {};
  }

 private:
  /// The rows of the next piece of every sequence that has one; false if none has.
  bool gather(Sequences sequences, Masks masks, int64_t done) {
    lanes_.clear();
    begin_.clear();
    length_.clear();
    inputs_.clear();
    targets_.clear();
    counted_.clear();
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
        counted_.push_back(masks.empty() ? 1 : masks[i][static_cast<size_t>(t)]);
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

  Status score(int64_t first, std::span<Score> scores) {
    const model::HeadConfig& head = model_->config().head;
    const auto output_dim = static_cast<size_t>(head.output_dim());
    row_bits_.resize(targets_.size());
    row_right_.resize(targets_.size());
    const auto body = [&](int64_t begin, int64_t end, int) {
      for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
        if (counted_[row] == 0) continue;
        const auto output = std::span<const float>(outputs_).subspan(row * output_dim, output_dim);
        const auto largest = std::max_element(output.begin(), output.end());
        row_right_[row] = largest - output.begin() == targets_[row];
        row_bits_[row] = -head_log_prob(head, output, targets_[row]) / std::numbers::ln2;
      }
    };
    parallel_for(pool_, static_cast<int64_t>(targets_.size()), body);
    for (size_t i = 0; i < lanes_.size(); ++i) {
      for (int64_t t = 0; t < length_[i]; ++t) {
        const auto row = static_cast<size_t>(begin_[i] + t);
        if (counted_[row] == 0) continue;
        const double value = row_bits_[row];
        if (!std::isfinite(value)) {
          return corrupt("the model's output for token " + std::to_string(positions_[i] + t) +
                             " gives " + std::to_string(value) + " bits, a finite number is needed",
                         "sequence " + std::to_string(first + static_cast<int64_t>(lanes_[i])));
        }
        Score& own = scores[lanes_[i]];
        own.bits += value;
        own.right += row_right_[row];
        if (own.ranges.empty()) continue;
        const auto end = std::ranges::upper_bound(position_ends_, positions_[i] + t);
        auto& range = own.ranges[static_cast<size_t>(end - position_ends_.begin())];
        range.first += value;
        ++range.second;
      }
    }
    return {};
  }

  const std::atomic<bool>* cancel_;
  std::span<const int64_t> position_ends_;
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
  std::vector<uint8_t> counted_;  // rows that are scored
  std::vector<double> row_bits_;
  std::vector<uint8_t> row_right_;
};

/// Mean, its error and accuracy from the score of every sequence.
void summarise(Sequences sequences, Masks masks, std::span<const Score> scores, bool has_classes,
               EvaluateResult* result) {
  double total_bits = 0.0;
  int64_t right = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    total_bits += scores[i].bits;
    right += scores[i].right;
    result->tokens += static_cast<int64_t>(sequences[i].size());
    result->counted_tokens += counted_tokens(sequences, masks, i);
  }
  const auto tokens = static_cast<double>(result->counted_tokens);
  const auto count = static_cast<double>(sequences.size());
  result->sequences = static_cast<int64_t>(sequences.size());
  result->bits_per_dim = total_bits / tokens;
  if (has_classes) result->accuracy = static_cast<double>(right) / tokens;
  if (sequences.size() < 2) return;
  double squares = 0.0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto counted = static_cast<double>(counted_tokens(sequences, masks, i));
    const double rest = scores[i].bits - result->bits_per_dim * counted;
    squares += rest * rest;
  }
  result->standard_error = std::sqrt(squares * count / (count - 1.0)) / tokens;
}

/// Sums over the sequences for every range of positions.
std::vector<PositionScore> by_position(Sequences sequences, std::span<const Score> scores,
                                       std::span<const int64_t> ends) {
  std::vector<PositionScore> ranges(ends.empty() ? 0 : ends.size() + 1);
  int64_t longest = 0;
  for (const auto& sequence : sequences) {
    longest = std::max(longest, static_cast<int64_t>(sequence.size()));
  }
  for (size_t r = 0; r < ranges.size(); ++r) {
    ranges[r].begin = r == 0 ? 0 : ends[r - 1];
    ranges[r].end = r < ends.size() ? ends[r] : std::max(longest, ranges[r].begin);
    double bits = 0.0;
    for (const Score& score : scores) {
      bits += score.ranges[r].first;
      ranges[r].counted_tokens += score.ranges[r].second;
    }
    if (ranges[r].counted_tokens > 0) {
      ranges[r].bits_per_dim = bits / static_cast<double>(ranges[r].counted_tokens);
    }
  }
  return ranges;
}

}  // namespace

Result<EvaluateResult> evaluate(std::shared_ptr<const model::Model> model, Sequences sequences,
                                const EvaluateOptions& options, ThreadPool* pool) {
  if (options.batch < 1) {
    return invalid_argument("batch is " + std::to_string(options.batch) + ", must be at least 1");
  }
  for (size_t i = 0; i < options.position_ends.size(); ++i) {
    if (options.position_ends[i] > (i == 0 ? 0 : options.position_ends[i - 1])) continue;
    return invalid_argument("ends of ranges of positions must be positive and increase, got " +
                            std::to_string(options.position_ends[i]) + " as number " +
                            std::to_string(i));
  }
  TARN_RETURN_IF_ERROR(check_causal(*model));
  TARN_RETURN_IF_ERROR(check_sequences(model->config(), sequences, options.counted));
  const auto total = static_cast<int64_t>(sequences.size());
  EvaluateOptions resolved = options;
  resolved.batch = pass_sequences(sequences, options, pool);
  const auto start = std::chrono::steady_clock::now();
  Evaluator evaluator(model, resolved, pool);
  std::vector<Score> scores(sequences.size());
  for (int64_t begin = 0; begin < total; begin += resolved.batch) {
    const auto first = static_cast<size_t>(begin);
    const auto size = static_cast<size_t>(std::min(resolved.batch, total - begin));
    TARN_RETURN_IF_ERROR(
        evaluator.run(sequences.subspan(first, size),
                      options.counted.empty() ? Masks{} : options.counted.subspan(first, size),
                      begin, std::span(scores).subspan(first, size)));
    if (options.progress) options.progress(begin + static_cast<int64_t>(size), total);
  }
  EvaluateResult result;
  const bool has_classes = model->config().head.kind == model::HeadKind::kCategorical;
  summarise(sequences, options.counted, scores, has_classes, &result);
  result.by_position = by_position(sequences, scores, options.position_ends);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace tarn::runtime
