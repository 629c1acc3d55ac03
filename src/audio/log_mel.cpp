#include "audio/log_mel.h"

#include <kissfft/kiss_fftr.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/check.h"

namespace tarn::audio {
namespace {

struct FreePlan {
  void operator()(kiss_fftr_cfg plan) const { kiss_fftr_free(plan); }
};

std::vector<float> window_values(WindowKind kind, int64_t samples) {
  const double a = kind == WindowKind::kHann ? 0.5 : 0.54;
  std::vector<float> values;
  for (int64_t i = 0; i < samples; ++i) {
    const double angle =
        2.0 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(samples - 1);
    values.push_back(static_cast<float>(a - (1.0 - a) * std::cos(angle)));
  }
  return values;
}

}  // namespace

struct LogMel::Transform {
  explicit Transform(int64_t size)
      : plan(kiss_fftr_alloc(static_cast<int>(size), 0, nullptr, nullptr)),
        time(static_cast<size_t>(size)),
        bins(static_cast<size_t>(size / 2 + 1)),
        power(static_cast<size_t>(size / 2 + 1)) {
    TARN_CHECK(plan != nullptr);
  }
  std::unique_ptr<kiss_fftr_state, FreePlan> plan;
  std::vector<float> time;
  std::vector<kiss_fft_cpx> bins;
  std::vector<float> power;
};

LogMel::LogMel(const FrontendConfig& config)
    : window_samples_(config.window_samples()),
      hop_samples_(config.hop_samples()),
      remove_offset_(config.remove_offset),
      pre_emphasis_(static_cast<float>(config.pre_emphasis)),
      window_(window_values(config.window, config.window_samples())),
      bands_(mel_bands(config)),
      transform_(std::make_unique<Transform>(config.fft_size())) {}

LogMel::~LogMel() = default;
LogMel::LogMel(LogMel&&) noexcept = default;
LogMel& LogMel::operator=(LogMel&&) noexcept = default;

void LogMel::reset() {
  waiting_.clear();
  skip_ = 0;
}

void LogMel::push(std::span<const float> samples, std::vector<float>& rows) {
  const auto skipped = static_cast<size_t>(std::min(skip_, static_cast<int64_t>(samples.size())));
  skip_ -= static_cast<int64_t>(skipped);
  samples = samples.subspan(skipped);
  waiting_.insert(waiting_.end(), samples.begin(), samples.end());
  const auto size = static_cast<int64_t>(waiting_.size());
  int64_t begin = 0;
  for (; begin + window_samples_ <= size; begin += hop_samples_) {
    append_row(waiting_.data() + begin, rows);
  }
  const int64_t used = std::min(begin, size);
  skip_ += begin - used;
  waiting_.erase(waiting_.begin(), waiting_.begin() + used);
}

void LogMel::append_row(const float* samples, std::vector<float>& rows) {
  std::vector<float>& time = transform_->time;
  float mean = 0.0f;
  if (remove_offset_) {
    double sum = 0.0;
    for (int64_t i = 0; i < window_samples_; ++i) sum += static_cast<double>(samples[i]);
    mean = static_cast<float>(sum / static_cast<double>(window_samples_));
  }
  float previous = samples[0] - mean;
  for (int64_t i = 0; i < window_samples_; ++i) {
    const float value = samples[i] - mean;
    const auto at = static_cast<size_t>(i);
    time[at] = (value - pre_emphasis_ * previous) * window_[at];
    previous = value;
  }
  std::fill(time.begin() + window_samples_, time.end(), 0.0f);
  kiss_fftr(transform_->plan.get(), time.data(), transform_->bins.data());
  for (size_t i = 0; i < transform_->power.size(); ++i) {
    const kiss_fft_cpx bin = transform_->bins[i];
    transform_->power[i] = bin.r * bin.r + bin.i * bin.i;
  }
  for (const MelBand& band : bands_) {
    double energy = 0.0;
    for (size_t i = 0; i < band.weights.size(); ++i) {
      energy += static_cast<double>(band.weights[i]) *
                static_cast<double>(transform_->power[static_cast<size_t>(band.first) + i]);
    }
    constexpr double kFloor = std::numeric_limits<float>::epsilon();
    rows.push_back(static_cast<float>(std::log(std::max(energy, kFloor))));
  }
}

}  // namespace tarn::audio
