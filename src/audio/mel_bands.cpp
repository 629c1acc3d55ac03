#include "audio/mel_bands.h"

#include <cmath>

namespace tarn::audio {
namespace {

double mel(double hz) { return 1127.0 * std::log1p(hz / 700.0); }

}  // namespace

std::vector<MelBand> mel_bands(const FrontendConfig& config) {
  const double low = mel(config.low_hz);
  const double step = (mel(config.high_hz) - low) / static_cast<double>(config.mels + 1);
  const int64_t size = config.fft_size();
  std::vector<MelBand> bands(static_cast<size_t>(config.mels));
  for (size_t i = 0; i < bands.size(); ++i) {
    const double left = low + static_cast<double>(i) * step;
    const double middle = left + step;
    const double right = middle + step;
    for (int64_t bin = 0; bin < size / 2; ++bin) {
      const double hz = static_cast<double>(bin) * static_cast<double>(config.sample_rate) /
                        static_cast<double>(size);
      const double at = mel(hz);
      if (at <= left || at >= right) continue;
      if (bands[i].weights.empty()) bands[i].first = bin;
      const double height = at <= middle ? (at - left) / step : (right - at) / step;
      bands[i].weights.push_back(static_cast<float>(height));
    }
  }
  return bands;
}

}  // namespace tarn::audio
