#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/threads.h"

namespace tarn::runtime {

/// Bytes of the data caches: L1 and L2 as one core sees them, `last` the last level when it is
/// shared. 0: none, or the system does not say.
struct CacheSizes {
  int64_t l1 = 0, l2 = 0, last = 0;
};

/// The caches of the first CPU, from sysfs, else sysconf.
CacheSizes cache_sizes();

/// What each thread reads to measure one level: half of its L1 and of its L2, half of its share of
/// the last level, and for RAM its share of four times the last level (64 MiB to 1 GiB in all, never
/// more than a quarter of the memory). 0 where a level does not exist: also the last one, when a
/// thread's share of it is not twice L2.
struct WorkingSets {
  int64_t l1 = 0, l2 = 0, last = 0, ram = 0;
};
WorkingSets working_sets(const CacheSizes& caches, int threads, int64_t memory_bytes);

/// One limit of this machine.
struct RoofFigure {
  std::string kind;               ///< one of roof_kinds()
  std::string unit;               ///< "GFLOP/s", "GOP/s" or "GB/s" (10^9 bytes)
  std::string instructions;       ///< of arithmetic
  int64_t working_set_bytes = 0;  ///< of memory, per thread
  int threads = 1;
  int64_t rounds = 0;  ///< 0: absent, this machine has no such limit
  double value = 0;    ///< median of the rounds, all threads together
  double min = 0, max = 0;
};

struct RoofOptions {
  std::vector<std::string> kinds;  ///< empty: all
  int64_t rounds = 25;
  /// Each round takes about this long, or a call; short, so that some rounds pass undisturbed.
  double round_seconds = 2e-3;
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(int64_t done, int64_t total)> progress;
};

/// Every kind, in the order of measurement: f32_fma, bf16_dot, int8_dot, bf16_amx, int8_amx (a
/// multiply-add counts as two), l1_read, l2_read, llc_read, ram_read, ram_copy, ram_triad (bytes
/// read and written; stores that bypass the caches).
std::vector<std::string> roof_kinds();

/// Measures limits with all threads of the pool at once. Arithmetic runs on registers; a level of
/// memory is read by every thread in a block of its own. Errors: kInvalidArgument for an unknown
/// kind, kCancelled.
Result<std::vector<RoofFigure>> measure_roof(const RoofOptions& options, ThreadPool& pool);

/// Fills rounds, value, min and max from units per second of each round.
void summarise_rates(std::vector<double> rates, RoofFigure& figure);

/// The limits that an operator meets: arithmetic, and the bandwidth of each level of memory.
struct Roof {
  struct Level {
    std::string kind;            ///< "l1_read" … "ram_read"
    int64_t capacity_bytes = 0;  ///< of all threads' caches of this level; RAM: INT64_MAX
    double bytes_per_second = 0;
  };
  double flops_per_second = 0;  ///< of `arithmetic`
  std::vector<Level> levels;    ///< fastest first; the last is RAM
  std::string arithmetic = "f32_fma";
};

/// Measures them with all threads of the pool; about 0.3 s. The best round counts: a limit is what
/// the machine does while nothing else runs on it. Without instructions for `arithmetic`: f32_fma.
Roof measure_operator_roof(ThreadPool& pool, const std::string& arithmetic = "f32_fma");

/// How close a call came to the limit that binds it.
struct RoofShare {
  std::string kind;  ///< of the limit: the roof's arithmetic, or a level
  /// 100 · max(flops / peak, bytes / bandwidth) / seconds, with the bandwidth of the fastest level
  /// that could hold the call's working set.
  double percent = 0;
  double bytes_per_second = 0;  ///< the bandwidth that was used
};
RoofShare roof_share(const Roof& roof, double flops, double bytes, int64_t working_set_bytes,
                     double seconds);

}  // namespace tarn::runtime
