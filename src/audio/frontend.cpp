#include "audio/frontend.h"

#include <algorithm>
#include <cmath>

namespace tarn::audio {

Differences::Differences(int64_t channels, int64_t order)
    : channels_(channels), stages_(static_cast<size_t>(order)) {}

void Differences::reset() { std::fill(stages_.begin(), stages_.end(), Stage()); }

void Differences::push(std::span<const float> frames, std::vector<float>& rows) {
  const auto count = static_cast<int64_t>(frames.size()) / channels_;
  for (int64_t t = 0; t < count; ++t) enter(0, frames.data() + t * channels_, rows);
}

void Differences::enter(size_t stage, const float* row, std::vector<float>& rows) {
  const auto width = static_cast<size_t>(width_in(stage));
  if (stage == stages_.size()) {
    rows.insert(rows.end(), row, row + width);
    return;
  }
  std::vector<float>& kept = stages_[stage].kept;
  // Before the first row are as many like it as slopes reach back.
  const int64_t copies = kept.empty() ? kReach + 1 : 1;
  for (int64_t i = 0; i < copies; ++i) kept.insert(kept.end(), row, row + width);
  if (++stages_[stage].ahead > kReach) leave(stage, rows);
}

void Differences::leave(size_t stage, std::vector<float>& rows) {
  constexpr double kSum = 10.0;  // 2 (1² + 2²)
  const auto width = static_cast<size_t>(width_in(stage));
  const auto channels = static_cast<size_t>(channels_);
  std::vector<float>& kept = stages_[stage].kept;
  std::vector<float> out(kept.begin() + static_cast<int64_t>(kReach * width),
                         kept.begin() + static_cast<int64_t>((kReach + 1) * width));
  for (size_t c = width - channels; c < width; ++c) {
    const auto at = [&](size_t row) { return static_cast<double>(kept[row * width + c]); };
    out.push_back(static_cast<float>(((at(3) - at(1)) + 2.0 * (at(4) - at(0))) / kSum));
  }
  kept.erase(kept.begin(), kept.begin() + static_cast<int64_t>(width));
  --stages_[stage].ahead;
  enter(stage + 1, out.data(), rows);
}

void Differences::finish(std::vector<float>& rows) {
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    const int64_t width = width_in(stage);
    while (stages_[stage].ahead > 0) {
      std::vector<float>& kept = stages_[stage].kept;
      const std::vector<float> last(kept.end() - width, kept.end());
      while (static_cast<int64_t>(kept.size()) < (2 * kReach + 1) * width) {
        kept.insert(kept.end(), last.begin(), last.end());
      }
      leave(stage, rows);
    }
  }
  reset();
}

RunningNormaliser::RunningNormaliser(const FrontendConfig& config)
    : prior_frames_(config.prior_frames),
      horizon_frames_(config.horizon_frames),
      prior_mean_(config.prior_mean),
      prior_variance_(config.prior_deviation * config.prior_deviation),
      means_(static_cast<size_t>(config.mels)),
      variances_(static_cast<size_t>(config.mels)) {
  reset();
}

void RunningNormaliser::reset() {
  frames_ = 0;
  std::fill(means_.begin(), means_.end(), prior_mean_);
  std::fill(variances_.begin(), variances_.end(), prior_variance_);
}

void RunningNormaliser::apply(std::span<float> rows) {
  constexpr double kLeastVariance = 1e-6;
  const size_t width = means_.size();
  for (size_t row = 0; row < rows.size(); row += width) {
    if (frames_ < horizon_frames_) ++frames_;
    const double weight = std::max(1.0 / static_cast<double>(prior_frames_ + frames_),
                                   1.0 / static_cast<double>(horizon_frames_));
    for (size_t c = 0; c < width; ++c) {
      const double step = static_cast<double>(rows[row + c]) - means_[c];
      means_[c] += weight * step;
      variances_[c] = (1.0 - weight) * (variances_[c] + weight * step * step);
      const double deviation = std::sqrt(std::max(variances_[c], kLeastVariance));
      rows[row + c] = static_cast<float>((1.0 - weight) * step / deviation);
    }
  }
}

Frontend::Frontend(const FrontendConfig& config)
    : log_mel_(config), differences_(config.mels, config.differences) {
  if (config.normalisation == NormalisationKind::kRunning) normaliser_.emplace(config);
}

void Frontend::push(std::span<const float> samples, std::vector<float>& rows) {
  energies_.clear();
  log_mel_.push(samples, energies_);
  if (normaliser_) normaliser_->apply(energies_);
  differences_.push(energies_, rows);
}

void Frontend::finish(std::vector<float>& rows) {
  differences_.finish(rows);
  reset();
}

void Frontend::reset() {
  log_mel_.reset();
  if (normaliser_) normaliser_->reset();
  differences_.reset();
}

}  // namespace tarn::audio
