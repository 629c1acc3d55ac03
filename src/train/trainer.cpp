#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numbers>
#include <optional>

#include "base/file.h"
#include "train/batches.h"
#include "train/checkpoint.h"
#include "train/learner.h"
#include "train/reporter.h"

namespace tarn::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Sums since the last log line.
struct Window {
  int64_t updates = 0;
  double nats = 0.0;
  int64_t counted = 0;
  int64_t tokens = 0;
  double gradient_norm = 0.0;  ///< largest
  Clock::time_point start = Clock::now();
  double bits() const {
    return counted == 0 ? 0.0 : nats / (static_cast<double>(counted) * std::numbers::ln2);
  }
};

/// "1.2345 bits/dim", by what a token is. The log has one key for all.
std::string bits_text(model::Modality modality, double bits) {
  const char* token = modality == model::Modality::kImage   ? "dim"
                      : modality == model::Modality::kBytes ? "byte"
                                                            : "token";
  return fmt::format("{:.4f} bits/{}", bits, token);
}

class Trainer {
 public:
  Trainer(const TrainConfig& config, const TrainOptions& options, ThreadPool* pool,
          std::unique_ptr<BatchSource> batches, std::unique_ptr<BatchSource> valid_batches)
      : config_(config),
        options_(options),
        pool_(pool),
        learner_(config, pool),
        batches_(std::move(batches)),
        valid_batches_(std::move(valid_batches)) {}

  Result<TrainResult> run();

 private:
  Status start();
  Status update();
  void log_window();
  void evaluate();
  Status save();
  bool stop_requested() const { return options_.stop != nullptr && options_.stop->load() != 0; }
  double rows_per_update() const {
    return static_cast<double>(config_.training.batch_size) * batches_->rows_per_sequence();
  }
  double seconds() const { return seconds_before_ + seconds_since(start_); }
  std::string checkpoint_path() const {
    return options_.out_directory + "/checkpoint/state.safetensors";
  }

  const TrainConfig& config_;
  const TrainOptions& options_;
  ThreadPool* pool_;
  Learner learner_;
  std::unique_ptr<BatchSource> batches_, valid_batches_;
  std::optional<Reporter> reporter_;
  Checkpoint progress_;
  Window window_;
  TrainResult result_;
  int bad_updates_ = 0;  ///< in a row
  double seconds_before_ = 0.0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_save_ = Clock::now();
};

Status Trainer::start() {
  TARN_RETURN_IF_ERROR(make_directories(options_.out_directory));
  const bool has_checkpoint = path_exists(checkpoint_path());
  if (has_checkpoint && !options_.resume) {
    return invalid_argument(
        "holds a training run already; pass --resume to continue it, or "
        "another --out",
        options_.out_directory);
  }
  if (has_checkpoint) {
    TARN_ASSIGN(progress_, load_checkpoint(checkpoint_path(), config_, learner_.parameters(),
                                           learner_.optimiser(), learner_.average()));
    seconds_before_ = progress_.seconds;
  }
  TARN_ASSIGN(Reporter reporter, Reporter::open(options_.out_directory + "/log.jsonl",
                                                progress_.log_bytes, options_.json));
  reporter_.emplace(std::move(reporter));
  TARN_RETURN_IF_ERROR(write_file_atomic(options_.out_directory + "/training.json",
                                         to_json(config_).dump(2) + "\n"));
  Json event = Json::Object{{"event", "start"},
                            {"update", progress_.update},
                            {"updates", config_.training.updates},
                            {"parameters", learner_.parameters().parameter_count},
                            {"training_sequences", batches_->sequences()},
                            {"valid_sequences", valid_batches_->sequences()},
                            {"tokens_per_update", std::lround(rows_per_update())},
                            {"threads", pool_->num_threads()},
                            {"precision", dtype_name(config_.training.precision)}};
  reporter_->event(event);
  reporter_->note(fmt::format(
      "{} at update {} of {}: {} parameters, {} training sequences of {} tokens, {} threads, {}",
      has_checkpoint ? "resumed" : "started", progress_.update, config_.training.updates,
      learner_.parameters().parameter_count, batches_->sequences(),
      std::lround(batches_->rows_per_sequence()), pool_->num_threads(),
      dtype_name(config_.training.precision)));
  return {};
}

Status Trainer::update() {
  const Batch& batch = batches_->training_batch(progress_.update);
  const Learner::Outcome outcome = learner_.learn(batch, progress_.update);
  if (outcome.applied) {
    window_.nats += outcome.nats;
    window_.counted += batch.counted;
    window_.gradient_norm = std::max(window_.gradient_norm, outcome.gradient_norm);
    bad_updates_ = 0;
  } else {
    reporter_->event(Json::Object{{"event", "skipped"}, {"update", progress_.update + 1}});
    reporter_->note(
        fmt::format("update {}: loss or gradient is not finite; skipped", progress_.update + 1));
    if (++bad_updates_ == 10) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("loss or gradient was not finite in 10 updates in a row, up to "
                               "update {}; lower training.optimiser.learning_rate",
                               progress_.update + 1),
                   options_.out_directory};
    }
  }
  ++window_.updates;
  window_.tokens += batch.rows();
  progress_.tokens_seen += batch.rows();
  ++progress_.update;
  return {};
}

void Trainer::log_window() {
  const TrainingConfig& training = config_.training;
  const double elapsed = seconds_since(window_.start);
  const double rate = static_cast<double>(window_.tokens) / std::max(1e-9, elapsed);
  const double per_update = elapsed / static_cast<double>(window_.updates);
  result_.train_bits = window_.bits();
  reporter_->event(Json::Object{
      {"event", "train"},
      {"update", progress_.update},
      {"tokens_seen", progress_.tokens_seen},
      {"bits_per_dim", window_.bits()},
      {"gradient_norm", window_.gradient_norm},
      {"learning_rate",
       training.optimiser.learning_rate *
           schedule_factor(training.schedule, progress_.update - 1, training.updates)},
      {"tokens_per_second", std::round(rate)},
      {"epoch_seconds", per_update * static_cast<double>(batches_->batches_per_epoch())},
      {"seconds", std::round(seconds() * 10.0) / 10.0}});
  reporter_->progress(progress_.update, training.updates,
                      bits_text(config_.model.modality, window_.bits()), rate,
                      per_update * static_cast<double>(training.updates - progress_.update));
  window_ = Window();
}

void Trainer::evaluate() {
  const Clock::time_point start = Clock::now();
  int64_t limit = valid_batches_->sequences();
  if (config_.training.evaluate_limit > 0) limit = std::min(limit, config_.training.evaluate_limit);
  if (limit == 0) return;
  learner_.swap_average();
  Evaluation total;
  int64_t counted = 0;
  for (int64_t first = 0; first < limit && !stop_requested();
       first += config_.training.batch_size) {
    const Batch& batch =
        valid_batches_->plain_batch(first, std::min(config_.training.batch_size, limit - first));
    const Evaluation evaluation = learner_.evaluate(batch);
    total.nats += evaluation.nats;
    total.edits += evaluation.edits;
    counted += batch.counted;
  }
  learner_.swap_average();
  if (stop_requested()) return;
  result_.valid_bits = total.nats / (static_cast<double>(counted) * std::numbers::ln2);
  Json event = Json::Object{{"event", "evaluate"},
                            {"update", progress_.update},
                            {"split", "valid"},
                            {"sequences", limit},
                            {"bits_per_dim", result_.valid_bits}};
  std::string errors;
  if (config_.model.head.kind == model::HeadKind::kCtc) {
    const char* label = data::label_name(config_.data);
    event.set(fmt::format("valid_{}_error_rate", label), total.edits.rate());
    errors = fmt::format(", {:.2f}% {} errors", 100.0 * total.edits.rate(), label);
  }
  event.set("evaluate_seconds", std::round(seconds_since(start) * 10) / 10);
  reporter_->event(event);
  reporter_->note(fmt::format("update {}: valid {}{} over {} sequences", progress_.update,
                              bits_text(config_.model.modality, result_.valid_bits), errors,
                              limit));
  window_.start += Clock::now() - start;
}

Status Trainer::save() {
  progress_.log_bytes = reporter_->log_bytes();
  progress_.seconds = seconds();
  TARN_RETURN_IF_ERROR(save_checkpoint(checkpoint_path(), progress_, config_, learner_.parameters(),
                                       learner_.optimiser(), learner_.average()));
  TARN_RETURN_IF_ERROR(export_model(options_.out_directory, config_, learner_.parameters(),
                                    learner_.exported(), progress_));
  last_save_ = Clock::now();
  return {};
}

Result<TrainResult> Trainer::run() {
  TARN_RETURN_IF_ERROR(start());
  const TrainingConfig& training = config_.training;
  result_.valid_bits = -1.0;
  window_ = Window();
  bool is_evaluated = false;
  while (progress_.update < training.updates && !stop_requested()) {
    TARN_RETURN_IF_ERROR(update());
    const bool is_last = progress_.update == training.updates;
    if (progress_.update % training.log_every == 0 || is_last) log_window();
    is_evaluated = training.evaluate_every > 0 && progress_.update % training.evaluate_every == 0;
    if (is_evaluated && !is_last) evaluate();
    const double interval = training.checkpoint_every_seconds;
    if (interval > 0.0 && seconds_since(last_save_) >= interval) TARN_RETURN_IF_ERROR(save());
  }
  result_.stopped = progress_.update < training.updates;
  if (!result_.stopped) evaluate();
  TARN_RETURN_IF_ERROR(save());
  result_.updates = progress_.update;
  result_.seconds = progress_.seconds;
  // After the checkpoint, which does not cover it: only a log whose run is over ends with it.
  reporter_->event(Json::Object{
      {"event", "end"},
      {"update", progress_.update},
      {"stopped", result_.stopped},
      {"train_bits_per_dim", result_.train_bits},
      {"valid_bits_per_dim", result_.valid_bits < 0.0 ? Json() : Json(result_.valid_bits)},
      {"seconds", std::round(result_.seconds * 10.0) / 10.0}});
  reporter_->note(
      result_.stopped
          ? fmt::format("stopped after update {}; --resume continues there", progress_.update)
          : fmt::format("done: {} updates in {}, model in {}", progress_.update,
                        duration(progress_.seconds), options_.out_directory));
  return result_;
}

/// Every mechanism can be trained, and the training split has a batch.
Result<std::unique_ptr<BatchSource>> open_training_batches(const TrainConfig& config,
                                                           const std::string& directory) {
  for (const model::LayerConfig& layer : config.model.layers) {
    if (!mixers::has_gradient(*layer.mixer)) {
      return Error{
          ErrorCode::kUnsupported,
          fmt::format("mixer \"{}\" cannot be trained: it has no gradient", layer.mixer->name),
          "model.layers"};
    }
  }
  TARN_ASSIGN(auto batches, open_batches(config, directory, data::Split::kTrain));
  if (config.training.batch_size > batches->sequences()) {
    return invalid_argument(fmt::format("is {}, but the training split has {} sequences",
                                        config.training.batch_size, batches->sequences()),
                            "training.batch_size");
  }
  return batches;
}

/// The names of the data's labels become those of the model's classes.
Status take_symbols(const BatchSource& batches, model::HeadConfig& head) {
  std::vector<std::string> symbols = batches.symbols();
  if (!head.symbols.empty() && head.symbols != symbols) {
    return invalid_argument("are not the names of the data's labels", "model.head.symbols");
  }
  head.symbols = std::move(symbols);
  return {};
}

}  // namespace

Result<TrainResult> train(const TrainConfig& config, const TrainOptions& options,
                          ThreadPool* pool) {
  TrainConfig complete = config;
  TARN_ASSIGN(auto batches, open_training_batches(complete, options.data_directory));
  TARN_RETURN_IF_ERROR(take_symbols(*batches, complete.model.head));
  TARN_ASSIGN(auto valid_batches,
              open_batches(complete, options.data_directory, data::Split::kValid));
  return Trainer(complete, options, pool, std::move(batches), std::move(valid_batches)).run();
}

Result<StepBenchResult> profile_training(const TrainConfig& config,
                                         const std::string& data_directory,
                                         const StepBenchOptions& options, ThreadPool* pool) {
  TARN_ASSIGN(const auto batches, open_training_batches(config, data_directory));
  return bench_steps(
      config, [&](int64_t update) -> const Batch& { return batches->training_batch(update); },
      options, pool);
}

}  // namespace tarn::train
