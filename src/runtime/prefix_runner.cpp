#include "runtime/prefix_runner.h"

#include <algorithm>

namespace tarn::runtime {

Status PrefixRunner::step(std::span<Sequence> sequences) {
  while (!sequences.empty()) {
    if (cancel_ != nullptr && cancel_->load(std::memory_order_relaxed)) {
      return Error{ErrorCode::kCancelled, "generation was stopped on request", {}};
    }
    const size_t count = pass_size(sequences);
    TARN_RETURN_IF_ERROR(run_pass(sequences.first(count)));
    sequences = sequences.subspan(count);
  }
  return {};
}

size_t PrefixRunner::pass_size(std::span<const Sequence> sequences) const {
  constexpr int64_t kRowsPerThread = 4096;
  const int64_t threads = pool_ != nullptr ? pool_->num_threads() : 1;
  const auto rows = static_cast<int64_t>(sequences.front().tokens->size()) + 1;
  const int64_t count = threads * std::max<int64_t>(1, kRowsPerThread / rows);
  return std::min(sequences.size(), static_cast<size_t>(count));
}

Status PrefixRunner::run_pass(std::span<Sequence> sequences) {
  const model::ModelConfig& config = model_.config();
  inputs_.clear();
  begin_.clear();
  length_.clear();
  for (const Sequence& sequence : sequences) {
    begin_.push_back(static_cast<int64_t>(inputs_.size()));
    length_.push_back(static_cast<int64_t>(sequence.tokens->size()) + 1);
    inputs_.push_back(static_cast<int32_t>(config.start_token));
    inputs_.insert(inputs_.end(), sequence.tokens->begin(), sequence.tokens->end());
  }
  const auto output_dim = static_cast<size_t>(config.head.output_dim());
  positions_.assign(sequences.size(), 0);
  outputs_.resize(sequences.size() * output_dim);
  const model::TokenBatch batch{
      {static_cast<int64_t>(sequences.size()), begin_.data(), length_.data()},
      positions_.data(),
      inputs_.data()};
  model_.forward(batch, {}, mixers::Form::kParallel, model::Outputs::kLastRowOfEach,
                 outputs_.data(), pool_, arena_);
  for (size_t i = 0; i < sequences.size(); ++i) {
    TARN_ASSIGN(
        const int32_t token,
        sampler_.draw(std::span(outputs_).subspan(i * output_dim, output_dim), sequences[i].rng));
    sequences[i].tokens->push_back(token);
  }
  return {};
}

}  // namespace tarn::runtime
