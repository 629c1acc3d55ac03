#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "conformance/layer_stack.h"
#include "mixers/layer.h"
#include "mixers/mixer.h"
#include "model/config.h"
#include "model/model.h"
#include "runtime/operator_bench.h"

namespace tarn::runtime {

/// Whether this build's allocator keeps freed memory: then resident memory says nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

/// What of a tiny model a test wants to choose.
struct TinyOptions {
  std::string head = R"({"kind": "categorical", "classes": 11})";
  int64_t vocabulary = 12;  ///< the last symbol is the start token
  int64_t max_tokens = 96;  ///< 0: sinusoidal positions and no limit
  uint64_t seed = 1;
  bool image = false;  ///< max_tokens pixels in one row
};

inline std::shared_ptr<const model::Model> tiny_model(const std::vector<Json>& mixer_configs,
                                                      const TinyOptions& options = {}) {
  Json::Array layers;
  for (const Json& mixer : mixer_configs) {
    const Json mlp = Json::Object{{"hidden_dim", 24}, {"activation", "gelu"}};
    layers.push_back(Json::Object{{"mixer", mixer}, {"mlp", mlp}});
  }
  auto head = parse_json(options.head, "head");
  TARN_CHECK(head.ok());
  const bool limited = options.max_tokens > 0;
  Json json = Json::Object{{"format", "tarn-model"},
                           {"format_version", 1},
                           {"modality", options.image ? "image" : "tokens"},
                           {"vocabulary", options.vocabulary},
                           {"start_token", options.vocabulary - 1},
                           {"model_dim", 16},
                           {"max_tokens", options.max_tokens},
                           {"position", Json::Object{{"kind", limited ? "learned" : "sinusoidal"}}},
                           {"embedding_scale", 1.0},
                           {"norm", Json::Object{{"kind", "layer_norm"}, {"placement", "post"}}},
                           {"layers", layers},
                           {"head", *head}};
  if (options.image) {
    json.set("image", Json::Object{{"width", options.max_tokens}, {"height", 1}, {"channels", 1}});
  }
  if (limited) json.set("embedding_lags", Json::Array{1, 4});
  auto config = model::parse_model_config(json, "tiny");
  TARN_CHECK(config.ok());
  return model::Model::random(*config, options.seed, {});
}

/// A mixer's first example config with those of these sizes that it takes.
inline std::string sized_config(const mixers::MixerDef& mixer, int64_t heads, int64_t key_dim,
                                int64_t value_dim) {
  for (const int64_t value : {value_dim, int64_t{0}}) {
    auto config = operator_config(mixer, heads, key_dim, value);
    if (config.ok()) return *config;
  }
  return operator_config(mixer, 0, 0, 0).value();
}

struct NamedMixers {
  std::string name;
  std::vector<Json> layers;
};

/// Two layers of every causal example config of every mechanism, after one whose rows they receive
/// where they do, and one model with a layer of each mechanism. `first_only`: only the first config
/// of each, and the mixed model.
inline std::vector<NamedMixers> causal_stacks(bool first_only = false) {
  std::vector<NamedMixers> stacks;
  NamedMixers mixed{"mixed", {}};
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    bool first = true;
    for (const std::string& text : mixer->example_configs()) {
      auto json = parse_json(text, mixer->name);
      TARN_CHECK(json.ok());
      auto config = mixer->parse_config(*json, 16, mixer->name);
      TARN_CHECK(config.ok());
      if (mixers::layer_states(*mixer, **config).empty() || (first_only && !first)) continue;
      std::vector<Json> layers = conformance::layer_stack(*mixer, text, 16);
      if (first) mixed.layers.insert(mixed.layers.end(), layers.begin(), layers.end());
      first = false;
      layers.push_back(layers.back());
      stacks.push_back({std::string(mixer->name) + " " + text, std::move(layers)});
    }
  }
  stacks.push_back(mixed);
  return stacks;
}

}  // namespace tarn::runtime
