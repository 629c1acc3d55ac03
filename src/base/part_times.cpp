#include "base/part_times.h"

#include <algorithm>

namespace tarn {

void PartTimes::add(const char* name, double seconds, double flops, DType format) {
  auto part = std::ranges::find(parts_, name, &Part::name);
  if (part == parts_.end()) part = parts_.insert(part, Part{name, 0, 0.0, 0.0, format});
  ++part->calls;
  part->seconds += seconds;
  part->flops += flops;
}

}  // namespace tarn
