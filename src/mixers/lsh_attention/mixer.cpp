#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "mixers/layer_program.h"
#include "mixers/lsh_attention/lsh_attention.h"

namespace tarn::mixers::lsh_attention {

extern const MixerDef kDef;

namespace {

/// Normal entries, one random stream per round.
std::vector<float> draw_rotations(const Config& config) {
  std::vector<float> rotations;
  for (int64_t round = 0; round < config.rounds; ++round) {
    Philox rng{config.seed, static_cast<uint64_t>(round), 0};
    for (int64_t i = 0; i < config.key_dim * (config.num_buckets / 2); ++i) {
      rotations.push_back(rng.next_normal());
    }
  }
  return rotations;
}

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->num_heads = config->num_kv_heads = reader.integer("num_heads", 1, 4096);
  config->key_dim = reader.integer("key_dim", 1, 4096);
  config->value_dim = reader.integer("value_dim", 1, 4096, config->key_dim);
  const double inverse_root =
      1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(1, config->key_dim)));
  config->scale = reader.number("scale", 0.0, 1e6, inverse_root);
  config->rounds = reader.integer("rounds", 1, 16, 1);
  config->num_buckets = reader.integer("num_buckets", 2, 4096);
  config->chunk = reader.integer("chunk", 1, 4096);
  config->seed = static_cast<uint64_t>(reader.integer("seed", 0, int64_t{1} << 53, 0));
  if (config->num_buckets % 2 != 0) {
    reader.fail("num_buckets",
                "got " + std::to_string(config->num_buckets) + ", wanted an even number");
  }
  TARN_RETURN_IF_ERROR(reader.finish());
  config->rotations = draw_rotations(*config);
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape op_shape(const MixerConfig& base) {
  const Config& config = config_of(&base);
  OpShape shape;
  shape.inputs = {{"q", config.num_heads, config.key_dim, OpInput::Range::kNormal},
                  {"v", config.num_heads, config.value_dim, OpInput::Range::kNormal}};
  shape.out_heads = config.num_heads;
  shape.out_dim = config.value_dim;
  shape.saved_per_row = config.num_heads;  // log of the sum of exponentials of all rounds
  return shape;
}

std::vector<StateSpec> state_specs(const MixerConfig& base) {
  const Config& config = config_of(&base);
  return {{"k", {config.num_heads, config.key_dim}, 0.0f, true},
          {"v", {config.num_heads, config.value_dim}, 0.0f, true},
          {"bucket", {config.rounds, config.num_heads}, 0.0f, true, config.num_buckets}};
}

/// Hashing (K·num_buckets per round) and the most keys that a query may see: `chunk` per round.
/// Keys that a query finds per round, with tokens spread evenly over the buckets.
double found_keys(const Config& config, int64_t position) {
  return std::min(static_cast<double>(position) / static_cast<double>(config.num_buckets),
                  static_cast<double>(config.chunk));
}

double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const Config& config = config_of(&base);
  const auto work = [&](int64_t position) {
    const double pairs = found_keys(config, position);
    const double hash =
        pass == OpPass::kBackward ? 0.0 : static_cast<double>(config.key_dim * config.num_buckets);
    return static_cast<double>(config.rounds) *
           (attention_flops(config, pass, pairs) + static_cast<double>(config.num_heads) * hash);
  };
  if (pass == OpPass::kStep) return work(tokens);
  double total = 0;
  for (int64_t t = 0; t < tokens; ++t) total += work(t);
  return total;
}

/// Each round looks through the buckets of the latest tokens until it has its keys.
StateTraffic step_traffic(const MixerConfig& base, int64_t tokens) {
  const Config& config = config_of(&base);
  const auto position = static_cast<double>(tokens);
  const auto rounds = static_cast<double>(config.rounds);
  const double found = std::min(rounds * found_keys(config, tokens), position);
  const double searched =
      std::min(static_cast<double>(config.chunk * config.num_buckets), position);
  const double buckets = rounds * static_cast<double>(config.num_heads);
  StateTraffic traffic = attention_traffic(config, found + 1);
  traffic.read += buckets * searched;
  traffic.written += buckets;
  return traffic;
}

LayerProgram layer(const MixerConfig& config) {
  return projected_layer(op_shape(config), state_specs(config), config_of(&config).model_dim);
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32, "rounds": 2, "num_buckets": 8, "chunk": 16})",
          R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "num_buckets": 2, "chunk": 64})",
          R"({"num_heads": 3, "key_dim": 17, "value_dim": 8, "rounds": 4, "num_buckets": 6,
              "chunk": 3, "seed": 9})",
          R"({"num_heads": 1, "key_dim": 4, "rounds": 3, "num_buckets": 140, "chunk": 1,
              "scale": 2.0})"};
}

}  // namespace

const MixerDef kDef{
    .name = "lsh_attention",
    .summary = "softmax attention to tokens whose hash is the same; queries are their own keys",
    .recurrence =
        "o_t = softmax over {latest `chunk` j < t of the same bucket, per round} of "
        "(scale q_t.q_j/|q_j|) v_j",
    .source = "Kitaev 2020, arXiv 2001.04451, section 2",
    .state_formula = "4*T*H*(K + V + rounds)",
    .bounded_state = false,
    .read_config = read_config,
    .state_specs = state_specs,
    .op_shape = op_shape,
    .recurrent = recurrent_forward,
    .parallel = chunk_forward,
    .chunk = chunk_forward,
    .step = chunk_forward,
    .backward = chunk_backward,
    .flops = flops,
    .step_traffic = step_traffic,
    .cut_quantum = 0,  // which tokens are sorted together decides the order of sums
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::lsh_attention
