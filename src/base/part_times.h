#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace tarn {

/// Where the time of a repeated piece of work goes, part by part. Threads: one at a time.
class PartTimes {
 public:
  struct Part {
    std::string name;
    int64_t calls = 0;
    double seconds = 0.0;
    double flops = 0.0;          ///< of products, by formula; 0: not counted
    DType format = DType::kF32;  ///< of the products' operands
  };

  void add(const char* name, double seconds, double flops, DType format);
  void clear() { parts_.clear(); }
  /// In the order of their first call.
  const std::vector<Part>& parts() const { return parts_; }

 private:
  std::vector<Part> parts_;
};

/// Adds the time of its own life to a part; does nothing when `times` is null. Must not nest.
class PartTimer {
 public:
  using Clock = std::chrono::steady_clock;

  PartTimer(PartTimes* times, const char* name, double flops = 0.0, DType format = DType::kF32)
      : times_(times), name_(name), flops_(flops), format_(format) {
    if (times_ != nullptr) start_ = Clock::now();
  }
  ~PartTimer() {
    if (times_ == nullptr) return;
    times_->add(name_, std::chrono::duration<double>(Clock::now() - start_).count(), flops_,
                format_);
  }
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;

 private:
  PartTimes* times_;
  const char* name_;
  double flops_;
  DType format_;
  Clock::time_point start_;
};

}  // namespace tarn
