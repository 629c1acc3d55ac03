#include "audio/frontend_config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "audio/mel_bands.h"

namespace tarn::audio {
namespace {

constexpr int64_t kMaxSampleRate = 384'000;
constexpr int64_t kMaxMels = 1'024;
constexpr int64_t kMaxFrames = 100'000'000;
const std::vector<std::string> kWindows{"hann", "hamming"};
const std::vector<std::string> kNormalisations{"none", "speaker", "running"};

int64_t samples_of(double ms, int64_t rate) {
  return static_cast<int64_t>(std::floor(ms * static_cast<double>(rate) / 1000.0 + 1e-6));
}

Status read_normalisation(const Json& json, const std::string& where, FrontendConfig& config) {
  JsonReader reader(json, where);
  config.normalisation = static_cast<NormalisationKind>(reader.choice("kind", kNormalisations));
  if (config.normalisation == NormalisationKind::kRunning) {
    config.prior_mean = reader.number("prior_mean", -100.0, 100.0, -7.0);
    config.prior_deviation = reader.number("prior_deviation", 1e-3, 100.0, 3.0);
    config.prior_frames = reader.integer("prior_frames", 1, kMaxFrames, 100);
    config.horizon_frames = reader.integer("horizon_frames", 1, kMaxFrames, 1'000);
  }
  return reader.finish();
}

/// Rules between keys.
void check_together(JsonReader& reader, const FrontendConfig& config) {
  if (config.hop_samples() < 1) {
    reader.fail("hop_ms", "is less than one sample at " + std::to_string(config.sample_rate) +
                              " samples per second");
    return;
  }
  if (config.window_samples() < 2) {
    reader.fail("window_ms", "is less than two samples at " + std::to_string(config.sample_rate) +
                                 " samples per second");
    return;
  }
  if (config.low_hz >= config.high_hz) {
    reader.fail("low_hz", "must be below high_hz");
    return;
  }
  const std::vector<MelBand> bands = mel_bands(config);
  const auto empty = std::find_if(bands.begin(), bands.end(),
                                  [](const MelBand& band) { return band.weights.empty(); });
  if (empty == bands.end()) return;
  reader.fail("mels", "is " + std::to_string(config.mels) + ", so many that band " +
                          std::to_string(empty - bands.begin()) +
                          " holds no frequency of a transform of " +
                          std::to_string(config.fft_size()) + " samples");
}

}  // namespace

int64_t FrontendConfig::window_samples() const { return samples_of(window_ms, sample_rate); }
int64_t FrontendConfig::hop_samples() const { return samples_of(hop_ms, sample_rate); }
int64_t FrontendConfig::fft_size() const {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(window_samples())));
}
int64_t FrontendConfig::frame_rate() const {
  return static_cast<int64_t>(
      std::lround(static_cast<double>(sample_rate) / static_cast<double>(hop_samples())));
}

Result<FrontendConfig> parse_frontend_config(const Json& json, const std::string& where) {
  JsonReader reader(json, where);
  FrontendConfig config;
  config.sample_rate = reader.integer("sample_rate", 1'000, kMaxSampleRate);
  config.window_ms = reader.number("window_ms", 0.01, 1'000.0, config.window_ms);
  config.hop_ms = reader.number("hop_ms", 0.01, 1'000.0, config.hop_ms);
  config.window = static_cast<WindowKind>(
      reader.choice("window", kWindows, static_cast<size_t>(config.window)));
  config.pre_emphasis = reader.number("pre_emphasis", 0.0, 1.0, config.pre_emphasis);
  config.remove_offset = reader.boolean("remove_offset", config.remove_offset);
  config.mels = reader.integer("mels", 1, kMaxMels, config.mels);
  const double half = static_cast<double>(config.sample_rate) / 2.0;
  config.low_hz = reader.number("low_hz", 0.0, half, config.low_hz);
  config.high_hz = reader.number("high_hz", 0.0, half, half);
  config.differences = reader.integer("differences", 0, 2, config.differences);
  const Json* normalisation = reader.optional("normalisation");
  TARN_RETURN_IF_ERROR(reader.finish());
  check_together(reader, config);
  TARN_RETURN_IF_ERROR(reader.finish());
  if (normalisation != nullptr) {
    TARN_RETURN_IF_ERROR(read_normalisation(*normalisation, reader.path("normalisation"), config));
  }
  return config;
}

Json to_json(const FrontendConfig& config) {
  Json normalisation;
  normalisation.set("kind", kNormalisations[static_cast<size_t>(config.normalisation)]);
  if (config.normalisation == NormalisationKind::kRunning) {
    normalisation.set("prior_mean", config.prior_mean);
    normalisation.set("prior_deviation", config.prior_deviation);
    normalisation.set("prior_frames", config.prior_frames);
    normalisation.set("horizon_frames", config.horizon_frames);
  }
  Json json;
  json.set("sample_rate", config.sample_rate);
  json.set("window_ms", config.window_ms);
  json.set("hop_ms", config.hop_ms);
  json.set("window", kWindows[static_cast<size_t>(config.window)]);
  json.set("pre_emphasis", config.pre_emphasis);
  json.set("remove_offset", config.remove_offset);
  json.set("mels", config.mels);
  json.set("low_hz", config.low_hz);
  json.set("high_hz", config.high_hz);
  json.set("differences", config.differences);
  json.set("normalisation", std::move(normalisation));
  return json;
}

}  // namespace tarn::audio
