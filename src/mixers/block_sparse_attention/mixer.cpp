#include <algorithm>

#include "base/rng.h"
#include "mixers/common/aligned_blocks.h"
#include "mixers/common/attention_call.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::block_sparse_attention {

extern const MixerDef kDef;

namespace {

using kernels::KeyPattern;
using kernels::KeyRun;
using kernels::QueryBlock;
using kernels::SoftmaxProblem;

constexpr int64_t kMaxRandomBlocks = 16;

/// The config object of a layer (keys as in README.md), checked.
struct Config final : AttentionConfig {
  int64_t block_size = 0;
  int64_t window_blocks = 0;
  int64_t global_blocks = 0;
  int64_t random_blocks = 0;
  uint64_t seed = 0;
  bool causal = true;
};

const Config& config_of(const MixerConfig* config) { return static_cast<const Config&>(*config); }

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  read_attention_config(reader, model_dim, *config);
  config->block_size = reader.integer("block_size", 1, 1 << 16);
  config->window_blocks = reader.integer("window_blocks", 1, 1 << 16, 3);
  config->global_blocks = reader.integer("global_blocks", 0, 1 << 16, 1);
  config->random_blocks = reader.integer("random_blocks", 0, kMaxRandomBlocks, 2);
  config->seed = static_cast<uint64_t>(reader.integer("seed", 0, int64_t{1} << 53, 0));
  config->causal = reader.boolean("causal", true);
  if (!config->causal && config->window_blocks % 2 == 0) {
    reader.fail("window_blocks", "got " + std::to_string(config->window_blocks) +
                                     ", wanted an odd number: as many blocks on both sides");
  }
  TARN_RETURN_IF_ERROR(reader.finish());
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape op_shape(const MixerConfig& config) { return attention_shape(config_of(&config)); }
std::vector<StateSpec> state_specs(const MixerConfig& base) {
  const Config& config = config_of(&base);
  return config.causal ? attention_cache(config) : std::vector<StateSpec>();
}

/// What one block of tokens sees: blocks [0, global_end), [window_begin, window_end) and
/// random[0 … count), apart from each other.
struct VisibleBlocks {
  int64_t global_end = 0;
  int64_t window_begin = 0;
  int64_t window_end = 0;
  int64_t random[kMaxRandomBlocks];
  int64_t count = 0;
};

/// `block` of `num_blocks`; when causal the number of later blocks has no influence.
VisibleBlocks visible_blocks(const Config& config, int64_t head, int64_t block,
                             int64_t num_blocks) {
  VisibleBlocks visible;
  const int64_t end = config.causal ? block + 1 : num_blocks;
  const int64_t side = config.causal ? config.window_blocks - 1 : config.window_blocks / 2;
  visible.global_end = std::min(config.global_blocks, end);
  if (block < config.global_blocks) visible.global_end = end;  // a global block sees all
  visible.window_begin = std::max(visible.global_end, block - side);
  visible.window_end =
      std::max(visible.window_begin, std::min(end, config.causal ? end : block + side + 1));
  const int64_t before = visible.window_begin - visible.global_end;
  const int64_t candidates = before + end - visible.window_end;
  // Floyd's sample without replacement: one draw per member.
  Philox rng{config.seed, static_cast<uint64_t>(head) << 40 | static_cast<uint64_t>(block), 0};
  for (int64_t c = std::max<int64_t>(0, candidates - config.random_blocks); c < candidates; ++c) {
    int64_t drawn = rng.next_below(static_cast<uint32_t>(c + 1));
    int64_t* members = visible.random;
    if (std::find(members, members + visible.count, drawn) != members + visible.count) drawn = c;
    members[visible.count++] = drawn;
  }
  std::sort(visible.random, visible.random + visible.count);
  for (int64_t i = 0; i < visible.count; ++i) {
    int64_t& member = visible.random[i];
    member = member < before ? visible.global_end + member : visible.window_end + member - before;
  }
  return visible;
}

struct Pattern final : KeyPattern {
  explicit Pattern(const Config& c) : config(c), blocks{c.block_size} {}
  const Config& config;
  AlignedBlocks blocks;

  int64_t num_blocks(const SoftmaxProblem& problem, int64_t sequence) const final {
    return blocks.count(problem, sequence);
  }
  void see_blocks(int64_t position, int64_t keys, int64_t begin, int64_t end,
                  QueryBlock& block) const {
    const int64_t first = begin * blocks.size;
    const int64_t last = config.causal ? position + block.count : keys;
    const int64_t count = std::min(end * blocks.size, last) - first;
    if (begin >= end || count <= 0) return;
    KeyRun& run = block.add_run(first, 1, count);
    for (int64_t r = 0; r < block.count; ++r) {
      run.from[r] = 0;
      run.to[r] =
          static_cast<int32_t>(config.causal ? std::min(count, position + r + 1 - first) : count);
    }
  }
  void describe(const SoftmaxProblem& problem, int64_t sequence, int64_t head, int64_t index,
                QueryBlock& block) const final {
    const int64_t position = blocks.describe(problem, sequence, index, block);
    if (block.count == 0) return;
    const int64_t keys = problem.keys.length[sequence];
    const VisibleBlocks visible = visible_blocks(config, head, position / blocks.size,
                                                 (keys + blocks.size - 1) / blocks.size);
    see_blocks(position, keys, 0, visible.global_end, block);
    for (int64_t i = 0; i < visible.count; ++i) {
      see_blocks(position, keys, visible.random[i], visible.random[i] + 1, block);
    }
    see_blocks(position, keys, visible.window_begin, visible.window_end, block);
  }
  bool same_for_all_heads() const final { return config.random_blocks == 0; }
};

void recurrent(const OpArgs<double>& args) {
  const Config& config = config_of(args.config);
  cached_attention_reference(
      config,
      [&config](int64_t head, int64_t query, int64_t key, int64_t tokens) {
        if (config.causal && key > query) return false;
        const int64_t query_block = query / config.block_size;
        const int64_t key_block = key / config.block_size;
        const int64_t side = config.causal ? config.window_blocks - 1 : config.window_blocks / 2;
        if (key_block < config.global_blocks || query_block < config.global_blocks) return true;
        if (std::abs(query_block - key_block) <= side) return true;
        const VisibleBlocks drawn =
            visible_blocks(config, head, query_block, (tokens - 1) / config.block_size + 1);
        return std::find(drawn.random, drawn.random + drawn.count, key_block) !=
               drawn.random + drawn.count;
      },
      args);
}

void attend(const OpArgs<float>& args) noexcept {
  const Config& config = config_of(args.config);
  const Pattern pattern(config);
  cached_attention(config, {config.causal, {&pattern}}, args);
}

void backward(const OpBackwardArgs& args) noexcept {
  const Config& config = config_of(args.forward.config);
  const Pattern pattern(config);
  cached_attention_backward(config, {config.causal, {&pattern}}, args);
}

/// Pairs of query and key of the token at `position` of `tokens`.
double visible_keys(const Config& config, int64_t position, int64_t tokens) {
  const int64_t size = config.block_size;
  const int64_t end = config.causal ? position + 1 : tokens;
  const VisibleBlocks visible =
      visible_blocks(config, 0, position / size, (tokens + size - 1) / size);
  const auto keys = [&](int64_t first, int64_t last) {
    return std::min(last * size, end) - std::min(first * size, end);
  };
  int64_t count = keys(0, visible.global_end) + keys(visible.window_begin, visible.window_end);
  for (int64_t i = 0; i < visible.count; ++i) {
    count += keys(visible.random[i], visible.random[i] + 1);
  }
  return static_cast<double>(count);
}

double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const Config& config = config_of(&base);
  double pairs = 0;
  if (pass == OpPass::kStep) {
    pairs = visible_keys(config, tokens, tokens + 1);
  } else {
    for (int64_t t = 0; t < tokens; ++t) pairs += visible_keys(config, t, tokens);
  }
  return attention_flops(config, pass, pairs);
}

/// Heads that share keys and values read what any of them sees once.
StateTraffic step_traffic(const MixerConfig& base, int64_t tokens) {
  const Config& config = config_of(&base);
  const int64_t last = tokens / config.block_size;
  const int64_t group = config.num_heads / config.num_kv_heads;
  double keys = 0;
  for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
    const VisibleBlocks shared = visible_blocks(config, kv_head * group, last, last + 1);
    std::vector<int64_t> drawn(shared.random, shared.random + shared.count);
    for (int64_t head = kv_head * group + 1; head < (kv_head + 1) * group; ++head) {
      const VisibleBlocks own = visible_blocks(config, head, last, last + 1);
      drawn.insert(drawn.end(), own.random, own.random + own.count);
    }
    std::sort(drawn.begin(), drawn.end());
    const auto end = std::unique(drawn.begin(), drawn.end());
    // Random blocks lie before the window, so they are whole.
    const int64_t more = (end - drawn.begin() - shared.count) * config.block_size;
    keys += visible_keys(config, tokens, tokens + 1) + static_cast<double>(more);
  }
  return attention_traffic(config, keys / static_cast<double>(config.num_kv_heads));
}

LayerProgram layer(const MixerConfig& config) {
  return projected_layer(op_shape(config), state_specs(config), config_of(&config).model_dim);
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32, "block_size": 8})",
          R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "block_size": 1, "window_blocks": 1,
              "global_blocks": 0, "random_blocks": 3, "seed": 7})",
          R"({"num_heads": 6, "num_kv_heads": 2, "key_dim": 17, "value_dim": 8, "block_size": 5,
              "window_blocks": 2, "global_blocks": 2, "random_blocks": 1})",
          R"({"num_heads": 4, "num_kv_heads": 1, "key_dim": 8, "block_size": 70,
              "window_blocks": 1, "rotary_dim": 6})",
          R"({"num_heads": 2, "key_dim": 7, "block_size": 4, "random_blocks": 2, "seed": 3,
              "causal": false})",
          R"({"num_heads": 3, "key_dim": 4, "block_size": 66, "random_blocks": 0, "scale": 1.0,
              "causal": false})"};
}

}  // namespace

const MixerDef kDef{
    .name = "block_sparse_attention",
    .summary = "softmax attention to blocks of tokens: a window, the first ones and random ones",
    .recurrence =
        "o_t = softmax over {j <= t in window, global and random blocks} of "
        "(scale q_t.k_j) v_j",
    .source = "Zaheer 2020, arXiv 2007.14062, section 2 (BigBird-ITC)",
    .state_formula = "4*T*Hkv*(K + V)",
    .bounded_state = false,
    .read_config = read_config,
    .state_specs = state_specs,
    .op_shape = op_shape,
    .recurrent = recurrent,
    .parallel = attend,
    .chunk = attend,
    .step = attend,
    .backward = backward,
    .flops = flops,
    .step_traffic = step_traffic,
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::block_sparse_attention
