#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "audio/frontend_config.h"
#include "audio/log_mel.h"

namespace tarn::audio {

/// Appends slopes to frames as they arrive: of every frame x [channels] x, its slope d and (order 2) the
/// slope of d, where d_t = Σ_n n·(x_{t+n} − x_{t−n}) / (2·Σ_n n²), n = 1, 2, and the first and last frames are
/// repeated beyond the ends. A row comes out 2·order frames after it came in, or at the end.
class Differences {
 public:
  static constexpr int64_t kReach = 2;

  /// `order` 0, 1 or 2.
  Differences(int64_t channels, int64_t order);
  /// Rows [frames, channels] in, rows [frames, channels·(1 + order)] appended.
  void push(std::span<const float> frames, std::vector<float>& rows);
  void finish(std::vector<float>& rows);
  void reset();

 private:
  /// One order: keeps the last 2·kReach + 1 rows of [x | …] and appends the slope of the last part.
  struct Stage {
    std::vector<float> kept;  ///< rows that later slopes need
    int64_t ahead = 0;        ///< of them, how many have no slope yet
  };
  int64_t width_in(size_t stage) const { return channels_ * (static_cast<int64_t>(stage) + 1); }
  void enter(size_t stage, const float* row, std::vector<float>& rows);
  void leave(size_t stage, std::vector<float>& rows);

  int64_t channels_;
  std::vector<Stage> stages_;
};

/// Brings frames to mean 0 and variance 1 by what came before: with w_t = max(1 / (prior_frames + t),
/// 1 / horizon_frames), t = 1, 2, …, of every channel m ← m + w·(x − m) and v ← (1 − w)·(v + w·(x − m)²) with
/// the m before, from the prior; x becomes (x − m)/√v. Variances are at least 10⁻⁶. In f64.
class RunningNormaliser {
 public:
  explicit RunningNormaliser(const FrontendConfig& config);
  /// Replaces rows [frames, mels].
  void apply(std::span<float> rows);
  void reset();

 private:
  int64_t prior_frames_, horizon_frames_;
  double prior_mean_, prior_variance_;
  int64_t frames_ = 0;
  std::vector<double> means_, variances_;
};

/// Sound to frames, as it arrives: log-mel energies, their running normalisation, their slopes. The same
/// bits however the sound is cut; finish() ends an utterance. Normalisation per speaker is left to the
/// caller: such a front end gives energies as they are, and their slopes.
/// Memory: a window of samples and a few rows, whatever the length. Threads: one owner at a time.
class Frontend {
 public:
  explicit Frontend(const FrontendConfig& config);
  /// Appends the rows [frames, features] that became complete. Samples are finite.
  void push(std::span<const float> samples, std::vector<float>& rows);
  /// The sound is over: appends the rows that waited for slopes.
  void finish(std::vector<float>& rows);
  void reset();

 private:
  LogMel log_mel_;
  std::optional<RunningNormaliser> normaliser_;
  Differences differences_;
  std::vector<float> energies_;
};

}  // namespace tarn::audio
