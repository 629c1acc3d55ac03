#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/checked.h"
#include "base/dtype.h"
#include "base/result.h"
#include "base/rng.h"
#include "mixers/mixer.h"
#include "model/parameters.h"

namespace tarn::runtime {

/// What a call's memory is checked for before it is allocated.
struct CallBytes {
  size_t values = sizeof(float);  ///< per value of inputs, output and the operator's parameters
  int64_t state = 0;              ///< of all sequences
};

/// kResource where tensors, parameters and state of `rows` rows are more than this process may have.
Status check_memory(const mixers::OpShape& shape, int64_t rows, const CallBytes& bytes);

/// A number as an element of a tensor; uint16_t holds the bits of a bf16.
template <class T>
T element_of(double value) {
  if constexpr (std::is_same_v<T, uint16_t>) {
    return f32_to_bf16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// The number that an element of a tensor stands for.
template <class T>
double number_of(T value) {
  if constexpr (std::is_same_v<T, uint16_t>) {
    return static_cast<double>(bf16_to_f32(value));
  } else {
    return static_cast<double>(value);
  }
}

/// Fills with the range an operator's input has: mean 0 and variance 1 (a sum of four uniform
/// bytes), log decays in (-1, 0], or [0, 1). A few nanoseconds per value. `values` may be the part
/// of a tensor that starts at element `first`, a multiple of 4.
template <class T>
void fill_random(std::span<T> values, mixers::OpInput::Range range, uint64_t seed, uint32_t stream,
                 uint64_t first = 0) {
  constexpr double kByteSum = 510.0;                     // mean of four bytes' sum
  constexpr double kByteDeviation = 147.80054127099805;  // sqrt(4 * (256^2 - 1) / 12)
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed),
                                       static_cast<uint32_t>(seed >> 32)};
  for (size_t i = 0; i < values.size(); i += 4) {
    const uint64_t block = (first + i) / 4;
    const auto words = philox_block(
        {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream, 0}, key);
    for (size_t j = i; j < std::min(i + 4, values.size()); ++j) {
      const uint32_t word = words[j - i];
      const double uniform = static_cast<double>(word >> 8) * 0x1p-24;
      const double sum = (word & 0xffu) + (word >> 8 & 0xffu) + (word >> 16 & 0xffu) + (word >> 24);
      switch (range) {
        case mixers::OpInput::Range::kUnitNorm:  // the caller scales whole heads
        case mixers::OpInput::Range::kNormal:
          values[j] = element_of<T>((sum - kByteSum) / kByteDeviation);
          break;
        case mixers::OpInput::Range::kLogDecay: values[j] = element_of<T>(-uniform); break;
        case mixers::OpInput::Range::kUnitInterval: values[j] = element_of<T>(uniform); break;
      }
    }
  }
}

template <class T>
void scale_to_unit_norm(std::span<T> head) {
  double square = 0.0;
  for (const T value : head) square += number_of(value) * number_of(value);
  const double scale = square > 0.0 ? 1.0 / std::sqrt(square) : 0.0;
  for (T& value : head) value = element_of<T>(number_of(value) * scale);
}

/// A parameter of an operator as a model would start with.
template <class T>
Buffer<T> start_of(const mixers::ParamSpec& spec) {
  Buffer<float> values(model::element_count(spec.shape));
  model::initialise(spec, 0, values.data());
  Buffer<T> result(values.size());
  for (int64_t i = 0; i < values.size(); ++i) {
    result[i] = element_of<T>(static_cast<double>(values[i]));
  }
  return result;
}

/// Inputs, output and arguments of one call of an operator on packed sequences.
template <class T>
class OperatorCall {
 public:
  using Args =
      std::conditional_t<std::is_same_v<T, uint16_t>, mixers::OpArgsBf16, mixers::OpArgs<T>>;
  OperatorCall(const mixers::MixerConfig& config, const mixers::OpShape& shape,
               std::vector<int64_t> lengths)
      : lengths_(std::move(lengths)), positions_(lengths_.size(), 0) {
    for (int64_t length : lengths_) {
      begins_.push_back(rows_);
      rows_ += length;
    }
    for (const mixers::OpInput& input : shape.inputs) {
      inputs_.emplace_back(rows_ * input.heads * input.dim);
      heads_.push_back({inputs_.back().data(), input.heads * input.dim, input.dim});
      ranges_.push_back(input.range);
    }
    for (const mixers::ParamSpec& spec : shape.params) {
      params_.push_back(start_of<T>(spec));
      param_pointers_.push_back(params_.back().data());
      writable_params_.push_back(params_.back().data());
    }
    out_ = Buffer<T>(rows_ * shape.out_heads * shape.out_dim);
    args_.config = &config;
    args_.sequences = {static_cast<int64_t>(lengths_.size()), begins_.data(), lengths_.data()};
    args_.inputs = heads_;
    args_.params = param_pointers_;
    args_.out = {out_.data(), shape.out_heads * shape.out_dim, shape.out_dim};
  }
  OperatorCall(const OperatorCall&) = delete;
  OperatorCall& operator=(const OperatorCall&) = delete;

  void randomise(uint64_t seed) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      fill_random(inputs_[i].span(), ranges_[i], seed, static_cast<uint32_t>(i));
      if (ranges_[i] != mixers::OpInput::Range::kUnitNorm) continue;
      const auto dim = static_cast<size_t>(heads_[i].head_stride);
      for (size_t begin = 0; begin < static_cast<size_t>(inputs_[i].size()); begin += dim) {
        scale_to_unit_norm(inputs_[i].span().subspan(begin, dim));
      }
    }
  }
  Args& args() { return args_; }
  std::vector<Buffer<T>>& inputs() { return inputs_; }
  /// The operator's parameters, at their start; also room for their gradients.
  std::span<T* const> params() { return writable_params_; }
  Buffer<T>& out() { return out_; }
  std::vector<int64_t>& positions() { return positions_; }
  std::vector<int64_t>& begins() { return begins_; }
  int64_t rows() const { return rows_; }
  int64_t bytes() const {
    int64_t bytes = out_.size_bytes();
    for (const Buffer<T>& input : inputs_) bytes += input.size_bytes();
    return bytes;
  }

 private:
  std::vector<int64_t> lengths_, begins_, positions_;
  int64_t rows_ = 0;
  std::vector<Buffer<T>> inputs_;
  std::vector<mixers::OpInput::Range> ranges_;
  std::vector<kernels::Heads<const T>> heads_;
  std::vector<Buffer<T>> params_;
  std::vector<const T*> param_pointers_;
  std::vector<T*> writable_params_;
  Buffer<T> out_;
  Args args_;
};

/// State tensors of several sequences, each with room for `entries` tokens; uninitialised.
class OperatorState {
 public:
  OperatorState(const std::vector<mixers::StateSpec>& specs, int64_t sequences, int64_t entries) {
    for (const mixers::StateSpec& spec : specs) {
      const int64_t elements = *checked_product(std::span<const int64_t>(spec.shape));
      for (int64_t i = 0; i < sequences; ++i) {
        tensors_.emplace_back(elements * (spec.per_token ? entries : 1));
        initial_values_.push_back(spec.initial_value);
        symbols_.push_back(spec.symbols);
        pointers_.push_back(tensors_.back().data());
      }
    }
    for (size_t j = 0; j < specs.size(); ++j) {
      rows_.push_back(pointers_.data() + j * static_cast<size_t>(sequences));
    }
  }
  OperatorState(const OperatorState&) = delete;
  OperatorState& operator=(const OperatorState&) = delete;

  void reset() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      std::ranges::fill(tensors_[i].span(), initial_values_[i]);
    }
  }
  /// Numbers in [0, 1), or of tensors of symbols any of these. `stop` is asked before every MiB or so; false when it ended the work.
  template <class Stop>
  bool randomise(uint64_t seed, Stop stop) {
    constexpr size_t kPiece = size_t{1} << 18;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const std::span<float> all = tensors_[i].span();
      for (size_t begin = 0; begin < all.size(); begin += kPiece) {
        if (stop()) return false;
        const std::span<float> piece = all.subspan(begin, std::min(kPiece, all.size() - begin));
        fill_random(piece, mixers::OpInput::Range::kUnitInterval, seed,
                    static_cast<uint32_t>(i + 1), begin);
        if (symbols_[i] == 0) continue;
        for (float& value : piece) value = std::floor(value * static_cast<float>(symbols_[i]));
      }
    }
    return true;
  }
  mixers::StateRefs<float> refs() const { return {rows_}; }
  int64_t bytes() const {
    int64_t bytes = 0;
    for (const Buffer<float>& tensor : tensors_) bytes += tensor.size_bytes();
    return bytes;
  }

 private:
  std::vector<Buffer<float>> tensors_;
  std::vector<float> initial_values_;
  std::vector<int64_t> symbols_;
  std::vector<float*> pointers_;
  std::vector<float* const*> rows_;
};

}  // namespace tarn::runtime
