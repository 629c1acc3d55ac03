#include <algorithm>

#include "mixers/common/aligned_blocks.h"
#include "mixers/common/attention_call.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::strided_sparse_attention {

extern const MixerDef kDef;

namespace {

using kernels::KeyPattern;
using kernels::KeyRun;
using kernels::kMaxQueryBlock;
using kernels::QueryBlock;
using kernels::SoftmaxProblem;

/// The config object of a layer (keys as in README.md), checked.
struct Config final : AttentionConfig {
  int64_t stride = 0;
  bool fixed = false;   ///< summary columns at fixed places instead of at a distance
  int64_t columns = 1;  ///< fixed: the last columns of each block, seen by all later tokens
};

const Config& config_of(const MixerConfig* config) { return static_cast<const Config&>(*config); }

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  read_attention_config(reader, model_dim, *config);
  config->stride = reader.integer("stride", 1, 1 << 20);
  config->fixed = reader.choice("pattern", {"strided", "fixed"}, 0) == 1;
  if (config->fixed) {
    config->columns = reader.integer("columns", 1, std::clamp<int64_t>(config->stride, 1, 16), 1);
  }
  TARN_RETURN_IF_ERROR(reader.finish());
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape op_shape(const MixerConfig& config) { return attention_shape(config_of(&config)); }
std::vector<StateSpec> state_specs(const MixerConfig& config) {
  return attention_cache(config_of(&config));
}

/// Query r of the block, at position p + r·step, sees entries [0, its position's part of the run].
void see_past(int64_t position, const QueryBlock& block, KeyRun& run) {
  for (int64_t r = 0; r < block.count; ++r) {
    const int64_t reach = position + r * block.step - run.first;
    run.from[r] = 0;
    run.to[r] = reach < 0 ? 0 : static_cast<int32_t>(std::min(run.count, reach / run.step + 1));
  }
}

/// The last `stride` tokens, in blocks of consecutive queries. A single query also sees the tokens
/// at multiples of the stride.
struct LocalPattern final : KeyPattern {
  explicit LocalPattern(int64_t s) : stride(s) {}
  int64_t stride;

  int64_t num_blocks(const SoftmaxProblem& problem, int64_t sequence) const final {
    return (problem.queries.length[sequence] + kMaxQueryBlock - 1) / kMaxQueryBlock;
  }
  void describe(const SoftmaxProblem& problem, int64_t sequence, int64_t, int64_t index,
                QueryBlock& block) const final {
    const int64_t tokens = problem.queries.length[sequence];
    block.first = index * kMaxQueryBlock;
    block.step = 1;
    block.count = std::min(kMaxQueryBlock, tokens - block.first);
    const int64_t position = AlignedBlocks::earlier(problem, sequence) + block.first;
    const int64_t first = std::max<int64_t>(0, position + 1 - stride);
    KeyRun& run = block.add_run(first, 1, position + block.count - first);
    for (int64_t r = 0; r < block.count; ++r) {
      run.from[r] = static_cast<int32_t>(std::max<int64_t>(0, position + r + 1 - stride - first));
      run.to[r] = static_cast<int32_t>(position + r + 1 - first);
    }
    if (tokens == 1 && position >= stride) {
      KeyRun& far = block.add_run(position % stride, stride, position / stride);
      see_past(position, block, far);
    }
  }
};

/// The tokens at distances stride, 2·stride, …: queries of equal remainder see the same ones.
struct DistantPattern final : KeyPattern {
  explicit DistantPattern(int64_t s) : stride(s) {}
  int64_t stride;

  /// Blocks per remainder, of which there are min(stride, tokens).
  int64_t blocks_per_class(int64_t tokens) const {
    const int64_t members = (tokens + stride - 1) / stride;
    return (members + kMaxQueryBlock - 1) / kMaxQueryBlock;
  }
  int64_t num_blocks(const SoftmaxProblem& problem, int64_t sequence) const final {
    const int64_t tokens = problem.queries.length[sequence];
    return tokens <= 1 ? 0 : std::min(stride, tokens) * blocks_per_class(tokens);
  }
  void describe(const SoftmaxProblem& problem, int64_t sequence, int64_t, int64_t index,
                QueryBlock& block) const final {
    const int64_t tokens = problem.queries.length[sequence];
    const int64_t classes = std::min(stride, tokens);
    block.first = index % classes + index / classes * kMaxQueryBlock * stride;
    block.step = stride;
    block.count =
        std::clamp<int64_t>((tokens - block.first + stride - 1) / stride, 0, kMaxQueryBlock);
    const int64_t position = AlignedBlocks::earlier(problem, sequence) + block.first;
    const int64_t entries = position / stride + block.count - 1;  // without the last query itself
    if (block.count == 0 || entries == 0) return;
    KeyRun& run = block.add_run(position % stride, stride, entries);
    for (int64_t r = 0; r < block.count; ++r) {
      run.from[r] = 0;
      run.to[r] = static_cast<int32_t>(position / stride + r);
    }
  }
};

/// The query's own block of `stride` tokens and the last columns of all blocks before it.
struct FixedPattern final : KeyPattern {
  FixedPattern(int64_t s, int64_t c) : blocks{s}, columns(c) {}
  AlignedBlocks blocks;
  int64_t columns;

  int64_t num_blocks(const SoftmaxProblem& problem, int64_t sequence) const final {
    return blocks.count(problem, sequence);
  }
  void describe(const SoftmaxProblem& problem, int64_t sequence, int64_t, int64_t index,
                QueryBlock& block) const final {
    const int64_t first = blocks.describe(problem, sequence, index, block);
    if (block.count == 0) return;
    const int64_t stride = blocks.size;
    const int64_t begin = first / stride * stride;
    see_past(first, block, block.add_run(begin, 1, first + block.count - begin));
    for (int64_t c = stride - columns; c < stride && begin > 0; ++c) {
      see_past(first, block, block.add_run(c, stride, begin / stride));
    }
  }
};

bool sees(const Config& config, int64_t query, int64_t key) {
  if (key > query) return false;
  if (!config.fixed) {
    return query - key < config.stride || (query - key) % config.stride == 0;
  }
  return key / config.stride == query / config.stride ||
         key % config.stride >= config.stride - config.columns;
}

void recurrent(const OpArgs<double>& args) {
  const Config& config = config_of(args.config);
  cached_attention_reference(
      config,
      [&config](int64_t, int64_t query, int64_t key, int64_t) { return sees(config, query, key); },
      args);
}

/// The patterns of a config, for the time of a call.
struct Patterns {
  explicit Patterns(const Config& config)
      : local(config.stride), distant(config.stride), fixed(config.stride, config.columns) {
    if (config.fixed) {
      visible.patterns = {&fixed};
    } else {
      visible.patterns = {&local, &distant};
    }
  }
  LocalPattern local;
  DistantPattern distant;
  FixedPattern fixed;
  VisibleKeys visible;
};

void attend(const OpArgs<float>& args) noexcept {
  const Config& config = config_of(args.config);
  cached_attention(config, Patterns(config).visible, args);
}

void backward(const OpBackwardArgs& args) noexcept {
  const Config& config = config_of(args.forward.config);
  cached_attention_backward(config, Patterns(config).visible, args);
}

double visible_keys(const Config& config, int64_t position) {
  const int64_t blocks = position / config.stride;
  const int64_t near =
      config.fixed ? position % config.stride + 1 : std::min(position + 1, config.stride);
  return static_cast<double>(near + blocks * config.columns);
}

double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const Config& config = config_of(&base);
  double pairs = 0;
  if (pass == OpPass::kStep) {
    pairs = visible_keys(config, tokens);
  } else {
    for (int64_t t = 0; t < tokens; ++t) pairs += visible_keys(config, t);
  }
  return attention_flops(config, pass, pairs);
}

StateTraffic step_traffic(const MixerConfig& base, int64_t tokens) {
  const Config& config = config_of(&base);
  return attention_traffic(config, visible_keys(config, tokens));
}

LayerProgram layer(const MixerConfig& config) {
  return projected_layer(op_shape(config), state_specs(config), config_of(&config).model_dim);
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32, "stride": 8})",
          R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "stride": 1})",
          R"({"num_heads": 6, "num_kv_heads": 2, "key_dim": 17, "value_dim": 8, "stride": 70})",
          R"({"num_heads": 4, "num_kv_heads": 1, "key_dim": 8, "stride": 3, "rotary_dim": 6})",
          R"({"num_heads": 2, "key_dim": 6, "stride": 7, "pattern": "fixed", "columns": 2})",
          R"({"num_heads": 1, "key_dim": 9, "value_dim": 4, "stride": 66, "pattern": "fixed",
              "scale": 1.0})"};
}

}  // namespace

const MixerDef kDef{
    .name = "strided_sparse_attention",
    .summary = "softmax attention to the last tokens and to every stride-th token before them",
    .recurrence =
        "o_t = softmax over {j <= t: t - j < stride or stride divides t - j} of "
        "(scale q_t.k_j) v_j",
    .source = "Child 2019, arXiv 1904.10509, section 4.3 (both patterns, one merged head)",
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
    .cut_quantum = kernels::kMaxQueryBlock,
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::strided_sparse_attention
