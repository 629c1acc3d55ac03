#include "serve/metrics.h"

#include <algorithm>
#include <cmath>

namespace tarn::serve {

namespace {

constexpr std::array<double, Histogram::kBuckets> kBounds = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05,   0.1,     0.25,   0.5,   1.0,    2.5,   10.0, 60.0};

}  // namespace

std::span<const double, Histogram::kBuckets> Histogram::bounds() { return kBounds; }

void Histogram::observe(double seconds) {
  const auto bucket = static_cast<size_t>(
      std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin());
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_nanoseconds_.fetch_add(std::llround(1e9 * seconds), std::memory_order_relaxed);
}

int64_t Histogram::total() const {
  int64_t total = 0;
  for (const auto& count : counts_) total += count.load(std::memory_order_relaxed);
  return total;
}

double Histogram::sum_seconds() const {
  return 1e-9 * static_cast<double>(sum_nanoseconds_.load(std::memory_order_relaxed));
}

}  // namespace tarn::serve
