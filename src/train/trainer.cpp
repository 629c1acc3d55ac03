#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
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
          data::SequenceDataset training_data, data::SequenceDataset valid_data)
      : config_(config),
        options_(options),
        pool_(pool),
        training_data_(std::move(training_data)),
        valid_data_(std::move(valid_data)),
        learner_(config, pool),
        batches_(training_data_, config.training.batch_size, config.model.start_token,
                 config.training.seed),
        valid_batches_(valid_data_, config.training.batch_size, config.model.start_token, 0) {}

  Result<TrainResult> run();

 private:
  Status start();
  Status update();
  void log_window();
  void evaluate();
  Status save();
  bool stop_requested() const { return options_.stop != nullptr && options_.stop->load() != 0; }
  double seconds() const { return seconds_before_ + seconds_since(start_); }
  std::string checkpoint_path() const {
    return options_.out_directory + "/checkpoint/state.safetensors";
  }

  const TrainConfig& config_;
  const TrainOptions& options_;
  ThreadPool* pool_;
  data::SequenceDataset training_data_, valid_data_;
  Learner learner_;
  BatchSource batches_, valid_batches_;
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
  Json event =
      Json::Object{{"event", "start"},
                   {"update", progress_.update},
                   {"updates", config_.training.updates},
                   {"parameters", learner_.parameters().parameter_count},
                   {"training_sequences", training_data_.count},
                   {"valid_sequences", valid_data_.count},
                   {"tokens_per_update", config_.training.batch_size * training_data_.length},
                   {"threads", pool_->num_threads()},
                   {"precision", dtype_name(config_.training.precision)}};
  reporter_->event(event);
  reporter_->note(fmt::format(
      "{} at update {} of {}: {} parameters, {} training sequences of {} tokens, {} threads, {}",
      has_checkpoint ? "resumed" : "started", progress_.update, config_.training.updates,
      learner_.parameters().parameter_count, training_data_.count, training_data_.length,
      pool_->num_threads(), dtype_name(config_.training.precision)));
  return {};
}

Status Trainer::update() {
  const Batch& batch = batches_.training_batch(progress_.update);
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
  window_.tokens += batch.count * batch.length;
  progress_.tokens_seen += batch.count * batch.length;
  ++progress_.update;
  return {};
}

void Trainer::log_window() {
  const TrainingConfig& training = config_.training;
  const double elapsed = seconds_since(window_.start);
  const double rate = static_cast<double>(window_.tokens) / std::max(1e-9, elapsed);
  const double per_update =
      static_cast<double>(training.batch_size * training_data_.length) / std::max(1e-9, rate);
  result_.train_bits = window_.bits();
  reporter_->event(
      Json::Object{{"event", "train"},
                   {"update", progress_.update},
                   {"tokens_seen", progress_.tokens_seen},
                   {"bits_per_dim", window_.bits()},
                   {"gradient_norm", window_.gradient_norm},
                   {"learning_rate",
                    training.optimiser.learning_rate *
                        schedule_factor(training.schedule, progress_.update - 1, training.updates)},
                   {"tokens_per_second", std::round(rate)},
                   {"seconds", std::round(seconds() * 10.0) / 10.0}});
  reporter_->progress(progress_.update, training.updates,
                      bits_text(config_.model.modality, window_.bits()), rate,
                      per_update * static_cast<double>(training.updates - progress_.update));
  window_ = Window();
}

void Trainer::evaluate() {
  const Clock::time_point start = Clock::now();
  int64_t limit = valid_data_.count;
  if (config_.training.evaluate_limit > 0) limit = std::min(limit, config_.training.evaluate_limit);
  if (limit == 0) return;
  learner_.swap_average();
  double nats = 0.0;
  int64_t counted = 0;
  for (int64_t first = 0; first < limit && !stop_requested();
       first += config_.training.batch_size) {
    const Batch& batch =
        valid_batches_.plain_batch(first, std::min(config_.training.batch_size, limit - first));
    nats += learner_.evaluate(batch);
    counted += batch.counted;
  }
  learner_.swap_average();
  if (stop_requested()) return;
  result_.valid_bits = nats / (static_cast<double>(counted) * std::numbers::ln2);
  reporter_->event(Json::Object{{"event", "evaluate"},
                                {"update", progress_.update},
                                {"split", "valid"},
                                {"sequences", limit},
                                {"bits_per_dim", result_.valid_bits},
                                {"evaluate_seconds", std::round(seconds_since(start) * 10) / 10}});
  reporter_->note(fmt::format("update {}: valid {} over {} sequences", progress_.update,
                              bits_text(config_.model.modality, result_.valid_bits), limit));
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
Result<data::SequenceDataset> load_training_data(const TrainConfig& config,
                                                 const std::string& directory) {
  for (const model::LayerConfig& layer : config.model.layers) {
    if (!mixers::has_gradient(*layer.mixer)) {
      return Error{
          ErrorCode::kUnsupported,
          fmt::format("mixer \"{}\" cannot be trained: it has no gradient", layer.mixer->name),
          "model.layers"};
    }
  }
  TARN_ASSIGN(data::SequenceDataset dataset,
              data::load(config.data, directory, data::Split::kTrain, config.training.seed));
  if (config.training.batch_size > dataset.count) {
    return invalid_argument(fmt::format("is {}, but the training split has {} sequences",
                                        config.training.batch_size, dataset.count),
                            "training.batch_size");
  }
  return dataset;
}

}  // namespace

Result<TrainResult> train(const TrainConfig& config, const TrainOptions& options,
                          ThreadPool* pool) {
  TARN_ASSIGN(data::SequenceDataset training_data,
              load_training_data(config, options.data_directory));
  TARN_ASSIGN(
      data::SequenceDataset valid_data,
      data::load(config.data, options.data_directory, data::Split::kValid, config.training.seed));
  return Trainer(config, options, pool, std::move(training_data), std::move(valid_data)).run();
}

Result<StepBenchResult> profile_training(const TrainConfig& config,
                                         const std::string& data_directory,
                                         const StepBenchOptions& options, ThreadPool* pool) {
  TARN_ASSIGN(const data::SequenceDataset dataset, load_training_data(config, data_directory));
  BatchSource batches(dataset, config.training.batch_size, config.model.start_token,
                      config.training.seed);
  return bench_steps(
      config, [&](int64_t update) -> const Batch& { return batches.training_batch(update); },
      options, pool);
}

}  // namespace tarn::train
