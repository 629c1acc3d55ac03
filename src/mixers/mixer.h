#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/json.h"
#include "base/result.h"
#include "base/threads.h"
#include "kernels/layout.h"

namespace tarn::mixers {

/// How a parameter starts. `scale` is the standard deviation, the bound or the value.
struct Init {
  enum class Kind : uint8_t {
    kConstant,
    kNormal,
    kUniform,
    kGridSinusoid,
    kOrdinal,
    kMixtureBias,
    kLogUniform,  ///< log u, u uniform in [scale, high]
    kStepSize,    ///< b with softplus(b) = Δ, log Δ uniform in [log scale, log high]
    kRamp,  ///< scale at the first of `period` columns, high at the last, a straight line between
    kLogRamp,     ///< log of that
    kIdentity,    ///< 1 where row and column of the last two dimensions agree, else 0
    kInterval,    ///< uniform in [scale, high]
    kFormula,     ///< formula(i, arguments) is value i
    kOrthogonal,  ///< scale · a random matrix whose rows (columns, if it is higher than wide) are
                  ///< orthonormal
  };
  Kind kind = Kind::kConstant;
  float scale = 0.0f;
  /// kGridSinusoid: row length; kOrdinal: levels; kMixtureBias: components (model/parameters.h).
  int64_t period = 0;
  float high = 0.0f;
  double (*formula)(int64_t index, const std::array<double, 3>& arguments) = nullptr;
  std::array<double, 3> arguments = {};
};

/// One row of a parameter table: what training creates, the file stores and the runtime reads.
struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  Init init;
  bool weight_decay = true;  ///< false for biases, norms and embeddings
  /// Heights of the matrices that are stacked in this one (queries, keys, …); empty: one matrix.
  std::vector<int64_t> row_blocks = {};
};

/// One named tensor of a layer's state. Allocation, reset, clone, rollback, snapshot and restore
/// are derived from this table alone.
struct StateSpec {
  std::string name;
  std::vector<int64_t> shape;  ///< of the whole tensor, or of one token's entry when `per_token`
  float initial_value = 0.0f;
  bool per_token = false;  ///< grows by one entry per token (a KV cache); otherwise fixed
  int64_t symbols = 0;     ///< > 0: every element is a whole number in [0, symbols)
};

/// What a mechanism makes of its config object; opaque outside its folder.
struct MixerConfig {
  virtual ~MixerConfig() = default;
};

/// A row-wise input of the mechanism's operator (q, k, v, gates …): [rows, heads, dim].
struct OpInput {
  /// For random tests and benchmarks. kUnitNorm: each head's row has length 1.
  enum class Range : uint8_t { kNormal, kLogDecay, kUnitInterval, kUnitNorm };
  std::string name;
  int64_t heads = 0;
  int64_t dim = 0;
  Range range = Range::kNormal;
};

/// The operator's interface: a config's inputs and output.
struct OpShape {
  std::vector<OpInput> inputs;
  int64_t out_heads = 0;
  int64_t out_dim = 0;
  int64_t saved_per_row = 0;           ///< f32 values per row that forward keeps for backward
  std::vector<ParamSpec> params = {};  ///< parameters that the recurrence itself reads
};

/// Pointers to the state of each sequence: tensors[j][i] is state tensor j (order of the state
/// table) of sequence i. `tensors` empty: start from the initial value, return nothing.
/// Per-token tensors have room for positions[i] + length[i] entries.
template <class T>
struct StateRefs {
  std::span<T* const* const> tensors;
  explicit operator bool() const { return !tensors.empty(); }
};

/// One call of the operator. `inputs` are in the order of OpShape. The state's numbers may be wider
/// than those of the rows.
template <class T, class StateT = T>
struct OpArgs {
  const MixerConfig* config = nullptr;
  kernels::Sequences sequences;
  const int64_t* positions = nullptr;  ///< tokens each sequence has seen before; null: none
  std::span<const kernels::Heads<const T>> inputs;
  std::span<const T* const> params;  ///< in the order of OpShape
  const void* prepared = nullptr;    ///< what MixerDef::prepare made of them; null: not made yet
  kernels::Heads<T> out;
  float* saved = nullptr;   ///< [rows, saved_per_row], or null when no backward follows
  StateRefs<StateT> state;  ///< in/out
  int64_t chunk_size = 0;   ///< 0: the mechanism's choice
  ThreadPool* pool = nullptr;
  Arena* arena = nullptr;
};

/// Rows in bf16 (their bits), state in f32.
using OpArgsBf16 = OpArgs<uint16_t, float>;

/// Gradient of one call. `state` in `forward` is the state BEFORE the call (not modified);
/// per-token tensors already hold the new tokens' entries.
struct OpBackwardArgs {
  OpArgs<float> forward;  ///< with `out` and `saved` as forward wrote them
  kernels::Heads<const float> dout;
  StateRefs<const float> dfinal;  ///< gradient arriving at the final state; empty: zeros
  std::span<const kernels::Heads<float>> dinputs;
  std::span<float* const> dparams;  ///< the parameters' gradients are added here
  StateRefs<float> dinitial;  ///< receives the gradient of the initial state; empty: not wanted
};

/// The passes of an operator whose work is counted.
enum class OpPass : uint8_t { kForward, kBackward, kStep };

/// Values of one sequence's state that a step reads, and those that it writes.
struct StateTraffic {
  double read = 0;
  double written = 0;
};

struct LayerProgram;  // mixers/layer_program.h

/// Everything the rest of the program knows about a mechanism: data, not a class tree. A null
/// pointer means that there is no such form.
struct MixerDef {
  const char* name;           ///< folder = namespace = config string; never renamed
  const char* summary;        ///< one line for `tarn mixers`
  const char* recurrence;     ///< the recurrence in one line
  const char* source;         ///< paper and equation
  const char* state_formula;  ///< state bytes in terms of the config, e.g. "4·H·(K·V + K)"
  bool bounded_state;         ///< state size does not depend on the number of tokens

  /// Reads the config object ("name" already removed) to its finish(); asks for every key even when
  /// others are wrong, so that the reader knows them all (mixers/config_keys.h).
  Result<std::shared_ptr<const MixerConfig>> (*read_config)(JsonReader& reader, int64_t model_dim);
  /// The config of a JSON object; unknown keys are errors that name the key.
  Result<std::shared_ptr<const MixerConfig>> parse_config(const Json& json, int64_t model_dim,
                                                          const std::string& where) const {
    JsonReader reader(json, where);
    return read_config(reader, model_dim);
  }
  /// The operator's state; empty when not causal.
  std::vector<StateSpec> (*state_specs)(const MixerConfig& config);
  OpShape (*op_shape)(const MixerConfig& config);

  // The operator's forms. A mechanism may have no operator: its layer is all there is, its operator
  // has no inputs and no state, all of these are null, and `flops` is 0.

  /// The token loop in double precision: ground truth.
  void (*recurrent)(const OpArgs<double>& args);
  void (*parallel)(const OpArgs<float>& args) noexcept;
  void (*chunk)(const OpArgs<float>& args) noexcept;
  void (*step)(const OpArgs<float>& args) noexcept;
  void (*backward)(const OpBackwardArgs& args) noexcept;
  void (*chunk_bf16)(const OpArgsBf16& args) noexcept = nullptr;
  /// Floating-point operations of one sequence, by formula: kForward and kBackward of `tokens` tokens
  /// from the initial state, kStep of one token after `tokens`. A multiply-add counts as two; what
  /// grows more slowly than the products with the state (feature maps, sums, divisions,
  /// exponentials) is not counted. Benchmarks compare times with the machine's limits on it.
  double (*flops)(const MixerConfig& config, OpPass pass, int64_t tokens);
  /// What a step after `tokens` tokens reads and writes of the state. Null: tensors of a fixed size in
  /// whole, of those that grow all entries read and one written.
  StateTraffic (*step_traffic)(const MixerConfig& config, int64_t tokens) = nullptr;
  /// The chunk form's bits do not depend on how a sequence is cut into calls at multiples of so many
  /// tokens, a power of two; 0: they always do, and prompts are read in the same pieces everywhere.
  int64_t cut_quantum = 32;
  /// What the forward forms in f32 make of the operator's parameters, in memory of `arena`: the
  /// runtime makes it once and hands it to them, other callers leave it to the forms. kBF16: matrices
  /// may be kept in bf16 and the operands of their products rounded to it. Null: nothing.
  const void* (*prepare)(const MixerConfig& config, std::span<const float* const> params,
                         DType format, ThreadPool* pool, Arena& arena) noexcept = nullptr;
  /// Whether the forward forms, once they have that, read no parameter; the runtime then keeps none.
  bool prepared_is_all = false;

  /// What surrounds the operator: projections, convolutions, gates, norms. Its parameters, its state,
  /// its forms and its gradient follow from it.
  LayerProgram (*layer)(const MixerConfig& config);

  /// Small configs (JSON objects) that cover the mechanism's options, awkward shapes included;
  /// conformance tests run them all. The first is also the benchmarks' base.
  std::vector<std::string> (*example_configs)();
};

/// Whether there is an operator, which operator benchmarks and checks could run.
inline bool has_operator(const MixerDef& mixer) { return mixer.recurrent != nullptr; }

/// Whether layers of the mechanism can be trained.
inline bool has_gradient(const MixerDef& mixer) {
  return mixer.backward != nullptr || !has_operator(mixer);
}

/// The form that takes whole sequences: of configs that are not causal there is only the parallel
/// one, and they have no state.
inline auto whole_form(const MixerDef& mixer, const MixerConfig& config) {
  return mixer.state_specs(config).empty() ? mixer.parallel : mixer.chunk;
}

/// All mechanisms, in the order of mixers.def.
std::span<const MixerDef* const> all_mixers();
/// The mechanism of that name, or an error that lists the known names.
Result<const MixerDef*> find_mixer(const std::string& name, const std::string& where);

/// A mechanism with its config.
struct ConfiguredMixer {
  const MixerDef* def = nullptr;
  std::shared_ptr<const MixerConfig> config;
};
/// Reads {"name": …, keys of that mechanism}.
Result<ConfiguredMixer> parse_mixer(const Json& json, int64_t model_dim, const std::string& where);

}  // namespace tarn::mixers
