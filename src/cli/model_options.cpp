#include "cli/model_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "cli/own_model.h"
#include "report/png.h"

namespace tarn::cli {
namespace {

constexpr std::array<std::pair<kernels::WeightFormat, const char*>, 3> kFormats = {{
    {kernels::WeightFormat::kF32, "f32"},
    {kernels::WeightFormat::kBF16, "bf16"},
    {kernels::WeightFormat::kInt8, "int8"},
}};

std::string image_shape(const model::ModelConfig& config) {
  return fmt::format("{}x{}x{}", config.image_width, config.image_height, config.image_channels);
}

/// The data that a model was trained on, if its folder says so: which part of it was held back.
Result<std::optional<data::DataSpec>> trained_on(const std::string& model_folder) {
  constexpr int64_t kMaxBytes = int64_t{1} << 20;
  const std::string path = model_folder + "/training.json";
  if (model_folder.empty() || !path_exists(path)) return std::optional<data::DataSpec>();
  TARN_ASSIGN(const std::string text, read_file(path, kMaxBytes));
  TARN_ASSIGN(const Json json, parse_json(text, path));
  const Json* member = json.find("data");
  if (member == nullptr) return std::optional<data::DataSpec>();
  TARN_ASSIGN(data::DataSpec spec, data::parse_data_spec(*member, path + ": data"));
  return std::optional(std::move(spec));
}

std::vector<int32_t> upper_half(const model::ModelConfig& config, std::vector<int32_t> image) {
  const int64_t kept = config.image_height / 2 * config.image_width * config.image_channels;
  image.resize(static_cast<size_t>(kept));
  return image;
}

Result<std::vector<int32_t>> read_image(const model::ModelConfig& config, const std::string& file) {
  TARN_ASSIGN(
      const report::Image image,
      report::read_png(file, config.image_width, config.image_height, config.image_channels));
  std::vector<int32_t> levels;
  for (const uint8_t pixel : image.pixels) {
    levels.push_back(report::level_of_pixel(pixel, config.head.classes));
  }
  return upper_half(config, std::move(levels));
}

Result<std::vector<std::vector<int32_t>>> read_data_images(const model::ModelConfig& config,
                                                           const std::string& folder,
                                                           const std::vector<int64_t>& indices) {
  TARN_ASSIGN(const data::SequenceDataset dataset, load_data(config, folder, "test", 0, ""));
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t index : indices) {
    if (index >= dataset.count) {
      return invalid_argument(
          fmt::format("got {}, wanted an index below the {} test images", index, dataset.count),
          "--prompt-index");
    }
    prompts.push_back(upper_half(config, sequence_tokens(dataset, index)));
  }
  return prompts;
}

}  // namespace

std::vector<std::string> weight_format_names() {
  std::vector<std::string> names;
  for (const auto& [format, name] : kFormats) names.emplace_back(name);
  return names;
}

kernels::WeightFormat weight_format_from_name(const std::string& name) {
  for (const auto& [format, known] : kFormats) {
    if (name == known) return format;
  }
  return kernels::WeightFormat::kF32;
}

const char* weight_format_name(kernels::WeightFormat format) {
  for (const auto& [known, name] : kFormats) {
    if (format == known) return name;
  }
  return "f32";
}

void ModelOptions::add_to(Command& command, const std::string& without) {
  const std::string help = "model folder (config.json, model.safetensors)";
  if (without.empty()) {
    command.positional("model", folder, "MODEL", help);
  } else {
    command.optional_positional("model", folder, "MODEL", help + "; without: " + without);
  }
  command.threads(threads);
  command.choice("--gemm", gemm, {"packed", "onednn"},
                 "matrix products: packed (default; same bits for any batch) or onednn");
  command.choice(
      "--weights", weights, weight_format_names(),
      "matrices in memory: f32 (default), bf16, or int8 with a scale per output; products "
      "then round their inputs to the same format");
}

Result<std::shared_ptr<const model::Model>> ModelOptions::load() const {
  model::Model::Options options;
  if (gemm == "onednn") options.pack.backend = kernels::GemmBackend::kOneDnn;
  options.pack.format = weight_format_from_name(weights);
  if (gemm == "onednn" && weights != "f32") {
    return invalid_argument("--weights " + weights + " needs --gemm packed, got onednn", "--gemm");
  }
  return folder.empty() ? load_own_model(options) : model::Model::load(folder, options);
}

void SamplerFlags::add_to(Command& command) {
  command.flag("--greedy", greedy, "always take the most likely token");
  command.number("--temperature", temperature, 1e-3, 1e3, "above 1 more varied, below 1 less");
  command.integer("--top-k", top_k, 0, 1'000'000, "only the k most likely tokens (0: all)");
  command.number("--top-p", top_p, 1e-6, 1.0, "only the likeliest tokens with this probability");
}

runtime::SamplerOptions SamplerFlags::options() const {
  runtime::SamplerOptions options;
  options.greedy = greedy;
  options.temperature = static_cast<float>(temperature);
  options.top_k = top_k;
  options.top_p = static_cast<float>(top_p);
  return options;
}

void PromptOptions::add_to(Command& command) {
  command.text("--prompt", text, "TEXT", "text to continue (byte models)");
  command.integers("--tokens", tokens, 0, INT32_MAX, "tokens to continue, separated by commas");
  command.text("--prompt-image", image_file, "PNG",
               "picture whose upper half is kept and whose lower half is drawn");
  command.text("--prompt-data", data_folder, "DIR", "data set with test images to complete");
  command.integers("--prompt-index", indices, 0, INT32_MAX,
                   "which test images, separated by commas");
  command.exclusive({"--prompt", "--tokens", "--prompt-image", "--prompt-data"});
  command.together("--prompt-data", "--prompt-index");
}

Result<std::vector<std::vector<int32_t>>> PromptOptions::read(
    const model::ModelConfig& config) const {
  const bool wants_image = !image_file.empty() || !data_folder.empty();
  if (wants_image && config.modality != model::Modality::kImage) {
    return invalid_argument(
        fmt::format("the model is over {}, wanted one over images", modality_name(config.modality)),
        image_file.empty() ? "--prompt-data" : "--prompt-image");
  }
  if (!text.empty() && config.modality != model::Modality::kBytes) {
    return invalid_argument(
        fmt::format("the model is over {}, wanted one over bytes", modality_name(config.modality)),
        "--prompt");
  }
  std::vector<std::vector<int32_t>> prompts;
  if (!data_folder.empty()) return read_data_images(config, data_folder, indices);
  if (!image_file.empty()) {
    TARN_ASSIGN(std::vector<int32_t> half, read_image(config, image_file));
    prompts.push_back(std::move(half));
  }
  if (!text.empty()) {
    auto& prompt = prompts.emplace_back();
    for (char c : text) prompt.push_back(static_cast<uint8_t>(c));
  }
  if (!tokens.empty()) prompts.emplace_back(tokens.begin(), tokens.end());
  return prompts;
}

Result<data::DataSpec> data_spec_for(const model::ModelConfig& config, int64_t length,
                                     const std::string& model_folder) {
  data::DataSpec spec;
  if (config.modality == model::Modality::kBytes) {
    spec.kind = data::DataKind::kTextBytes;
  } else if (config.modality == model::Modality::kImage && image_shape(config) == "28x28x1") {
    spec.kind = data::DataKind::kMnist;
  } else if (config.modality == model::Modality::kImage && image_shape(config) == "32x32x3") {
    spec.kind = data::DataKind::kCifar10;
  } else {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("no data set fits a model over {}{}", modality_name(config.modality),
                             config.modality == model::Modality::kImage
                                 ? " of " + image_shape(config) + " (known: 28x28x1, 32x32x3)"
                                 : ""),
                 "--data"};
  }
  TARN_ASSIGN(const auto trained, trained_on(model_folder));
  if (trained && trained->kind == spec.kind) spec = *trained;
  spec.file.clear();  // --data is the file itself
  if (spec.kind == data::DataKind::kTextBytes) {
    spec.length = length > 0 ? length : config.max_tokens;
    if (spec.length == 0) {
      return invalid_argument("wanted a number of tokens, because the model has no max_tokens",
                              "--length");
    }
  }
  return spec;
}

Result<data::SequenceDataset> load_split(const model::ModelConfig& config,
                                         const data::DataSpec& spec, const std::string& folder,
                                         const std::string& split) {
  TARN_ASSIGN(const data::Split which, data::split_from_name(split, "--split"));
  TARN_ASSIGN(data::SequenceDataset dataset, data::load(spec, folder, which));
  if (config.max_tokens > 0 && dataset.length > config.max_tokens) {
    return invalid_argument(fmt::format("sequences have {} tokens, the model takes {}",
                                        dataset.length, config.max_tokens),
                            folder);
  }
  return dataset;
}

Result<data::SequenceDataset> load_data(const model::ModelConfig& config, const std::string& folder,
                                        const std::string& split, int64_t length,
                                        const std::string& model_folder) {
  TARN_ASSIGN(const data::DataSpec spec, data_spec_for(config, length, model_folder));
  return load_split(config, spec, folder, split);
}

std::vector<int32_t> sequence_tokens(const data::SequenceDataset& dataset, int64_t index) {
  std::vector<uint8_t> bytes(static_cast<size_t>(dataset.length));
  dataset.sequence(0, index, bytes.data(), nullptr);
  return {bytes.begin(), bytes.end()};
}

const char* modality_name(model::Modality modality) {
  switch (modality) {
    case model::Modality::kTokens: return "tokens";
    case model::Modality::kBytes: return "bytes";
    case model::Modality::kImage: return "images";
    case model::Modality::kFrames: return "frames";
  }
  return "tokens";
}

}  // namespace tarn::cli
