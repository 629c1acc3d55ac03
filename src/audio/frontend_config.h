#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "base/result.h"

namespace tarn::audio {

enum class WindowKind : uint8_t { kHann, kHamming };
enum class NormalisationKind : uint8_t {
  kNone,
  kSpeaker,  ///< mean 0 and variance 1 over all frames of a speaker: only when all are there
  kRunning,  ///< by the mean and variance of the frames so far
};

/// How sound becomes frames: the "frontend" object of a model's config.
struct FrontendConfig {
  int64_t sample_rate = 0;  ///< of the sound that the model takes; no other is accepted
  double window_ms = 25.0;
  double hop_ms = 10.0;
  WindowKind window = WindowKind::kHamming;
  double pre_emphasis = 0.97;
  bool remove_offset = true;  ///< subtract every window's mean
  int64_t mels = 40;
  double low_hz = 20.0;
  double high_hz = 0.0;  ///< in a parsed config never 0: half of the sample rate
  int64_t differences = 0;
  NormalisationKind normalisation = NormalisationKind::kNone;
  double prior_mean = 0.0;  ///< kRunning: what the first frames are brought to 0 and 1 with
  double prior_deviation = 1.0;
  int64_t prior_frames = 0;    ///< kRunning: how many frames the prior weighs as much as
  int64_t horizon_frames = 0;  ///< kRunning: older frames than that are forgotten exponentially

  int64_t window_samples() const;
  int64_t hop_samples() const;
  /// The power of two that is at least the window.
  int64_t fft_size() const;
  /// Numbers per frame.
  int64_t features() const { return mels * (1 + differences); }
  /// Frames per second, to the nearest whole number.
  int64_t frame_rate() const;
};

/// Reads and validates the object. Unknown keys, missing keys and values out of range are errors that name
/// the key; so are windows without a sample, bands above half of the sample rate or so narrow that one of
/// them holds no frequency of the transform.
Result<FrontendConfig> parse_frontend_config(const Json& json, const std::string& where);
/// The document that parses to the same config.
Json to_json(const FrontendConfig& config);

}  // namespace tarn::audio
