#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/result.h"
#include "base/threads.h"
#include "kernels/gemm.h"
#include "mixers/layer.h"
#include "model/config.h"

namespace tarn {
class InputFile;
}

namespace tarn::model {

/// A batch of rows for one pass: sequences packed one after another.
struct TokenBatch {
  kernels::Sequences sequences;        ///< packed: begin[0] = 0, no gaps
  const int64_t* positions = nullptr;  ///< tokens each sequence has seen before
  const int32_t* tokens = nullptr;     ///< input symbol of every row
  /// Over frames instead: [rows, input_width()], each row its frames one after another.
  const float* frames = nullptr;
};

/// Which rows' head outputs are wanted.
enum class Outputs : uint8_t { kAllRows, kLastRowOfEach, kNone };

/// Pointers to the state of every layer, in the order of Model::state_specs().
/// Empty: whole sequences, nothing kept.
using LayerStates = std::span<const mixers::StateRefs<float>>;

/// A loaded model, weights packed. Immutable after construction; threads: safe to share.
class Model {
 public:
  struct Options {
    kernels::PackOptions pack;  ///< of every matrix product
  };

  /// Reads a model folder (config.json, model.safetensors). The tensor set and every shape must be
  /// exactly what the config's parameter table says; values must be finite.
  static Result<std::shared_ptr<const Model>> load(const std::string& folder, Options options);
  static Result<std::shared_ptr<const Model>> load(const std::string& folder) {
    return load(folder, Options{});
  }
  /// The same from the two files' contents; `config_path` names the first in messages.
  static Result<std::shared_ptr<const Model>> read(const std::string& config,
                                                   const std::string& config_path,
                                                   InputFile weights, Options options);
  /// A model with the initial weights of its config, for tests and benchmarks.
  static std::shared_ptr<const Model> random(const ModelConfig& config, uint64_t seed,
                                             Options options);
  ~Model();

  const ModelConfig& config() const;
  /// XXH3 over config and weights: what a snapshot must match.
  uint64_t fingerprint() const;
  int64_t parameter_count() const;
  int64_t weight_bytes() const;  ///< memory of the packed weights
  /// The state table of every layer, in order; with embedding_lags one more at the end, the
  /// embedding's: the latest inputs, newest first.
  const std::vector<std::vector<mixers::StateSpec>>& state_specs() const;

  /// Runs the decoder. `output` receives head outputs [rows wanted, head.output_dim()].
  /// Rows of one sequence give the same bits whatever its batch mates and the thread count.
  void forward(const TokenBatch& batch, LayerStates states, mixers::Form form, Outputs outputs,
               float* output, ThreadPool* pool, Arena& arena) const noexcept;

 private:
  Model();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tarn::model
