#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

#include "base/arena.h"
#include "base/checked.h"
#include "base/json.h"
#include "base/rng.h"
#include "runtime/operator_call.h"
#include "runtime/selftest.h"

namespace tarn::runtime {

namespace {

constexpr int64_t kWindow = 1000;           // tokens per error ratio
constexpr int64_t kMostUnbounded = 65'536;  // tokens, for states that grow (and cost O(T²))

/// Random inputs at a few nanoseconds each, so that a million tokens are no burden.
class InputSource {
 public:
  explicit InputSource(uint64_t seed) : seed_(seed) {}

  double draw(mixers::OpInput::Range range) {
    using Range = mixers::OpInput::Range;
    switch (range) {
      case Range::kUnitNorm:  // scaled afterwards
      case Range::kNormal: return normal();
      case Range::kLogDecay: {
        const double first = uniform();
        return -3.0 * first * uniform();
      }
      case Range::kUnitInterval: return uniform();
    }
    return 0.0;
  }

 private:
  uint32_t next() {
    if (used_ == words_.size()) {
      words_ =
          philox_block({static_cast<uint32_t>(block_), static_cast<uint32_t>(block_ >> 32), 0, 0},
                       {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
      ++block_;
      used_ = 0;
    }
    return words_[used_++];
  }
  double uniform() { return static_cast<double>(next() >> 8) * 0x1p-24; }
  /// Mean 0, variance 1: the sum of four 16-bit uniforms has variance 1/3.
  double normal() {
    const uint32_t a = next();
    const uint32_t b = next();
    const uint32_t sum = (a & 0xffffu) + (a >> 16) + (b & 0xffffu) + (b >> 16);
    return (static_cast<double>(sum) * 0x1p-16 - 2.0) * std::sqrt(3.0);
  }

  uint64_t seed_;
  uint64_t block_ = 0;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

/// One sequence of one operator in one precision: inputs, state and output of the current token.
template <class T>
class OperatorRun {
 public:
  OperatorRun(const mixers::MixerDef& mixer, const mixers::MixerConfig& config,
              const mixers::OpShape& shape, const std::vector<mixers::StateSpec>& specs,
              int64_t tokens)
      : out_(static_cast<size_t>(shape.out_heads * shape.out_dim)) {
    int64_t width = 0;
    for (const mixers::OpInput& input : shape.inputs) width += input.heads * input.dim;
    inputs_.resize(static_cast<size_t>(width));
    int64_t column = 0;
    for (const mixers::OpInput& input : shape.inputs) {
      heads_.push_back({inputs_.data() + column, width, input.dim});
      column += input.heads * input.dim;
    }
    for (const mixers::StateSpec& spec : specs) {
      const int64_t elements = *checked_product(std::span<const int64_t>(spec.shape));
      state_.emplace_back(static_cast<size_t>(elements * (spec.per_token ? tokens : 1)),
                          static_cast<T>(spec.initial_value));
    }
    for (auto& tensor : state_) pointers_.push_back(tensor.data());
    for (T*& pointer : pointers_) rows_.push_back(&pointer);
    for (const mixers::ParamSpec& spec : shape.params) {
      params_.push_back(start_of<T>(spec));
      param_pointers_.push_back(params_.back().data());
    }
    args_.params = param_pointers_;
    args_.config = &config;
    args_.sequences = {1, &begin_, &length_};
    args_.positions = &position_;
    args_.inputs = heads_;
    args_.out = {out_.data(), static_cast<int64_t>(out_.size()), shape.out_dim};
    args_.state = {rows_};
    args_.arena = &arena_;
    if constexpr (std::is_same_v<T, float>) {
      if (mixer.prepare == nullptr) return;
      args_.prepared = mixer.prepare(config, args_.params, DType::kF32, nullptr, kept_);
    }
  }
  OperatorRun(const OperatorRun&) = delete;
  OperatorRun& operator=(const OperatorRun&) = delete;

  template <class Form>
  void step(Form form) {
    for (T& value : out_) value = std::nan("");
    form(args_);
    ++position_;
  }

  std::vector<T>& inputs() { return inputs_; }
  const std::vector<T>& out() const { return out_; }
  int64_t state_bytes() const {
    int64_t bytes = 0;
    for (const auto& tensor : state_) bytes += static_cast<int64_t>(tensor.size() * sizeof(T));
    return bytes;
  }

 private:
  int64_t begin_ = 0;
  int64_t length_ = 1;
  int64_t position_ = 0;
  std::vector<T> inputs_;
  std::vector<T> out_;
  std::vector<kernels::Heads<const T>> heads_;
  std::vector<Buffer<T>> params_;
  std::vector<const T*> param_pointers_;
  std::vector<std::vector<T>> state_;
  std::vector<T*> pointers_;
  std::vector<T* const*> rows_;
  Arena arena_;
  Arena kept_;  ///< of what the parameters were made into
  mixers::OpArgs<T> args_;
};

struct ErrorSums {
  double delta = 0.0;
  double value = 0.0;
  void add(const ErrorSums& other) {
    delta += other.delta;
    value += other.value;
  }
  double ratio() const { return delta == 0.0 ? 0.0 : std::sqrt(delta / value); }
};

ErrorSums squared_error(const std::vector<float>& out, const std::vector<double>& reference) {
  ErrorSums sums;
  for (size_t i = 0; i < out.size(); ++i) {
    const double delta = static_cast<double>(out[i]) - reference[i];
    sums.delta += delta * delta;
    sums.value += reference[i] * reference[i];
  }
  return sums;
}

/// Time of the step form in windows of tokens, evenly picked ones of very long runs; its memory is
/// all taken at the start.
class StepTimes {
 public:
  explicit StepTimes(int64_t tokens) : apart_(1 + tokens / kWindow / kMost) {
    windows_.reserve(static_cast<size_t>(std::min(tokens / kWindow + 1, kMost + 1)));
  }
  template <class Step>
  void time(Step step) {
    const auto start = std::chrono::steady_clock::now();
    step();
    sum_ += std::chrono::steady_clock::now() - start;
    ++steps_;
  }
  void end_window() {
    if (ended_++ % apart_ == 0) {
      windows_.push_back(1e6 * sum_.count() / static_cast<double>(steps_));
    }
    sum_ = {};
    steps_ = 0;
  }
  double first_tenth() const { return median({windows_.begin(), windows_.begin() + tenth()}); }
  double last_tenth() const { return median({windows_.end() - tenth(), windows_.end()}); }

 private:
  int64_t tenth() const { return (static_cast<int64_t>(windows_.size()) + 9) / 10; }
  static double median(std::vector<double> values) {
    std::ranges::nth_element(values, values.begin() + static_cast<int64_t>(values.size()) / 2);
    return values[values.size() / 2];
  }

  static constexpr int64_t kMost = 1 << 16;
  int64_t apart_;
  int64_t ended_ = 0;
  std::vector<double> windows_;
  std::chrono::duration<double> sum_{};
  int64_t steps_ = 0;
};

Status check_options(const mixers::MixerDef& mixer, const LongRunOptions& options) {
  if (mixer.step == nullptr) {
    return Error{ErrorCode::kUnsupported, "this mixer has no operator with a step form",
                 mixer.name};
  }
  const int64_t limit = mixer.bounded_state ? INT64_MAX : kMostUnbounded;
  if (options.tokens >= 1 && options.tokens <= limit) return {};
  return invalid_argument("got " + std::to_string(options.tokens) +
                              " tokens for the long run, wanted 1 to " + std::to_string(limit) +
                              (mixer.bounded_state ? "" : ", for the state grows with each"),
                          mixer.name);
}

}  // namespace

int64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return -1;
  long long total = 0;
  long long resident = 0;
  const int fields = std::fscanf(file, "%lld %lld", &total, &resident);
  std::fclose(file);
  return fields == 2 ? static_cast<int64_t>(resident) * sysconf(_SC_PAGESIZE) : -1;
}

Result<LongRunResult> long_run_check(const mixers::MixerDef& mixer, const LongRunOptions& options) {
  TARN_RETURN_IF_ERROR(check_options(mixer, options));
  LongRunResult result;
  result.config = options.config.empty() ? mixer.example_configs().front() : options.config;
  TARN_ASSIGN(const Json json, parse_json(result.config, mixer.name));
  TARN_ASSIGN(const auto config, mixer.parse_config(json, options.model_dim, mixer.name));
  const mixers::OpShape shape = mixer.op_shape(*config);
  const std::vector<mixers::StateSpec> specs = mixer.state_specs(*config);
  if (specs.empty()) {
    return Error{ErrorCode::kUnsupported, "this config is not causal: it has no state", mixer.name};
  }
  OperatorRun<float> fast(mixer, *config, shape, specs, options.tokens);
  OperatorRun<double> exact(mixer, *config, shape, specs, options.tokens);
  InputSource source(options.seed);
  const auto start = std::chrono::steady_clock::now();
  ErrorSums total;
  ErrorSums window;
  StepTimes times(options.tokens);
  int64_t resident_before = -1;
  for (int64_t done = 1; done <= options.tokens; ++done) {
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) {
      return Error{ErrorCode::kCancelled, "the long run was stopped on request", mixer.name};
    }
    size_t next = 0;
    for (const mixers::OpInput& input : shape.inputs) {
      for (int64_t h = 0; h < input.heads; ++h, next += static_cast<size_t>(input.dim)) {
        const std::span<float> head(fast.inputs().data() + next, static_cast<size_t>(input.dim));
        for (float& value : head) value = static_cast<float>(source.draw(input.range));
        if (input.range == mixers::OpInput::Range::kUnitNorm) scale_to_unit_norm(head);
        std::ranges::copy(head, exact.inputs().begin() + static_cast<int64_t>(next));
      }
    }
    times.time([&] { fast.step(mixer.step); });
    exact.step(mixer.recurrent);
    window.add(squared_error(fast.out(), exact.out()));
    if (done % kWindow != 0 && done != options.tokens) continue;

    times.end_window();
    total.add(window);
    result.last_window_error = window.ratio();
    if (result.last_window_error > result.max_window_error ||
        std::isnan(result.last_window_error)) {
      result.max_window_error = result.last_window_error;  // a NaN stays: nothing is above it
    }
    window = {};
    const int64_t resident = resident_bytes();
    if (resident_before < 0) resident_before = resident;
    result.resident_growth_bytes =
        resident < 0 ? -1 : std::max(result.resident_growth_bytes, resident - resident_before);
    if (options.progress) options.progress(done, options.tokens);
  }
  result.tokens = options.tokens;
  result.norm_error = total.ratio();
  result.us_per_token_first = times.first_tenth();
  result.us_per_token_last = times.last_tenth();
  result.state_bytes = fast.state_bytes();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace tarn::runtime
