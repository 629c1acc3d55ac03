#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/targets.h"

namespace tarn::kernels::testing {

/// Rows with a stride and an odd start, poisoned with NaN: what a kernel forgets to write, and what
/// it writes beside its rows, both show.
class TestRows {
 public:
  TestRows(int64_t rows, int64_t dim, int64_t padding = 3, int64_t start = 1)
      : rows_(rows),
        dim_(dim),
        stride_(dim + padding),
        start_(start),
        data_(static_cast<size_t>(start + rows * stride_ + 1),
              std::numeric_limits<float>::quiet_NaN()) {}

  static TestRows uniform(int64_t rows, int64_t dim, uint64_t seed, float low = -1.0f,
                          float high = 1.0f) {
    TestRows result(rows, dim);
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < dim; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const float unit = static_cast<float>(state >> 40) / static_cast<float>(1 << 24);
        result.row(r)[i] = low + (high - low) * unit;
      }
    }
    return result;
  }

  int64_t rows() const { return rows_; }
  int64_t dim() const { return dim_; }
  int64_t stride() const { return stride_; }
  float* data() { return data_.data() + start_; }
  const float* data() const { return data_.data() + start_; }
  float* row(int64_t r) { return data() + r * stride_; }
  const float* row(int64_t r) const { return data() + r * stride_; }
  std::vector<double> row_f64(int64_t r) const { return {row(r), row(r) + dim_}; }

  /// True when nothing outside the rows was written.
  bool padding_is_intact() const {
    for (size_t i = 0; i < data_.size(); ++i) {
      const int64_t place = static_cast<int64_t>(i) - start_;
      const bool inside = place >= 0 && place < rows_ * stride_ && place % stride_ < dim_;
      if (!inside && !std::isnan(data_[i])) return false;
    }
    return true;
  }
  bool same_bits(int64_t r, const TestRows& other, int64_t other_row) const {
    return std::memcmp(row(r), other.row(other_row), static_cast<size_t>(dim_) * sizeof(float)) ==
           0;
  }

 private:
  int64_t rows_;
  int64_t dim_;
  int64_t stride_;
  int64_t start_;
  std::vector<float> data_;
};

/// Runs `body` once per SIMD target that this CPU has.
template <class Body>
void for_each_target(const Body& body) {
  for (const std::string& name : supported_targets()) {
    ASSERT_TRUE(force_target(name));
    SCOPED_TRACE(name);
    body();
  }
  force_target("");
}

inline constexpr double kEps = std::numeric_limits<float>::epsilon();

/// A dense matrix [rows, dim] of uniform values, as weights are stored.
inline std::vector<float> dense(int64_t rows, int64_t dim, uint64_t seed) {
  const TestRows source = TestRows::uniform(rows, dim, seed);
  std::vector<float> result(static_cast<size_t>(rows * dim));
  for (int64_t r = 0; r < rows; ++r) std::copy_n(source.row(r), dim, result.begin() + r * dim);
  return result;
}

}  // namespace tarn::kernels::testing
