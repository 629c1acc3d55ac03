#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/rng.h"
#include "runtime/selftest.h"
#include "runtime/state.h"

namespace tarn::runtime {

namespace {

constexpr int64_t kPieceTokens = 1024;

/// Keeps a NaN: a form that gives one must not pass.
double larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }

FormDifference compare(const std::vector<float>& a, const std::vector<float>& b, size_t width) {
  FormDifference result;
  double largest_value = 0.0;
  double largest_delta = 0.0;
  double squared_value = 0.0;
  double squared_delta = 0.0;
  for (size_t row = 0; row < b.size(); row += width) {
    double row_value = 0.0;
    double row_delta = 0.0;
    for (size_t i = row; i < row + width; ++i) {
      const double value = b[i];
      const double delta = static_cast<double>(a[i]) - value;
      row_value = larger(row_value, std::fabs(value));
      row_delta = larger(row_delta, std::fabs(delta));
      squared_value += value * value;
      squared_delta += delta * delta;
    }
    if (row_delta != 0.0)
      result.max_row_error = larger(result.max_row_error, row_delta / row_value);
    largest_value = larger(largest_value, row_value);
    largest_delta = larger(largest_delta, row_delta);
  }
  if (largest_delta == 0.0) return result;
  result.max_error = largest_delta / largest_value;
  result.norm_error = std::sqrt(squared_delta / squared_value);
  return result;
}

struct FormOutput {
  std::vector<float> rows;
  double seconds = 0;
};

/// Head outputs of every row through one form, in pieces of `piece` inputs.
Result<FormOutput> run_form(const std::shared_ptr<const model::Model>& model, mixers::Form form,
                            int64_t piece, std::span<const int32_t> inputs, ThreadPool* pool,
                            const std::atomic<bool>* cancel) {
  const auto count = static_cast<int64_t>(inputs.size());
  const int64_t width = model->config().head.output_dim();
  FormOutput output;
  output.rows.resize(static_cast<size_t>(count * width));
  Arena arena;
  SequenceState state(model);
  StateBatch batch(*model);
  SequenceState* const states[] = {&state};
  const bool stateless = form == mixers::Form::kParallel;
  if (!stateless) {
    TARN_RETURN_IF_ERROR(state.reserve(count));
    batch.bind(states);
  }
  const auto start = std::chrono::steady_clock::now();
  for (int64_t done = 0; done < count;) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return Error{ErrorCode::kCancelled, "the comparison was stopped on request", {}};
    }
    const int64_t begin = 0;
    const int64_t length = std::min(piece, count - done);
    const model::TokenBatch tokens{{1, &begin, &length}, &done, inputs.data() + done};
    model->forward(tokens, stateless ? model::LayerStates{} : batch.layers(), form,
                   model::Outputs::kAllRows, output.rows.data() + done * width, pool, arena);
    done += length;
    if (!stateless) state.set_position(done);
  }
  output.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return output;
}

}  // namespace

double FormComparison::max_error() const {
  const double steps = larger(step_parallel.max_error, step_chunk.max_error);
  return chunk_parallel ? larger(chunk_parallel->max_error, steps) : steps;
}

double FormComparison::max_row_error() const {
  const double steps = larger(step_parallel.max_row_error, step_chunk.max_row_error);
  return chunk_parallel ? larger(chunk_parallel->max_row_error, steps) : steps;
}

Result<FormComparison> compare_forms(std::shared_ptr<const model::Model> model,
                                     std::span<const int32_t> tokens, ThreadPool* pool,
                                     const std::atomic<bool>* cancel) {
  const model::ModelConfig& config = model->config();
  TARN_RETURN_IF_ERROR(check_causal(*model));
  const auto count = static_cast<int64_t>(tokens.size());
  if (count < 1 || (config.max_tokens > 0 && count > config.max_tokens)) {
    return invalid_argument("got " + std::to_string(count) + " tokens to compare, wanted 1 to " +
                            std::to_string(config.max_tokens));
  }
  std::vector<int32_t> inputs{static_cast<int32_t>(config.start_token)};
  inputs.insert(inputs.end(), tokens.begin(), tokens.end() - 1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] >= 0 && inputs[i] < config.vocabulary) continue;
    return invalid_argument("input " + std::to_string(i) + " is " + std::to_string(inputs[i]) +
                            ", must be in [0, " + std::to_string(config.vocabulary) + ")");
  }
  using mixers::Form;
  // The parallel form last: it alone cannot be stopped on the way.
  TARN_ASSIGN(const FormOutput step, run_form(model, Form::kStep, 1, inputs, pool, cancel));
  TARN_ASSIGN(const FormOutput chunk,
              run_form(model, Form::kChunk, kPieceTokens, inputs, pool, cancel));
  TARN_ASSIGN(const FormOutput parallel,
              run_form(model, Form::kParallel, count, inputs, pool, cancel));
  const auto width = static_cast<size_t>(config.head.output_dim());
  FormComparison result;
  result.tokens = count;
  const bool has_parallel = std::ranges::any_of(config.layers, [](const model::LayerConfig& layer) {
    return layer.mixer->parallel != nullptr && layer.mixer->parallel != layer.mixer->chunk;
  });
  if (has_parallel || count > kPieceTokens) {
    result.chunk_parallel = compare(chunk.rows, parallel.rows, width);
  }
  result.step_parallel = compare(step.rows, parallel.rows, width);
  result.step_chunk = compare(step.rows, chunk.rows, width);
  result.parallel_seconds = parallel.seconds;
  result.chunk_seconds = chunk.seconds;
  result.step_seconds = step.seconds;
  return result;
}

Result<FormComparison> compare_forms(std::shared_ptr<const model::Model> model, int64_t count,
                                     uint64_t seed, ThreadPool* pool,
                                     const std::atomic<bool>* cancel) {
  const model::ModelConfig& config = model->config();
  constexpr int64_t kMostTokens = int64_t{1} << 24;
  const int64_t limit = config.max_tokens > 0 ? config.max_tokens : kMostTokens;
  if (count < 1 || count > limit) {
    return invalid_argument("got " + std::to_string(count) + " tokens to compare, wanted 1 to " +
                            std::to_string(limit));
  }
  Philox rng{seed, 0, 0};
  const auto classes = static_cast<uint32_t>(std::min(config.head.classes, config.vocabulary));
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next_below(classes));
  return compare_forms(std::move(model), tokens, pool, cancel);
}

}  // namespace tarn::runtime
