#include "train/learner.h"

#include <algorithm>
#include <cmath>

namespace tarn::train {

Learner::Learner(const TrainConfig& config, ThreadPool* pool, PartTimes* times)
    : config_(config),
      pool_(pool),
      times_(times),
      parameters_(create_parameters(config.model, config.training.seed)),
      optimiser_(config.training.optimiser, parameters_, config.training.precision),
      decoder_(config.model, parameters_, config.training.precision, pool, times) {
  if (config.training.average_decay > 0.0) average_ = parameters_.values.clone();
}

Learner::Outcome Learner::learn(const Batch& batch, int64_t update) {
  const TrainingConfig& training = config_.training;
  {
    const PartTimer timer(times_, "clear gradients");
    std::ranges::fill(parameters_.gradients.span(), 0.0f);
  }
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, batch.counted));
  Outcome outcome;
  outcome.nats = decoder_.forward_backward(batch, scale, training.output_gradient_limit);
  {
    const PartTimer timer(times_, "gradient norm");
    outcome.gradient_norm = global_norm(parameters_.gradients, pool_);
  }
  outcome.applied = std::isfinite(outcome.nats) && std::isfinite(outcome.gradient_norm);
  if (!outcome.applied) return outcome;
  const double factor = schedule_factor(training.schedule, update, training.updates);
  const bool is_clipped =
      training.gradient_clip > 0.0 && outcome.gradient_norm > training.gradient_clip;
  {
    const PartTimer timer(times_, "optimiser");
    optimiser_.update(factor, is_clipped ? training.gradient_clip / outcome.gradient_norm : 1.0,
                      parameters_, pool_);
  }
  if (average_.size() > 0) {
    const PartTimer timer(times_, "mean of the weights");
    // A young mean forgets faster, so that it does not remember the random start.
    const auto done = static_cast<double>(update);
    update_average(parameters_.values, std::min(training.average_decay, done / (done + 10.0)),
                   average_, pool_);
  }
  return outcome;
}

void Learner::swap_average() {
  if (average_.size() > 0) std::ranges::swap_ranges(parameters_.values.span(), average_.span());
}

}  // namespace tarn::train
