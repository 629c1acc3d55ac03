#include "runtime/generate.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/checked.h"
#include "mixers/layer.h"
#include "runtime/prefix_runner.h"
#include "runtime/prefix_timer.h"
#include "runtime/process_memory.h"
#include "runtime/session.h"
#include "runtime/state.h"
#include "runtime/timing.h"

namespace tarn::runtime {

namespace {

constexpr size_t kTimedSteps = 32;

Error cancelled() { return {ErrorCode::kCancelled, "generation was stopped on request", {}}; }

bool is_cancelled(const GenerateOptions& options) {
  return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed);
}

int64_t shortest_prompt(const GenerateOptions& options) {
  size_t shortest = options.prompts.empty() ? 0 : options.prompts.front().size();
  for (const auto& prompt : options.prompts) shortest = std::min(shortest, prompt.size());
  return static_cast<int64_t>(shortest);
}

/// Times of the steps of one batch, per sequence in the step.
class StepTimes {
 public:
  explicit StepTimes(bool skip_first) : skip_first_(skip_first) {}
  void add(double seconds, int64_t sequences) {
    if (std::exchange(skip_first_, false)) return;
    const double milliseconds = 1e3 * seconds / static_cast<double>(sequences);
    if (first_.size() < kTimedSteps) first_.push_back(milliseconds);
    if (last_.size() < kTimedSteps) {
      last_.push_back(milliseconds);
    } else {
      last_[next_++ % kTimedSteps] = milliseconds;
    }
  }
  double first() const { return median(first_); }
  double last() const { return median(last_); }

 private:
  bool skip_first_;
  size_t next_ = 0;
  std::vector<double> first_, last_;
};

Error out_of_range(const char* option, int64_t value, const std::string& wanted) {
  return invalid_argument(std::string(option) + " is " + std::to_string(value) + ", must be " +
                          wanted);
}

Status check_prompts(const model::ModelConfig& config, const GenerateOptions& options) {
  if (options.prompts.size() > 1 && static_cast<int64_t>(options.prompts.size()) != options.count) {
    return invalid_argument("there are " + std::to_string(options.prompts.size()) +
                            " prompts for " + std::to_string(options.count) +
                            " sequences, there must be none, one or one for each");
  }
  for (size_t i = 0; i < options.prompts.size(); ++i) {
    const std::string where = "prompt " + std::to_string(i);
    const std::vector<int32_t>& prompt = options.prompts[i];
    if (static_cast<int64_t>(prompt.size()) > options.length) {
      return invalid_argument("has " + std::to_string(prompt.size()) +
                                  " tokens, the sequence is to have " +
                                  std::to_string(options.length),
                              where);
    }
    for (size_t t = 0; t < prompt.size(); ++t) {
      if (prompt[t] >= 0 && prompt[t] < config.vocabulary) continue;
      return invalid_argument("token " + std::to_string(t) + " is " + std::to_string(prompt[t]) +
                                  ", must be in [0, " + std::to_string(config.vocabulary) + ")",
                              where);
    }
  }
  return {};
}

/// Floats of activations for each row that the decoder has in hand: its own vectors, those that layers
/// hand on, and what is widest of a layer, its mixer's values or the hidden layer.
int64_t activations_per_row(const model::ModelConfig& config) {
  int64_t widest = 0;
  for (const model::LayerConfig& layer : config.layers) {
    const int64_t width = mixers::layer_scratch_columns(*layer.mixer, *layer.mixer_config);
    widest = std::max({widest, width, layer.mlp_hidden_dim});
  }
  return 3 * config.model_dim + config.handed_on_width() + widest;
}

/// Bytes of activations and head outputs of the largest pass; nothing when that overflows. In the
/// parallel mode the decoder takes kDecoderRows rows, or one sequence, at once on every thread.
std::optional<int64_t> activation_bytes(const model::Model& model, const GenerateOptions& options,
                                        int64_t threads) {
  constexpr int64_t kDecoderRows = 1024;
  const bool recurrent = options.mode == GenerateMode::kRecurrent;
  size_t prompt = 0;
  for (const auto& tokens : options.prompts) prompt = std::max(prompt, tokens.size());
  const int64_t piece = std::min(static_cast<int64_t>(prompt) + 1, Generator::kPieceTokens);
  const auto rows = checked_mul(options.batch, recurrent ? piece : options.length);
  const auto most = recurrent ? std::optional<int64_t>(Generator::kPassRows)
                              : checked_mul(threads, std::max(kDecoderRows, options.length));
  if (!rows || !most) return std::nullopt;
  const auto activations =
      checked_mul(std::min(*rows, *most), 4 * activations_per_row(model.config()));
  // Recurrent: those of the pass, and those that each session keeps.
  const auto outputs = checked_mul(
      options.batch, (recurrent ? int64_t{8} : int64_t{4}) * model.config().head.output_dim());
  return activations && outputs ? checked_add(*activations, *outputs) : std::nullopt;
}

Status check_memory(const model::Model& model, const GenerateOptions& options, int64_t threads) {
  const int64_t limit =
      options.memory_limit_bytes > 0 ? options.memory_limit_bytes : machine_memory_bytes();
  const bool recurrent = options.mode == GenerateMode::kRecurrent;
  const int64_t fixed = recurrent ? SequenceState::used_bytes_at(model, 0) : 0;
  const int64_t per_token =
      (recurrent ? SequenceState::used_bytes_at(model, 1) - fixed : 0) + 4;  // and its history
  std::optional<int64_t> states = checked_mul(options.length, per_token);
  if (states) states = checked_add(*states, fixed);
  if (states) states = checked_mul(*states, options.batch);
  std::optional<int64_t> tokens = checked_mul(options.length, int64_t{4});
  if (tokens) tokens = checked_mul(*tokens, options.count);
  const std::optional<int64_t> activations = activation_bytes(model, options, threads);
  std::optional<int64_t> total;
  if (states && tokens && activations) total = checked_add(*states, *tokens);
  if (total) total = checked_add(*total, *activations);
  if (total && *total <= limit) return {};
  return Error{ErrorCode::kResource,
               std::to_string(options.count) + " sequences of " + std::to_string(options.length) +
                   " tokens in batches of " + std::to_string(options.batch) + " need " +
                   (total ? std::to_string(*total) : std::string("more than 2^63")) +
                   " bytes of states, activations and tokens, the limit is " +
                   std::to_string(limit),
               {}};
}

/// Fills in defaults and checks everything.
Result<GenerateOptions> resolve(const model::Model& model, GenerateOptions options,
                                int64_t threads) {
  const model::ModelConfig& config = model.config();
  if (options.count < 1) return out_of_range("count", options.count, "at least 1");
  if (options.batch < 1) return out_of_range("batch", options.batch, "at least 1");
  if (options.length == 0) options.length = config.max_tokens;
  if (options.length < 1) {
    return out_of_range(
        "length", options.length,
        config.max_tokens > 0 ? "at least 1" : "at least 1 (the model has no max_tokens)");
  }
  if (config.max_tokens > 0 && options.length > config.max_tokens) {
    return out_of_range("length", options.length,
                        "at most the model's max_tokens, " + std::to_string(config.max_tokens));
  }
  options.batch = std::min(options.batch, options.count);
  TARN_RETURN_IF_ERROR(validate(options.sampler));
  TARN_RETURN_IF_ERROR(check_prompts(config, options));
  for (const int64_t position : options.positions_to_time) {
    if (position < 1 || position > options.length) {
      return out_of_range("a position to time", position,
                          "in [1, " + std::to_string(options.length) + "]");
    }
  }
  TARN_RETURN_IF_ERROR(check_memory(model, options, threads));
  return options;
}

/// Counts tokens for the caller's progress display.
class Progress {
 public:
  explicit Progress(const GenerateOptions& options)
      : options_(options), total_(options.count * options.length) {}
  void add(int64_t tokens) {
    done_ += tokens;
    if (options_.progress) options_.progress(done_, total_);
  }

 private:
  const GenerateOptions& options_;
  int64_t done_ = 0;
  int64_t total_;
};

Result<GenerateResult> run_recurrent(const std::shared_ptr<const model::Model>& model,
                                     const GenerateOptions& options, ThreadPool* pool) {
  GenerateResult result;
  result.tokens.resize(static_cast<size_t>(options.count));
  const bool prompted = std::any_of(options.prompts.begin(), options.prompts.end(),
                                    [](const auto& prompt) { return !prompt.empty(); });
  StepTimes times(/*skip_first=*/prompted);
  Progress progress(options);
  Generator generator(model, pool);
  std::vector<Session> sessions;
  std::vector<Session*> active;
  for (int64_t i = 0; i < options.batch; ++i) {
    sessions.emplace_back(model, Session::Options{});
    TARN_RETURN_IF_ERROR(sessions.back().reserve(options.length));
  }
  const Clock::time_point start = Clock::now();
  for (int64_t begin = 0; begin < options.count; begin += options.batch) {
    const int64_t size = std::min(options.batch, options.count - begin);
    active.clear();
    for (int64_t i = 0; i < size; ++i) {
      Session& session = sessions[static_cast<size_t>(i)];
      session.reset();
      session.rng() = {options.seed, static_cast<uint64_t>(begin + i), 0};
      TARN_RETURN_IF_ERROR(session.append(options.prompt_of(begin + i)));
      progress.add(session.token_count());
      active.push_back(&session);
    }
    while (true) {
      std::erase_if(active, [&](Session* s) { return s->token_count() >= options.length; });
      if (active.empty()) break;
      if (is_cancelled(options)) return cancelled();
      const Clock::time_point step_start = Clock::now();
      TARN_RETURN_IF_ERROR(generator.step(active, options.sampler));
      const auto drawn = static_cast<int64_t>(active.size());
      if (begin == 0) times.add(seconds_since(step_start), drawn);
      result.generated_tokens += drawn;
      ++result.steps;
      progress.add(drawn);
    }
    for (int64_t i = 0; i < size; ++i) {
      const auto tokens = sessions[static_cast<size_t>(i)].tokens();
      result.tokens[static_cast<size_t>(begin + i)].assign(tokens.begin(), tokens.end());
    }
  }
  result.seconds = seconds_since(start);
  result.ms_per_token_first = times.first();
  result.ms_per_token_last = times.last();
  result.state_bytes_per_sequence = SequenceState::used_bytes_at(*model, options.length);
  return result;
}

Result<GenerateResult> run_parallel(const model::Model& model, const GenerateOptions& options,
                                    ThreadPool* pool) {
  GenerateResult result;
  result.tokens.resize(static_cast<size_t>(options.count));
  StepTimes times(/*skip_first=*/false);
  Progress progress(options);
  PrefixRunner runner(model, options.sampler, pool, options.cancel);
  std::vector<PrefixRunner::Sequence> active;
  const Clock::time_point start = Clock::now();
  for (int64_t begin = 0; begin < options.count; begin += options.batch) {
    const int64_t size = std::min(options.batch, options.count - begin);
    active.clear();
    for (int64_t i = begin; i < begin + size; ++i) {
      std::vector<int32_t>& tokens = result.tokens[static_cast<size_t>(i)];
      const auto prompt = options.prompt_of(i);
      tokens.reserve(static_cast<size_t>(options.length));
      tokens.assign(prompt.begin(), prompt.end());
      progress.add(static_cast<int64_t>(tokens.size()));
      active.push_back({&tokens, {options.seed, static_cast<uint64_t>(i), 0}});
    }
    while (true) {
      std::erase_if(active, [&](const PrefixRunner::Sequence& s) {
        return static_cast<int64_t>(s.tokens->size()) >= options.length;
      });
      if (active.empty()) break;
      if (is_cancelled(options)) return cancelled();
      const Clock::time_point step_start = Clock::now();
      TARN_RETURN_IF_ERROR(runner.step(active));
      const auto drawn = static_cast<int64_t>(active.size());
      if (begin == 0) times.add(seconds_since(step_start), drawn);
      result.generated_tokens += drawn;
      ++result.steps;
      progress.add(drawn);
    }
  }
  result.seconds = seconds_since(start);
  result.ms_per_token_first = times.first();
  result.ms_per_token_last = times.last();
  return result;
}

/// Seconds at `prefix` on the straight lines through `timed`, constant outside.
double interpolate(std::span<const GenerateResult::TimedPosition> timed, int64_t prefix) {
  const auto above = std::lower_bound(
      timed.begin(), timed.end(), prefix,
      [](const GenerateResult::TimedPosition& t, int64_t p) { return t.prefix < p; });
  if (above == timed.end()) return timed.back().seconds;
  if (above == timed.begin()) return above->seconds;
  const auto below = above - 1;
  const double fraction = static_cast<double>(prefix - below->prefix) /
                          static_cast<double>(above->prefix - below->prefix);
  return below->seconds + fraction * (above->seconds - below->seconds);
}

Result<GenerateResult> estimate(const GenerateOptions& options, PrefixTimer& timer) {
  GenerateResult result;
  result.integrated = true;
  std::vector<int64_t> prefixes = options.positions_to_time;
  std::sort(prefixes.begin(), prefixes.end());
  prefixes.erase(std::unique(prefixes.begin(), prefixes.end()), prefixes.end());
  TARN_RETURN_IF_ERROR(timer.warm_up(prefixes.back()));
  for (size_t i = 0; i < prefixes.size(); ++i) {
    if (is_cancelled(options)) return cancelled();
    TARN_ASSIGN(const double seconds, timer.time(prefixes[i]));
    result.timed.push_back({prefixes[i], seconds});
    if (options.progress) {
      options.progress(static_cast<int64_t>(i + 1), static_cast<int64_t>(prefixes.size()));
    }
  }
  const int64_t prompt = shortest_prompt(options);
  double batch_seconds = 0.0;
  for (int64_t prefix = prompt + 1; prefix <= options.length; ++prefix) {
    batch_seconds += interpolate(result.timed, prefix);
  }
  const auto batch = static_cast<double>(options.batch);
  result.seconds = batch_seconds * static_cast<double>(options.count) / batch;
  result.generated_tokens = options.count * (options.length - prompt);
  result.steps = (options.count + options.batch - 1) / options.batch * (options.length - prompt);
  result.ms_per_token_first = 1e3 * result.timed.front().seconds / batch;
  result.ms_per_token_last = 1e3 * result.timed.back().seconds / batch;
  return result;
}

}  // namespace

Status check_generate(const model::Model& model, const GenerateOptions& options, int64_t threads) {
  TARN_RETURN_IF_ERROR(check_causal(model));
  const Result<GenerateOptions> resolved = resolve(model, options, threads);
  return resolved.ok() ? Status{} : Status{resolved.error()};
}

Result<GenerateResult> generate(std::shared_ptr<const model::Model> model,
                                const GenerateOptions& options, ThreadPool* pool) {
  TARN_RETURN_IF_ERROR(check_causal(*model));
  TARN_ASSIGN(const GenerateOptions resolved,
              resolve(*model, options, pool != nullptr ? pool->num_threads() : 1));
  const bool recurrent = resolved.mode == GenerateMode::kRecurrent;
  if (resolved.positions_to_time.empty()) {
    return recurrent ? run_recurrent(model, resolved, pool) : run_parallel(*model, resolved, pool);
  }
  if (!recurrent) {
    return estimate(resolved, *parallel_timer(*model, resolved, pool));
  }
  TARN_ASSIGN(GenerateResult result, estimate(resolved, *recurrent_timer(model, resolved, pool)));
  result.state_bytes_per_sequence = SequenceState::used_bytes_at(*model, resolved.length);
  return result;
}

}  // namespace tarn::runtime
