#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command.h"
#include "data/dataset.h"
#include "model/model.h"
#include "runtime/sampler.h"

namespace tarn::cli {

/// MODEL, --threads, --gemm and --weights: what every command that runs a model takes.
struct ModelOptions {
  std::string folder;
  int64_t threads = 1;
  std::string gemm = "packed";
  std::string weights = "f32";

  /// `without`: what the command runs when MODEL may be left out; empty: it may not.
  void add_to(Command& command, const std::string& without = "");
  /// MODEL, or the program's own model when it was left out.
  Result<std::shared_ptr<const model::Model>> load() const;
};

/// "f32", "bf16", "int8": the words of --weights.
std::vector<std::string> weight_format_names();
kernels::WeightFormat weight_format_from_name(const std::string& name);
const char* weight_format_name(kernels::WeightFormat format);

/// --greedy, --temperature, --top-k, --top-p.
struct SamplerFlags {
  bool greedy = false;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;

  void add_to(Command& command);
  runtime::SamplerOptions options() const;
};

/// --prompt, --tokens, --prompt-image, --prompt-data with --prompt-index: what sequences start
/// from.
struct PromptOptions {
  std::string text;
  std::vector<int64_t> tokens;
  std::string image_file;
  std::string data_folder;
  std::vector<int64_t> indices;

  void add_to(Command& command);
  /// No prompt, one for all sequences, or one per index. Images keep their upper half.
  /// Errors: a prompt that the model's modality cannot read; no such file or index.
  Result<std::vector<std::vector<int32_t>>> read(const model::ModelConfig& config) const;
};

/// Which data set a model reads: by the shape of its images, or bytes of text in windows of
/// `length` tokens (0: max_tokens). Its parts are those of the model's training, if `model_folder` has a
/// training.json about such data; else the defaults. Errors: kUnsupported for other models.
Result<data::DataSpec> data_spec_for(const model::ModelConfig& config, int64_t length,
                                     const std::string& model_folder);

/// Loads a split of `spec` from `folder`. Errors: also sequences longer than the model takes.
Result<data::SequenceDataset> load_split(const model::ModelConfig& config,
                                         const data::DataSpec& spec, const std::string& folder,
                                         const std::string& split);

/// The same with the data set that the model reads.
Result<data::SequenceDataset> load_data(const model::ModelConfig& config, const std::string& folder,
                                        const std::string& split, int64_t length,
                                        const std::string& model_folder);

/// Sequence `index` of a data set as tokens.
std::vector<int32_t> sequence_tokens(const data::SequenceDataset& dataset, int64_t index);

/// "images", "bytes", "tokens" or "frames".
const char* modality_name(model::Modality modality);

}  // namespace tarn::cli
