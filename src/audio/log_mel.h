#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "audio/frontend_config.h"
#include "audio/mel_bands.h"

namespace tarn::audio {

/// Logarithms of the energies of mel bands, window by window, as sound arrives.
/// Window t holds samples [t·hop, t·hop + window) and exists once all of them have come. Of its samples
/// x: x − mean(x) (remove_offset); x_i − p·x_{i−1}, of the first x_0 − p·x_0; times Hann or Hamming,
/// a − (1 − a)·cos(2πi/(N − 1)), a = 0.5 or 0.54; zeros up to fft_size; |transform|²; the bands' sums;
/// ln of what is at least 2⁻²³.
/// Source: Kaldi (feature-window.cc, feature-fbank.cc, snip_edges); deviations: none, on samples in [−1, 1].
/// Precision: f32, means in f64. Same bits however the samples are cut.
/// Cost: O(fft_size·log fft_size) per frame; keeps less than one window of samples between calls.
class LogMel {
 public:
  explicit LogMel(const FrontendConfig& config);
  ~LogMel();
  LogMel(LogMel&&) noexcept;
  LogMel& operator=(LogMel&&) noexcept;

  /// Appends the rows [frames, mels] that became complete. Samples are finite.
  void push(std::span<const float> samples, std::vector<float>& rows);
  void reset();

 private:
  struct Transform;
  void append_row(const float* samples, std::vector<float>& rows);

  int64_t window_samples_;
  int64_t hop_samples_;
  bool remove_offset_;
  float pre_emphasis_;
  std::vector<float> window_;
  std::vector<MelBand> bands_;
  std::unique_ptr<Transform> transform_;
  std::vector<float> waiting_;  ///< samples from the next window's first one
  int64_t skip_ = 0;            ///< samples before the next window, where windows leave gaps
};

}  // namespace tarn::audio
