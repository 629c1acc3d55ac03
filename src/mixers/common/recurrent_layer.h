#pragma once

#include <string>
#include <vector>

#include "kernels/recurrent_cell.h"
#include "mixers/mixer.h"

namespace tarn::mixers {

/// The config of every mechanism whose operator is kernels/recurrent_cell.h.
struct RecurrentConfig final : MixerConfig {
  kernels::RecurrentCell cell = kernels::RecurrentCell::kLstm;
  int64_t model_dim = 0;
  int64_t hidden_dim = 0;  ///< E
  /// A second cell reads every sequence from its end; then there is no state.
  bool bidirectional = false;

  int64_t num_gates() const { return cell == kernels::RecurrentCell::kLstm ? 4 : 3; }
  int64_t gates_dim() const { return num_gates() * hidden_dim; }
  int64_t directions() const { return bidirectional ? 2 : 1; }
};

/// {"hidden_dim": E, "bidirectional": false}.
Result<std::shared_ptr<const MixerConfig>> read_recurrent(kernels::RecurrentCell cell,
                                                          JsonReader& reader, int64_t model_dim);

/// Per direction an input `gates` [gates·E], and recurrent.weight [gates·E, E] and recurrent.bias;
/// out [directions·E]. Names of the second direction end in "_reverse" before the dot.
OpShape recurrent_shape(const MixerConfig& config);
/// `h` [E] and, of the LSTM, `c` [E], from zero; none when bidirectional.
std::vector<StateSpec> recurrent_states(const MixerConfig& config);

/// The forms of MixerDef.
void recurrent_loop(const OpArgs<double>& args);
void recurrent_chunk(const OpArgs<float>& args) noexcept;  ///< also the parallel form
void recurrent_step(const OpArgs<float>& args) noexcept;
void recurrent_backward(const OpBackwardArgs& args) noexcept;
const void* recurrent_prepare(const MixerConfig& config, std::span<const float* const> params,
                              DType format, ThreadPool* pool, Arena& arena) noexcept;

/// Per token and direction 2·gates·E·E forward, twice that backward.
double recurrent_flops(const MixerConfig& config, OpPass pass, int64_t tokens);

/// in (and in_reverse), the cell, out; all with bias.
LayerProgram recurrent_layer(const MixerConfig& config);

}  // namespace tarn::mixers
