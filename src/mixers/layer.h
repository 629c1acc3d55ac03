#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/gemm.h"
#include "mixers/mixer.h"

namespace tarn::mixers {

/// What the model sees of a mechanism: a layer from [rows, model_dim] to [rows, model_dim].

std::vector<ParamSpec> layer_params(const MixerDef& def, const MixerConfig& config);
/// The operator's state tensors, then those of convolutions and shifts; empty when not causal.
std::vector<StateSpec> layer_states(const MixerDef& def, const MixerConfig& config);

/// Values per row that a layer receives from the latest earlier layer that hands rows on, and that it
/// hands on itself, besides its input and output; 0: none.
struct LayerRows {
  int64_t received = 0;
  int64_t handed_on = 0;
};
LayerRows layer_rows(const MixerDef& def, const MixerConfig& config);

/// Floats of scratch per row of a call: all values between the layer's input and its output.
int64_t layer_scratch_columns(const MixerDef& def, const MixerConfig& config);

/// A layer's weights, packed for the runtime.
struct MixerWeights {
  virtual ~MixerWeights() = default;
  virtual int64_t size_bytes() const = 0;  ///< memory held
};

/// Packs a layer's parameters (f32, order of layer_params); matrices as `options` say.
std::unique_ptr<MixerWeights> prepare_layer(const MixerDef& def, const MixerConfig& config,
                                            std::span<const float* const> params,
                                            const kernels::PackOptions& options);

/// kParallel: the operator's parallel form, or chunks where a mechanism has no other way to take whole
/// sequences.
enum class Form : uint8_t { kAuto, kParallel, kChunk, kStep };

/// One call of a layer. x and out are [rows, model_dim] dense; out is overwritten.
struct LayerArgs {
  const MixerConfig* config = nullptr;
  const MixerWeights* weights = nullptr;
  kernels::Sequences sequences;  ///< packed: begin[0] = 0, begin[i+1] = begin[i] + length[i]
  const int64_t* positions = nullptr;
  const float* x = nullptr;
  float* out = nullptr;
  const float* received = nullptr;  ///< [rows, LayerRows::received]
  float* handed_on = nullptr;  ///< [rows, LayerRows::handed_on]; may be `received`; null: unwanted
  StateRefs<float> state;      ///< in/out; empty: whole sequences from the initial state
  Form form = Form::kAuto;  ///< kAuto: step when every length is 1 and there is state, else chunk;
                            ///< parallel when not causal
  ThreadPool* pool = nullptr;
  Arena* arena = nullptr;
};

/// One thread's steps go a dozen sequences at a time: their states are fetched while the products
/// that make their inputs run, and stay in the second-level cache until the operator takes them.
/// Scratch: rows · layer_scratch_columns floats from the arena.
void run_layer(const MixerDef& def, const LayerArgs& args) noexcept;

}  // namespace tarn::mixers
