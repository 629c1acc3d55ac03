#include <algorithm>

#include "mixers/common/slot_attention.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::sliding_window_attention {

extern const MixerDef kDef;

namespace {

using kernels::Heads;
using kernels::KeyRun;
using kernels::QueryBlock;

/// The config object of a layer (keys as in README.md), checked.
struct Config final : AttentionConfig {
  int64_t window = 0;
  int64_t sinks = 0;
};

const Config& config_of(const MixerConfig* config) { return static_cast<const Config&>(*config); }

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  read_attention_config(reader, model_dim, *config);
  config->window = reader.integer("window", 1, 1 << 20);
  config->sinks = reader.integer("sinks", 0, 4096, 0);
  TARN_RETURN_IF_ERROR(reader.finish());
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape op_shape(const MixerConfig& config) { return attention_shape(config_of(&config)); }

std::vector<StateSpec> state_specs(const MixerConfig& base) {
  const Config& config = config_of(&base);
  return slot_specs(config, config.sinks + config.window);
}

/// Slots: the first tokens, then a ring of the last ones. Rows of a call: the first tokens as far as
/// they came before it, the last window − 1 tokens before it, its own tokens.
struct Layout final : SlotLayout {
  explicit Layout(const Config& config) : window(config.window), sinks(config.sinks) {}
  int64_t window;
  int64_t sinks;

  int64_t num_slots() const final { return sinks + window; }
  int64_t slot_of(int64_t position) const final { return sinks + position % window; }
  int64_t second_slot_of(int64_t position) const final { return position < sinks ? position : -1; }
  /// The earliest position whose row follows those of earlier sinks.
  int64_t oldest(const Call& call) const { return std::max<int64_t>(0, call.seen - (window - 1)); }
  int64_t earlier_sinks(const Call& call) const { return std::min(sinks, call.seen); }
  /// Row of the token at a position not before oldest().
  int64_t row_of(const Call& call, int64_t position) const {
    return earlier_sinks(call) + position - oldest(call);
  }
  int64_t max_rows(const Call& call) const final { return row_of(call, call.seen + call.tokens); }

  int64_t plan(const Call& call, int32_t* source, int32_t* held) const final {
    for (int64_t j = 0; j < earlier_sinks(call); ++j) source[j] = ~static_cast<int32_t>(j);
    for (int64_t p = oldest(call); p < call.seen; ++p) {
      source[row_of(call, p)] = ~static_cast<int32_t>(slot_of(p));
    }
    std::fill_n(held, num_slots(), -1);
    for (int64_t r = 0; r < call.tokens; ++r) {
      const auto row = static_cast<int32_t>(row_of(call, call.seen + r));
      source[row] = static_cast<int32_t>(r);
      held[slot_of(call.seen + r)] = row;
      if (call.seen + r < sinks) held[call.seen + r] = row;
    }
    return max_rows(call);
  }

  /// A run of the first `count` tokens from position `first` on, each seen once it has left the
  /// window; tokens of the window are in another run.
  void see_sinks(int64_t row, int64_t first, int64_t count, int64_t query,
                 QueryBlock& block) const {
    if (std::min(count, query + block.count - window - first) <= 0) return;
    KeyRun& run = block.add_run(row, 1, count);
    for (int64_t r = 0; r < block.count; ++r) {
      run.from[r] = 0;
      run.to[r] =
          static_cast<int32_t>(std::clamp<int64_t>(query + r + 1 - window - first, 0, count));
    }
  }
  void see_rows(const Call& call, QueryBlock& block) const final {
    const int64_t query = call.seen + block.first;
    const int64_t later_sinks = std::min(sinks, query + block.count) - call.seen;
    see_sinks(0, 0, earlier_sinks(call), query, block);
    see_sinks(row_of(call, call.seen), call.seen, later_sinks, query, block);
    const int64_t first = std::max<int64_t>(0, query + 1 - window);
    see_window(first, query, window, block.count,
               block.add_run(row_of(call, first), 1, query + block.count - first));
  }
  void see_slots(int64_t position, QueryBlock& block) const final {
    see_sinks(0, 0, sinks, position, block);
    KeyRun& run = block.add_run(sinks, 1, std::min(window, position + 1));
    run.from[0] = 0;
    run.to[0] = static_cast<int32_t>(run.count);
  }
};

/// The token loop: write, then read everything that is visible.
void recurrent(const OpArgs<double>& args) {
  const Config& config = config_of(args.config);
  Arena arena;
  const int64_t kv_heads = config.num_kv_heads;
  const int64_t slots = config.sinks + config.window;
  const Heads<const double> q =
      rotated(config, args.sequences, args.positions, config.num_heads, args.inputs[0], arena);
  const Heads<const double> k =
      rotated(config, args.sequences, args.positions, kv_heads, args.inputs[1], arena);
  std::vector<const double*> keys;
  std::vector<const double*> values;
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    std::vector<double> own_k(static_cast<size_t>(slots * kv_heads * config.key_dim));
    std::vector<double> own_v(static_cast<size_t>(slots * kv_heads * config.value_dim));
    double* k_slots = args.state ? args.state.tensors[0][i] : own_k.data();
    double* v_slots = args.state ? args.state.tensors[1][i] : own_v.data();
    for (int64_t r = 0; r < args.sequences.length[i]; ++r) {
      const int64_t row = args.sequences.begin[i] + r;
      const int64_t t = position_of(args.positions, i) + r;
      for (int64_t h = 0; h < config.num_heads; ++h) {
        const int64_t kv = h / (config.num_heads / kv_heads);
        const auto key = [&](int64_t slot) {
          return k_slots + (slot * kv_heads + kv) * config.key_dim;
        };
        const auto value = [&](int64_t slot) {
          return v_slots + (slot * kv_heads + kv) * config.value_dim;
        };
        const auto write = [&](int64_t slot) {
          std::copy_n(k.at(row, kv), config.key_dim, key(slot));
          std::copy_n(args.inputs[2].at(row, kv), config.value_dim, value(slot));
        };
        write(config.sinks + t % config.window);
        if (t < config.sinks) write(t);
        keys.clear();
        values.clear();
        for (int64_t j = 0; j <= t; ++j) {
          if (j == config.sinks) j = std::max(j, t - config.window + 1);
          const bool in_window = j > t - config.window;
          if (!in_window && j >= config.sinks) continue;
          const int64_t slot = in_window ? config.sinks + j % config.window : j;
          keys.push_back(key(slot));
          values.push_back(value(slot));
        }
        attend_reference(config, q.at(row, h), keys, values, args.out.at(row, h));
      }
    }
  }
}

void attend(const OpArgs<float>& args) noexcept {
  const Config& config = config_of(args.config);
  slot_attention(config, Layout(config), args);
}

void backward(const OpBackwardArgs& args) noexcept {
  const Config& config = config_of(args.forward.config);
  slot_attention_backward(config, Layout(config), args);
}

double visible_keys(const Config& config, int64_t position) {
  return static_cast<double>(std::min(position + 1, config.sinks + config.window));
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

/// The first tokens are written to two slots.
StateTraffic step_traffic(const MixerConfig& base, int64_t tokens) {
  const Config& config = config_of(&base);
  StateTraffic traffic = attention_traffic(config, visible_keys(config, tokens));
  if (tokens < config.sinks) traffic.written *= 2;
  return traffic;
}

LayerProgram layer(const MixerConfig& config) {
  return projected_layer(op_shape(config), state_specs(config), config_of(&config).model_dim);
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32, "window": 24, "sinks": 4})",
          R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "window": 1})",
          R"({"num_heads": 6, "num_kv_heads": 2, "key_dim": 17, "value_dim": 8, "window": 70,
              "sinks": 9})",
          R"({"num_heads": 4, "num_kv_heads": 1, "key_dim": 8, "window": 2, "sinks": 5,
              "rotary_dim": 6, "scale": 0.5})",
          R"({"num_heads": 1, "key_dim": 9, "value_dim": 4, "window": 200, "sinks": 1})"};
}

}  // namespace

const MixerDef kDef{
    .name = "sliding_window_attention",
    .summary = "softmax attention over the last tokens and the first few (attention sinks)",
    .recurrence = "o_t = softmax over {j <= t: j < sinks or t - j < window} of (scale q_t.k_j) v_j",
    .source = "Xiao 2023, arXiv 2309.17453, section 3.2; window: Child 2019, arXiv 1904.10509",
    .state_formula = "4*(sinks + window)*Hkv*(K + V)",
    .bounded_state = true,
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

}  // namespace tarn::mixers::sliding_window_attention
