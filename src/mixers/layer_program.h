#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mixers/mixer.h"

namespace tarn::mixers {

/// Columns of a value: `heads` groups of `dim` channels side by side. Value 0 is the layer's input.
struct Slice {
  size_t value = 0;
  int64_t column = 0;
  int64_t heads = 1;
  int64_t dim = 0;

  int64_t width() const { return heads * dim; }
  /// The part of `count` heads of `size` channels that starts `first` columns further.
  Slice part(int64_t first, int64_t count, int64_t size) const {
    return {value, column + first, count, size};
  }
};

/// What a stage needs to know besides its slices; opaque outside the file of the stage.
struct StageOptions {
  virtual ~StageOptions() = default;
};

struct Stage;

/// One call of a stage. Pointers are to row 0 of the call; rows are packed: sequence i owns rows
/// [begin[i], begin[i] + length[i]), begin[i+1] = begin[i] + length[i].
template <class T>
struct StageArgs {
  const Stage* stage = nullptr;
  kernels::Sequences sequences;
  const int64_t* positions = nullptr;
  int64_t first = 0;  ///< a rowwise stage computes rows [first, end) only
  int64_t end = 0;
  std::span<const kernels::Heads<const T>> inputs;
  kernels::Heads<T> out;
  std::span<const T* const> params;
  StateRefs<T> state;  ///< of this stage alone
  ThreadPool* pool = nullptr;
  Arena* arena = nullptr;
};

struct StageGradientArgs {
  StageArgs<float> forward;  ///< `out` as forward wrote it, `state` as it was before
  kernels::Heads<const float> dout;
  std::span<const kernels::Heads<float>> dinputs;  ///< overwritten
  std::span<float* const> dparams;                 ///< added to
  StateRefs<const float> dfinal;
  StateRefs<float> dinitial;
};

/// A kind of stage: functions of rows. `rowwise` ones see one row at a time and have no state, so
/// rows may be shared by threads in any way.
struct StageDef {
  const char* name;
  bool rowwise;
  void (*forward)(const StageArgs<float>& args) noexcept;
  void (*reference)(const StageArgs<double>& args);
  void (*backward)(const StageGradientArgs& args) noexcept;
};

/// A step of the program. Linear maps and the operator are known to all who run programs; other
/// stages are known by their StageDef.
struct Stage {
  enum class Kind : uint8_t { kLinear, kOperator, kOther };
  Kind kind = Kind::kOther;
  const StageDef* def = nullptr;
  std::vector<Slice> inputs;
  Slice out;
  size_t first_param = 0;
  size_t param_count = 0;  ///< linear: weight, and bias if 2
  size_t first_state = 0;
  size_t state_count = 0;
  std::shared_ptr<const StageOptions> options;
  /// Per input: another stage, or another input of this one, reads some of the same columns.
  std::vector<bool> shared;
};

/// A layer as a straight line of stages over row tensors ("values"). The last stage is a linear map
/// to the model's width: the layer's output. Besides it a layer may hand rows on to later layers of
/// the model, and receive what the latest layer before it handed on.
struct LayerProgram {
  OpShape op;
  std::vector<int64_t> widths;  ///< of the values
  std::vector<Stage> stages;
  std::vector<ParamSpec> params;
  std::vector<StateSpec> states;  ///< the operator's first
  size_t received = 0;            ///< the value that is received; 0: none
  Slice handed_on;                ///< columns of a stage's output; of width 0: none

  int64_t model_dim() const { return widths[0]; }
  int64_t received_width() const { return received != 0 ? widths[received] : 0; }
};

/// Writes a program stage by stage. Names of parameters and states are unique within a layer.
class LayerBuilder {
 public:
  /// `op` and `states` are those of the operator that the layer will contain.
  LayerBuilder(OpShape op, std::vector<StateSpec> states, int64_t model_dim);
  /// A layer without an operator.
  explicit LayerBuilder(int64_t model_dim) : LayerBuilder({}, {}, model_dim) {}

  /// The layer's input.
  Slice x() const { return {0, 0, 1, program_.widths[0]}; }
  /// Rows of `width` values that an earlier layer hands on; at most once.
  Slice receive(int64_t width);
  /// Hands columns of a stage's output on to later layers; at most once.
  void hand_on(const Slice& columns);

  struct LinearOptions {
    bool bias = false;
    std::optional<Init> start = std::nullopt;  ///< none: uniform in ±1/√(input width)
    Init bias_start = {};                      ///< zeros
    std::string weight_name = {};              ///< instead of NAME.weight
    std::string bias_name = {};                ///< instead of NAME.bias
  };
  /// y = W·x (+ b): parameters NAME.weight [Σ blocks, width], NAME.bias. `blocks`: the heights of the
  /// matrices that are stacked in W.
  Slice linear(const std::string& name, const Slice& input, std::vector<int64_t> blocks,
               const LinearOptions& options);
  Slice linear(const std::string& name, const Slice& input, std::vector<int64_t> blocks) {
    return linear(name, input, std::move(blocks), LinearOptions());
  }

  /// The operator on its inputs, in the order of its OpShape; exactly once.
  Slice op(std::vector<Slice> inputs);

  Slice stage(const StageDef& def, std::vector<Slice> inputs, int64_t heads, int64_t dim,
              std::vector<ParamSpec> params = {}, std::vector<StateSpec> states = {},
              std::shared_ptr<const StageOptions> options = nullptr);

  /// A stage of another program on other inputs, its parameters' names behind `prefix`, without its
  /// state: for layers that keep none.
  Slice copy(const LayerProgram& program, const Stage& stage, std::vector<Slice> inputs,
             const std::string& prefix);

  /// The last linear map, to the model's width, and the finished program.
  LayerProgram finish(const std::string& name, const Slice& input, const LinearOptions& options);
  LayerProgram finish(const std::string& name, const Slice& input) {
    return finish(name, input, LinearOptions());
  }

 private:
  Slice add(Stage stage, int64_t heads, int64_t dim);

  LayerProgram program_;
};

/// in-projection of all operator inputs, operator, out-projection, both with bias: the layer of the
/// paper's attention.
LayerProgram projected_layer(OpShape op, std::vector<StateSpec> states, int64_t model_dim);

}  // namespace tarn::mixers
