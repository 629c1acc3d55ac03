#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "power/disk_record.h"

namespace tarn::power {

/// Random choices; the same on every machine.
class Chance {
 public:
  explicit Chance(uint64_t seed) : engine_(seed) {}
  uint64_t bits() { return engine_(); }
  size_t below(size_t bound) { return static_cast<size_t>(engine_() % bound); }
  bool under(double probability) {
    return static_cast<double>(engine_() >> 11) < probability * 0x1p53;
  }

 private:
  std::mt19937_64 engine_;
};

/// What a disk may hold after a loss of power, by the promises of POSIX alone. Data of a file is
/// safe once the file was flushed after it was written, an entry of a folder once the folder was.
/// Everything else is there or not, in any order and mixture: data by sectors of 512 bytes, each as
/// it was at some moment since the last flush; sizes apart from data, with zeros or noise where
/// nothing arrived; entries one by one, but a rename whole. Files named *-shm hold noise: programs
/// map them into memory and must not rely on them.
class Disk {
 public:
  explicit Disk(const Tree& start);

  /// `operation` must outlive the disk.
  void advance(const Operation& operation);
  /// Without a loss of power: what every reader sees.
  Tree whole() const;
  Tree after_power_loss(Chance& chance) const;

 private:
  using Entries = std::map<std::pair<int, std::string>, int>;
  using Pending = std::vector<const Operation*>;
  struct File {
    std::string durable, live;
    Pending pending;
  };

  static void apply(const Operation& operation, Entries* entries);
  void sync_folder(int folder);
  Entries surviving_entries(Chance& chance) const;
  static std::string surviving_content(const File& file, Chance& chance);
  void collect(const Entries& entries, int folder, const std::string& path, Chance* chance,
               Tree* tree) const;

  Entries durable_;
  Pending pending_;
  std::map<int, File> files_;  // by node; all others are folders
};

}  // namespace tarn::power
