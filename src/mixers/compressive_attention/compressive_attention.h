#pragma once

#include <algorithm>

#include "mixers/common/slot_attention.h"

namespace tarn::mixers::compressive_attention {

enum class Pooling : uint8_t { kMean, kMax, kConvolution };

/// The config object of a layer (keys as in README.md), checked.
struct Config final : AttentionConfig {
  int64_t window = 0;
  int64_t compression = 0;  ///< tokens per entry of the memory
  int64_t memory = 0;       ///< entries
  Pooling pooling = Pooling::kMean;

  /// Blocks of `compression` tokens that are compressed once a sequence has `tokens` tokens.
  int64_t blocks_after(int64_t tokens) const {
    return std::max<int64_t>(0, tokens - window) / compression;
  }
};

inline const Config& config_of(const MixerConfig* config) {
  return static_cast<const Config&>(*config);
}

/// Attention over a window and a compressed memory: the token loop, in double precision.
/// Recurrence: B_t = ⌊max(0, t + 1 − window)/c⌋ blocks of c = compression tokens are compressed;
///   query t sees tokens [B_t·c, t] and the entries of blocks [B_t − memory, B_t).
/// Shapes: q [rows, H, K], k [rows, Hkv, K], v [rows, Hkv, V]; state k [slots, Hkv, K], v
///   [slots, Hkv, V] (in/out), slots = memory + window + c; with convolution parameters
///   [Hkv, c, K] and [Hkv, c, V].
void recurrent_forward(const OpArgs<double>& args);

/// Slots: the memory, a ring by block; then the tokens, a ring by position. Rows of a call: entries
/// of the memory, those of the blocks that the call completes, the tokens not yet compressed.
struct Layout final : SlotLayout {
  explicit Layout(const Config& c) : config(c) {}
  const Config& config;

  int64_t ring() const { return config.window + config.compression; }
  int64_t num_slots() const final { return config.memory + ring(); }
  int64_t slot_of(int64_t position) const final { return config.memory + position % ring(); }
  int64_t max_rows(const Call& call) const final;
  int64_t plan(const Call& call, int32_t* source, int32_t* held) const final;
  void see_rows(const Call& call, kernels::QueryBlock& block) const final;
  void see_slots(int64_t position, kernels::QueryBlock& block) const final;
  void compute(const Call& call, Params params, Rows& rows) const final;
  void compute_gradient(const Call& call, Params params, Rows& rows, Rows& drows,
                        std::span<float* const> dparams) const final;
  void compute_slots(int64_t position, Params params, Rows& slots) const final;

 private:
  int64_t first_block(const Call& call) const {
    return std::max<int64_t>(0, config.blocks_after(call.seen) - config.memory);
  }
  int64_t row_of_block(const Call& call, int64_t block) const { return block - first_block(call); }
  int64_t row_of_token(const Call& call, int64_t position) const {
    return row_of_block(call, config.blocks_after(call.seen + call.tokens)) + position -
           config.blocks_after(call.seen) * config.compression;
  }
};

}  // namespace tarn::mixers::compressive_attention
