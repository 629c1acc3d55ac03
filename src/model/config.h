#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "audio/frontend_config.h"
#include "base/json.h"
#include "base/result.h"
#include "kernels/activation.h"
#include "mixers/layer.h"
#include "mixers/mixer.h"

namespace tarn::model {

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };
enum class NormPlacement : uint8_t {
  kPost,  ///< x = norm(x + f(x)): the paper's block (fast-transformers)
  kPre,   ///< x = x + f(norm(x))
};
enum class PositionKind : uint8_t { kNone, kLearned, kSinusoidal };
enum class HeadKind : uint8_t {
  kCategorical,                 ///< logits over `classes`
  kDiscretisedLogisticMixture,  ///< Salimans 2017, one channel: [weights | means | log scales]
  kCtc,  ///< logits over `classes` per row; class 0 is the blank (Graves 2006)
};
/// What the model reads: symbols (as tokens, bytes or pixels, which decides how prompts and outputs are
/// read and drawn), or rows of real numbers.
enum class Modality : uint8_t { kTokens, kBytes, kImage, kFrames };

/// Caps on what a config may ask for, checked before anything is allocated.
inline constexpr int64_t kMaxModelDim = 65'536;
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
inline constexpr int64_t kMaxTokens = int64_t{1} << 31;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxMlpDim = int64_t{1} << 20;
inline constexpr int64_t kMaxComponents = 1024;
inline constexpr int64_t kMaxLevels = 65'536;
inline constexpr int64_t kMaxImageSide = 65'536;
inline constexpr int64_t kMaxEmbeddingLag = 65'536;
inline constexpr int64_t kMaxFeatures = 65'536;
inline constexpr int64_t kMaxStack = 64;
inline constexpr int64_t kMaxSymbolBytes = 64;
inline constexpr int64_t kMaxParameters = int64_t{1} << 36;

struct LayerConfig {
  const mixers::MixerDef* mixer = nullptr;
  std::shared_ptr<const mixers::MixerConfig> mixer_config;
  Json mixer_json;             ///< the whole "mixer" object as written, "name" included, for saving
  mixers::LayerRows rows;      ///< that the mixer receives and hands on
  int64_t mlp_hidden_dim = 0;  ///< 0: no MLP and no norm of one
  kernels::Activation mlp_activation = kernels::Activation::kRelu;

  bool has_mlp() const { return mlp_hidden_dim > 0; }
};

struct HeadConfig {
  HeadKind kind = HeadKind::kCategorical;
  int64_t classes = 0;                    ///< kCategorical: classes; mixture: levels (256)
  int64_t components = 0;                 ///< mixture only
  std::vector<std::string> symbols = {};  ///< kCtc: names of classes 1, 2, …; or none
  int64_t output_dim() const {
    return kind == HeadKind::kDiscretisedLogisticMixture ? 3 * components : classes;
  }
};

/// config.json of a model folder, validated. Schema: docs/formats/model.md.
struct ModelConfig {
  int64_t vocabulary = 0;   ///< input symbols, the start token included; 0: over frames
  int64_t start_token = 0;  ///< the input at position 0: the model predicts token 0 from it
  int64_t model_dim = 0;
  int64_t max_tokens = 0;  ///< longest sequence; 0 only where no position table limits it
  PositionKind position = PositionKind::kLearned;
  int64_t position_period = 0;  ///< > 0: learned table starts from a grid of that width
  /// How many inputs back, increasing: the tables of these inputs are added to the embedding.
  std::vector<int64_t> embedding_lags;
  float embedding_scale = 0.02f;  ///< standard deviation at the start (tables)
  bool embedding_norm = false;    ///< a norm of the embedding, before the first layer
  NormKind norm = NormKind::kLayerNorm;
  NormPlacement placement = NormPlacement::kPost;
  float norm_eps = 1e-5f;
  bool final_norm = true;
  std::vector<LayerConfig> layers;
  HeadConfig head;
  Modality modality = Modality::kTokens;
  int64_t image_width = 0, image_height = 0, image_channels = 0;
  int64_t frame_features = 0;  ///< kFrames: numbers per frame
  int64_t frame_stack = 0;     ///< kFrames: consecutive frames that make one input row
  std::optional<audio::FrontendConfig> frontend;  ///< kFrames: how sound becomes frames, if it does

  /// Numbers of one input row over frames; 0: over symbols.
  int64_t input_width() const { return frame_features * frame_stack; }
  /// Input rows of `frames` frames: the last one may be filled up with zeros.
  int64_t input_rows(int64_t frames) const { return (frames + frame_stack - 1) / frame_stack; }

  /// Values per row of the buffer through which layers hand rows on; 0: none does.
  int64_t handed_on_width() const;
};

/// Reads and validates a config document. Unknown keys, missing keys, values out of range and
/// sizes over the caps (docs/formats/model.md) are errors that name the key and `where`.
Result<ModelConfig> parse_model_config(const Json& json, const std::string& where);
/// The document that parses to the same config.
Json to_json(const ModelConfig& config);

}  // namespace tarn::model
