#pragma once

#include <vector>

#include "mixers/common/attention_call.h"

namespace tarn::mixers::lsh_attention {

/// The config object of a layer (keys as in README.md), checked.
struct Config final : AttentionConfig {
  int64_t rounds = 0;
  int64_t num_buckets = 0;
  int64_t chunk = 0;  ///< keys of its bucket that a query sees per round
  uint64_t seed = 0;
  std::vector<float> rotations;  ///< [rounds, K, num_buckets/2], drawn from `seed`
};

inline const Config& config_of(const MixerConfig* config) {
  return static_cast<const Config&>(*config);
}

/// argmax of [x·R ; −x·R]: the buckets of rows in one round (kernels/hash.h), the same in all forms.
void buckets_of(const Config& config, int64_t round, int64_t rows, kernels::Rows<const float> x,
                int32_t* bucket) noexcept;

/// Length that a key is divided by.
template <class T>
T key_norm(int64_t size, const T* x);

/// Shared queries and keys: k_j = q_j / ‖q_j‖. Per round r and head a query attends to the latest
/// `chunk` earlier tokens of its own bucket:
///   o_t = Σ_r Σ_{j ∈ P_r(t)} exp(s·q_t·k_j) v_j / Σ_r Σ_{j ∈ P_r(t)} exp(s·q_t·k_j),
/// and o_t = v_t when there is no such token in any round.
/// Shapes: q [rows, H, K], v [rows, H, V]; out [rows, H, V]; state k [T, H, K], v [T, H, V], bucket
/// [T, rounds, H] (in/out).
void recurrent_forward(const OpArgs<double>& args);

/// The same in f32: tokens sorted by bucket, blocks of queries of one bucket against its keys.
/// O(T·rounds·chunk·(K + V)) per head; scratch: the sorted tokens of one round, of one sequence or of
/// some 1,024 rows. A sequence of one token looks for its bucket from the latest token backwards.
void chunk_forward(const OpArgs<float>& args) noexcept;

/// Gradient of chunk_forward; buckets are constants.
void chunk_backward(const OpBackwardArgs& args) noexcept;

}  // namespace tarn::mixers::lsh_attention
