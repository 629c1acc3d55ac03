#include "runtime/prefix_timer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/prefix_runner.h"
#include "runtime/session.h"
#include "runtime/timing.h"

namespace tarn::runtime {
namespace {

/// A timing of less than this many seconds is repeated and its median taken.
constexpr double kRepeatBelowSeconds = 1.0;
constexpr size_t kTimingRepeats = 3;

class ParallelTimer final : public PrefixTimer {
 public:
  ParallelTimer(const model::Model& model, const GenerateOptions& options, ThreadPool* pool)
      : options_(options),
        runner_(model, options.sampler, pool, options.cancel),
        tokens_(static_cast<size_t>(options.batch)) {}

 private:
  Status fill(int64_t prefix) override {
    sequences_.clear();
    for (int64_t i = 0; i < options_.batch; ++i) {
      std::vector<int32_t>& row = tokens_[static_cast<size_t>(i)];
      const auto prompt = options_.prompt_of(i);
      row.assign(prompt.begin(), prompt.end());
      row.resize(static_cast<size_t>(prefix - 1), 0);
      row.reserve(static_cast<size_t>(prefix));
      sequences_.push_back({&row, {options_.seed, static_cast<uint64_t>(i), 0}});
    }
    return {};
  }
  Status step() override { return runner_.step(sequences_); }

  const GenerateOptions& options_;
  PrefixRunner runner_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<PrefixRunner::Sequence> sequences_;
};

class RecurrentTimer final : public PrefixTimer {
 public:
  RecurrentTimer(const std::shared_ptr<const model::Model>& model, const GenerateOptions& options,
                 ThreadPool* pool)
      : options_(options), generator_(model, pool) {
    for (int64_t i = 0; i < options.batch; ++i) {
      sessions_.emplace_back(model, Session::Options{options.seed, static_cast<uint64_t>(i)});
    }
    for (Session& session : sessions_) pointers_.push_back(&session);
  }

 private:
  Status fill(int64_t prefix) override {
    for (int64_t i = 0; i < options_.batch; ++i) {
      if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) {
        return Error{ErrorCode::kCancelled, "generation was stopped on request", {}};
      }
      Session& session = *pointers_[static_cast<size_t>(i)];
      if (session.state().capacity_tokens() < options_.length) {
        TARN_RETURN_IF_ERROR(make_room(session));
      }
      session.reset();
      const auto prompt = options_.prompt_of(i);
      tokens_.assign(prompt.begin(), prompt.end());
      tokens_.resize(static_cast<size_t>(prefix - 1), 0);
      TARN_RETURN_IF_ERROR(session.append(tokens_));
      session.state().set_position(prefix - 1);
    }
    return {};
  }
  Status step() override { return generator_.step(pointers_, options_.sampler); }

  /// Room for whole sequences, filled: memory that nobody wrote could hold NaN.
  Status make_room(Session& session) {
    TARN_RETURN_IF_ERROR(session.reserve(options_.length));
    SequenceState& state = session.state();
    for (size_t i = 0; i < state.tensors().size(); ++i) {
      const SequenceState::Tensor& tensor = state.tensors()[i];
      if (!tensor.spec->per_token) continue;
      std::fill_n(state.data(i), state.capacity_tokens() * tensor.entry_elements,
                  tensor.spec->initial_value);
    }
    return {};
  }

  const GenerateOptions& options_;
  Generator generator_;
  std::vector<Session> sessions_;
  std::vector<Session*> pointers_;
  std::vector<int32_t> tokens_;
};

}  // namespace

Result<double> PrefixTimer::time(int64_t prefix) {
  std::vector<double> seconds;
  do {
    TARN_RETURN_IF_ERROR(fill(prefix));
    const Clock::time_point start = Clock::now();
    TARN_RETURN_IF_ERROR(step());
    seconds.push_back(seconds_since(start));
  } while (seconds.back() < kRepeatBelowSeconds && seconds.size() < kTimingRepeats);
  return median(std::move(seconds));
}

Status PrefixTimer::warm_up(int64_t prefix) {
  TARN_RETURN_IF_ERROR(fill(prefix));
  return step();
}

std::unique_ptr<PrefixTimer> parallel_timer(const model::Model& model,
                                            const GenerateOptions& options, ThreadPool* pool) {
  return std::make_unique<ParallelTimer>(model, options, pool);
}

std::unique_ptr<PrefixTimer> recurrent_timer(const std::shared_ptr<const model::Model>& model,
                                             const GenerateOptions& options, ThreadPool* pool) {
  return std::make_unique<RecurrentTimer>(model, options, pool);
}

}  // namespace tarn::runtime
