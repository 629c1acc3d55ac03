#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/result.h"
#include "data/dataset.h"
#include "model/config.h"

namespace tarn::train {

enum class OptimiserKind : uint8_t { kAdamW, kRAdam, kMuon };
enum class ScheduleKind : uint8_t { kConstant, kStep, kCosine };

struct OptimiserConfig {
  OptimiserKind kind = OptimiserKind::kAdamW;
  double learning_rate = 1e-3;  ///< kMuon: of all but the layers' matrices
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.01;          ///< decoupled; only parameters whose table row wants it
  double matrix_learning_rate = 0.02;  ///< kMuon
  double momentum = 0.95;              ///< kMuon
};

/// Learning rate as a factor of the optimiser's: linear warm-up, then the kind's shape. With a
/// cool-down the last updates go linearly from there to zero; because `updates` may change when a
/// run is resumed, a constant schedule with a cool-down can be brought to its end at any time.
struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warm_up = 0;       ///< updates
  int64_t cool_down = 0;     ///< updates; kConstant and kStep
  int64_t step_updates = 0;  ///< kStep: the factor multiplies every that many updates
  double step_factor = 0.1;
  double final_factor = 0.0;  ///< kCosine: reached at the last update
};

/// Parts of the frames that training hides; for data that is frames.
struct AugmentConfig {
  int64_t time_masks = 0;
  double time_share = 0.0;  ///< longest run of frames, as a share of the utterance
  int64_t feature_masks = 0;
  int64_t feature_width = 0;  ///< most channels of a mask
  bool operator==(const AugmentConfig&) const = default;
};

struct TrainingConfig {
  uint64_t seed = 1;
  int64_t batch_size = 1;
  int64_t updates = 1;
  DType precision = DType::kF32;  ///< kBF16: matrix products in bf16, everything else in f32
  OptimiserConfig optimiser;
  ScheduleConfig schedule;
  AugmentConfig augment;
  double gradient_clip = 1.0;  ///< largest global norm; 0: none
  /// Largest |d nats / d output| of one head output of one token; 0: none. The logistic mixture's
  /// grows like 1/s for a sharp component that misses, and one such pixel would drown a batch.
  double output_gradient_limit = 0.0;
  double average_decay = 0.0;  ///< > 0: evaluate and export a running mean of the weights
  int64_t evaluate_every = 0;  ///< updates; 0: only at the end
  int64_t evaluate_limit = 0;  ///< sequences; 0: the whole valid split
  double checkpoint_every_seconds = 300.0;
  int64_t log_every = 10;
  DType export_dtype = DType::kF32;
};

/// A whole training config: {"model": …, "data": …, "training": …}.
struct TrainConfig {
  model::ModelConfig model;
  data::DataSpec data;
  TrainingConfig training;
};

/// Reads and validates a config; also checks that model and data fit each other.
Result<TrainConfig> parse_train_config(const Json& json, const std::string& where);
/// Every key of "training", those of its objects as "optimiser.kind", as the parser asks for them.
std::vector<JsonKey> training_keys();
/// The document that parses to the same config.
Json to_json(const TrainConfig& config);

/// Factor of the learning rate at update `update` (from 0) of `updates`.
double schedule_factor(const ScheduleConfig& config, int64_t update, int64_t updates);

}  // namespace tarn::train
