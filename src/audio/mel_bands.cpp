#include "audio/mel_bands.h"

#include <algorithm>
#include <cmath>

namespace tarn::audio {
namespace {

double mel(double hz) { return 1127.0 * std::log1p(hz / 700.0); }

}  // namespace

std::vector<MelBand> mel_bands(const FrontendConfig& config) {
  const int64_t size = config.fft_size();
  const double spacing = static_cast<double>(config.sample_rate) / static_cast<double>(size);
  std::vector<double> bins(static_cast<size_t>(size / 2));
  for (size_t bin = 0; bin < bins.size(); ++bin) {
    bins[bin] = mel(static_cast<double>(bin) * spacing);
  }
  const double low = mel(config.low_hz);
  const double step = (mel(config.high_hz) - low) / static_cast<double>(config.mels + 1);
  std::vector<MelBand> bands(static_cast<size_t>(config.mels));
  for (size_t i = 0; i < bands.size(); ++i) {
    const double left = low + static_cast<double>(i) * step;
    const double middle = left + step;
    const double right = middle + step;
    auto bin = std::upper_bound(bins.begin(), bins.end(), left);
    bands[i].first = bin - bins.begin();
    for (; bin != bins.end() && *bin < right; ++bin) {
      const double height = *bin <= middle ? (*bin - left) / step : (right - *bin) / step;
      bands[i].weights.push_back(static_cast<float>(height));
    }
  }
  return bands;
}

}  // namespace tarn::audio
