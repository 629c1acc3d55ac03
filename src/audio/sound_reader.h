#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tarn::audio {

/// Sound without a header: mono samples of this kind, little-endian.
enum class RawKind : uint8_t { kNone, kInt16, kFloat32 };

/// Reads sound from first to last sample: WAV, FLAC, or samples without a header; of a pipe WAV and raw
/// samples. Several channels become one, their mean. Integers are scaled to
/// [−1, 1); floats are taken as they are.
class SoundReader {
 public:
  /// Errors: no such file, no sound, a WAV file shorter than it says, another container
  /// (kUnsupported: the library would not tell when one is cut off).
  static Result<SoundReader> open(const std::string& path, RawKind raw, int64_t raw_rate);
  /// The same from an open descriptor, which stays open; `name` is for messages.
  static Result<SoundReader> from_descriptor(int fd, const std::string& name, RawKind raw,
                                             int64_t raw_rate);
  SoundReader(SoundReader&&) noexcept;
  SoundReader& operator=(SoundReader&&) noexcept;
  ~SoundReader();

  int64_t sample_rate() const;
  int64_t channels() const;
  /// An error that names both rates, unless the sound has `rate` samples per second.
  Status expect_rate(int64_t rate) const;
  /// Fills `samples` up to the end of the sound; how many there were, 0 at the end. Of a pipe it waits until
  /// they have come. Errors: samples that are not finite, an end before the length that the header names
  /// (a header of a stream may leave it open), bytes that do not decode.
  Result<int64_t> read(std::span<float> samples);
  /// What is left; more than `max_samples` is an error.
  Result<std::vector<float>> read_all(int64_t max_samples);

 private:
  struct State;
  explicit SoundReader(std::unique_ptr<State> state);
  static Result<SoundReader> open_descriptor(int fd, bool owned, const std::string& name,
                                             RawKind raw, int64_t raw_rate);
  std::unique_ptr<State> state_;
};

}  // namespace tarn::audio
