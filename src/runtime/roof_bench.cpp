#include "runtime/roof_bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>

#include "base/buffer.h"
#include "kernels/roof.h"
#include "runtime/process_memory.h"

namespace tarn::runtime {
namespace {

using Clock = std::chrono::steady_clock;
/// Work of one call on one thread; returns what it did in operations or bytes.
using Work = std::function<double(int thread)>;

constexpr int64_t kMinRamBytes = int64_t{64} << 20;
constexpr int64_t kMaxRamBytes = int64_t{1} << 30;
constexpr int64_t kBlockBytes = 4 * kernels::kProbeBlock;

int64_t whole_blocks(int64_t bytes) { return bytes / kBlockBytes * kBlockBytes; }

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Runs `work` `calls` times on every thread; units per second.
double rate_of(const Work& work, int64_t calls, ThreadPool& pool, double& seconds) {
  std::vector<double> done(static_cast<size_t>(pool.num_threads()), 0.0);
  const Clock::time_point start = Clock::now();
  pool.parallel_for(pool.num_threads(), [&](int64_t begin, int64_t end, int) {
    for (int64_t thread = begin; thread < end; ++thread) {
      double sum = 0;
      for (int64_t call = 0; call < calls; ++call) sum += work(static_cast<int>(thread));
      done[static_cast<size_t>(thread)] = sum;
    }
  });
  seconds = std::max(seconds_since(start), 1e-9);
  return std::accumulate(done.begin(), done.end(), 0.0) / seconds;
}

/// Finds how many calls make a round, then times the rounds.
void time_rounds(const Work& work, const RoofOptions& options, ThreadPool& pool,
                 RoofFigure& figure) {
  double seconds = 0;
  rate_of(work, 1, pool, seconds);  // fetches code, data and clock speed
  rate_of(work, 1, pool, seconds);
  const auto calls = static_cast<int64_t>(std::ceil(options.round_seconds / seconds));
  std::vector<double> rates;
  rates.reserve(static_cast<size_t>(options.rounds));
  for (int64_t round = 0; round < options.rounds; ++round) {
    rates.push_back(rate_of(work, std::max<int64_t>(1, calls), pool, seconds));
  }
  summarise_rates(std::move(rates), figure);
}

/// Blocks of memory, one for each thread, written first by the thread that will read it.
template <class T>
std::vector<Buffer<T>> blocks_of(int64_t bytes, ThreadPool& pool) {
  std::vector<Buffer<T>> blocks;
  blocks.reserve(static_cast<size_t>(pool.num_threads()));
  const auto size = bytes / static_cast<int64_t>(sizeof(T));
  for (int thread = 0; thread < pool.num_threads(); ++thread) blocks.emplace_back(size);
  pool.parallel_for(pool.num_threads(), [&](int64_t begin, int64_t end, int) {
    for (int64_t thread = begin; thread < end; ++thread) {
      for (T& value : blocks[static_cast<size_t>(thread)].span()) value = T{1};
    }
  });
  return blocks;
}

/// Every call reads about 4 MiB: a small block several times, a large one piece after piece.
void measure_read(int64_t bytes, const RoofOptions& options, ThreadPool& pool, RoofFigure& figure) {
  constexpr int64_t kBytesPerCall = int64_t{4} << 20;
  const auto blocks = blocks_of<uint32_t>(bytes, pool);
  const int64_t pieces = std::max<int64_t>(1, bytes / kBytesPerCall);
  const int64_t passes = std::max<int64_t>(1, kBytesPerCall / bytes);
  const int64_t count = whole_blocks(bytes / pieces) / 4;
  std::vector<int64_t> calls(static_cast<size_t>(pool.num_threads()), 0);
  const Work work = [&](int thread) {
    const auto at = static_cast<size_t>(thread);
    const int64_t piece = calls[at]++ % pieces;
    return 4 * kernels::read_probe(blocks[at].data() + piece * count, count, passes);
  };
  time_rounds(work, options, pool, figure);
}

/// Copies, or with `triad` adds a third stream. The blocks together have the size of the working
/// set.
void measure_write(bool triad, const RoofOptions& options, ThreadPool& pool, RoofFigure& figure) {
  const int64_t streams = triad ? 3 : 2;
  const int64_t bytes = whole_blocks(figure.working_set_bytes / streams);
  std::vector<std::vector<Buffer<float>>> blocks;
  for (int64_t i = 0; i < streams; ++i) blocks.push_back(blocks_of<float>(bytes, pool));
  const Work work = [&](int thread) {
    const auto at = static_cast<size_t>(thread);
    const int64_t count = blocks[0][at].size();
    float* out = blocks.back()[at].data();
    if (triad) {
      kernels::triad_probe(blocks[0][at].data(), blocks[1][at].data(), 0.5f, count, out);
    } else {
      kernels::copy_probe(blocks[0][at].data(), count, out);
    }
    return static_cast<double>(streams * bytes);
  };
  time_rounds(work, options, pool, figure);
}

void measure_arithmetic(const kernels::ArithmeticProbe& probe, const RoofOptions& options,
                        ThreadPool& pool, RoofFigure& figure) {
  figure.unit = probe.unit;
  if (probe.run == nullptr) return;
  figure.instructions = probe.instructions;
  const Work work = [&](int) { return 2 * probe.run(kernels::kMaxProbeIterations / 4); };
  time_rounds(work, options, pool, figure);
}

RoofFigure measure_memory(const std::string& kind, const WorkingSets& sets,
                          const RoofOptions& options, ThreadPool& pool) {
  RoofFigure figure;
  figure.unit = "GB/s";
  figure.working_set_bytes = kind == "l1_read"    ? sets.l1
                             : kind == "l2_read"  ? sets.l2
                             : kind == "llc_read" ? sets.last
                                                  : sets.ram;
  if (figure.working_set_bytes == 0) return figure;
  if (kind == "ram_copy" || kind == "ram_triad") {
    measure_write(kind == "ram_triad", options, pool, figure);
  } else {
    measure_read(figure.working_set_bytes, options, pool, figure);
  }
  return figure;
}

/// "48K" or "32768K" in bytes; 0 for anything else.
int64_t size_from_sysfs(const std::string& text) {
  int64_t value = 0;
  size_t at = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9' && at < 12; ++at) {
    value = 10 * value + (text[at] - '0');
  }
  if (at + 1 != text.size()) return 0;
  return text[at] == 'K' ? value << 10 : text[at] == 'M' ? value << 20 : 0;
}

std::string first_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

}  // namespace

CacheSizes cache_sizes() {
  CacheSizes sizes;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    const std::string level = first_word(folder + "level");
    if (level.empty()) break;
    if (first_word(folder + "type") == "Instruction") continue;
    const int64_t bytes = size_from_sysfs(first_word(folder + "size"));
    if (level == "1") sizes.l1 = bytes;
    if (level == "2") sizes.l2 = bytes;
    if (level == "3") sizes.last = bytes;
  }
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  if (sizes.l1 == 0) {
    sizes.l1 = std::max<int64_t>(0, sysconf(_SC_LEVEL1_DCACHE_SIZE));
    sizes.l2 = std::max<int64_t>(0, sysconf(_SC_LEVEL2_CACHE_SIZE));
    sizes.last = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  }
#endif
  return sizes;
}

WorkingSets working_sets(const CacheSizes& caches, int threads, int64_t memory_bytes) {
  WorkingSets sets;
  sets.l1 = whole_blocks(caches.l1 / 2);
  sets.l2 = whole_blocks(caches.l2 / 2);
  const int64_t share = caches.last / threads;
  if (share >= 2 * caches.l2) sets.last = whole_blocks(share / 2);
  const int64_t wanted = std::clamp(4 * caches.last, kMinRamBytes, kMaxRamBytes);
  sets.ram = whole_blocks(std::min(wanted, memory_bytes / 4) / threads);
  return sets;
}

void summarise_rates(std::vector<double> rates, RoofFigure& figure) {
  figure.rounds = static_cast<int64_t>(rates.size());
  if (rates.empty()) return;
  constexpr double kGiga = 1e9;
  std::sort(rates.begin(), rates.end());
  const size_t middle = rates.size() / 2;
  const double median =
      rates.size() % 2 == 1 ? rates[middle] : (rates[middle - 1] + rates[middle]) / 2;
  figure.value = median / kGiga;
  figure.min = rates.front() / kGiga;
  figure.max = rates.back() / kGiga;
}

std::vector<std::string> roof_kinds() {
  return {"f32_fma", "bf16_dot", "int8_dot", "bf16_amx", "int8_amx", "l1_read",
          "l2_read", "llc_read", "ram_read", "ram_copy", "ram_triad"};
}

Result<std::vector<RoofFigure>> measure_roof(const RoofOptions& options, ThreadPool& pool) {
  const std::vector<std::string> all = roof_kinds();
  for (const std::string& kind : options.kinds) {
    if (std::find(all.begin(), all.end(), kind) == all.end()) {
      return invalid_argument(
          fmt::format("no limit is called \"{}\", wanted {}", kind, fmt::join(all, ", ")));
    }
  }
  const std::vector<std::string>& kinds = options.kinds.empty() ? all : options.kinds;
  const WorkingSets sets = working_sets(cache_sizes(), pool.num_threads(), machine_memory_bytes());
  const std::vector<kernels::ArithmeticProbe> probes = kernels::arithmetic_probes();
  std::vector<RoofFigure> figures;
  for (const std::string& kind : kinds) {
    if (options.cancel != nullptr && options.cancel->load()) {
      return Error{ErrorCode::kCancelled, "stopped on request", {}};
    }
    const auto probe = std::find_if(probes.begin(), probes.end(),
                                    [&](const auto& one) { return one.kind == kind; });
    RoofFigure figure;
    if (probe != probes.end()) {
      measure_arithmetic(*probe, options, pool, figure);
    } else {
      figure = measure_memory(kind, sets, options, pool);
    }
    figure.kind = kind;
    figure.threads = pool.num_threads();
    figures.push_back(std::move(figure));
    if (options.progress) {
      options.progress(static_cast<int64_t>(figures.size()), static_cast<int64_t>(kinds.size()));
    }
  }
  return figures;
}

Roof measure_operator_roof(ThreadPool& pool, const std::string& arithmetic) {
  RoofOptions options;
  options.kinds = {arithmetic, "l1_read", "l2_read", "llc_read", "ram_read"};
  const std::vector<RoofFigure> figures = measure_roof(options, pool).value();
  if (figures[0].rounds == 0) return measure_operator_roof(pool);
  const CacheSizes caches = cache_sizes();
  const int64_t threads = pool.num_threads();
  const std::array<int64_t, 4> capacities = {threads * caches.l1, threads * caches.l2, caches.last,
                                             INT64_MAX};
  constexpr double kGiga = 1e9;
  Roof roof;
  roof.arithmetic = arithmetic;
  roof.flops_per_second = kGiga * figures[0].max;
  for (size_t i = 0; i < capacities.size(); ++i) {
    const RoofFigure& figure = figures[i + 1];
    if (figure.rounds > 0) roof.levels.push_back({figure.kind, capacities[i], kGiga * figure.max});
  }
  return roof;
}

RoofShare roof_share(const Roof& roof, double flops, double bytes, int64_t working_set_bytes,
                     double seconds) {
  const auto level = std::find_if(roof.levels.begin(), roof.levels.end(), [&](const auto& one) {
    return working_set_bytes <= one.capacity_bytes;
  });
  const double arithmetic = flops / roof.flops_per_second;
  if (level == roof.levels.end()) return {roof.arithmetic, 100 * arithmetic / seconds, 0};
  const double memory = bytes / level->bytes_per_second;
  return {memory > arithmetic ? level->kind : roof.arithmetic,
          100 * std::max(arithmetic, memory) / seconds, level->bytes_per_second};
}

}  // namespace tarn::runtime
