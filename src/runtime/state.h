#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"
#include "mixers/mixer.h"
#include "model/model.h"

namespace tarn::runtime {

/// An error for models that cannot work token by token: those over frames, and those with a layer
/// without a state, for such a layer is not causal; the first one is named.
Status check_causal(const model::Model& model);
/// The second of these alone, for those who read frames.
Status check_layers_causal(const model::Model& model);

/// The state of one sequence over all layers of a model, derived from Model::state_specs() alone.
/// Fixed tensors lie in one block; per-token tensors grow by doubling. Move-only: a copy is spelled
/// `clone()`. Threads: one owner at a time.
class SequenceState {
 public:
  /// Allocated and reset. `model` is kept alive.
  explicit SequenceState(std::shared_ptr<const model::Model> model);
  SequenceState(SequenceState&&) noexcept = default;
  SequenceState& operator=(SequenceState&&) noexcept = default;

  /// Back to the initial values at position 0; keeps the memory.
  void reset();
  /// A deep copy. Cost: used_bytes() of memory traffic.
  SequenceState clone() const;
  /// Becomes a copy of `other`, of the same model; allocates only where its entries need more room.
  void copy_from(const SequenceState& other);
  /// Makes room for `tokens` entries of every per-token tensor. Errors: kResource when that is more
  /// than the model's max_tokens (where it has one) or than kMaxTokens. Amortised O(1) per token.
  Status reserve(int64_t tokens);

  /// Inputs that the state has seen.
  int64_t position() const { return position_; }
  /// Sets the count after a forward pass (or a restore) wrote that many entries; within capacity.
  void set_position(int64_t position);
  /// Entries that the per-token tensors have room for.
  int64_t capacity_tokens() const { return capacity_tokens_; }

  int64_t fixed_bytes() const { return fixed_bytes_; }          ///< same at every position
  int64_t bytes_per_token() const { return bytes_per_token_; }  ///< 0 for bounded states
  /// Bytes that hold information: fixed part plus position() per-token entries.
  int64_t used_bytes() const { return fixed_bytes_ + position_ * bytes_per_token_; }
  /// used_bytes() of a sequence at `position`.
  static int64_t used_bytes_at(const model::Model& model, int64_t position);

  const model::Model& model() const { return *model_; }

  /// One tensor: what it is and where it lies.
  struct Tensor {
    int64_t layer = 0;
    const mixers::StateSpec* spec = nullptr;
    int64_t entry_elements = 0;  ///< of the whole tensor, or of one token's entry
  };
  /// All tensors, layer by layer in the order of the state tables.
  std::span<const Tensor> tensors() const { return tensors_; }
  float* data(size_t tensor);
  const float* data(size_t tensor) const;
  /// Elements of tensor `tensor` that hold information at position().
  int64_t used_elements(size_t tensor) const;

  static constexpr int64_t kMaxTokens = int64_t{1} << 40;

 private:
  struct Slot {
    int64_t offset = 0;     // in fixed_, of a fixed tensor
    Buffer<float> growing;  // of a per-token tensor
  };

  std::shared_ptr<const model::Model> model_;
  std::vector<Tensor> tensors_;
  std::vector<Slot> slots_;
  Buffer<float> fixed_;
  int64_t position_ = 0;
  int64_t capacity_tokens_ = 0;
  int64_t fixed_bytes_ = 0;
  int64_t bytes_per_token_ = 0;
};

/// The pointer tables that Model::forward wants for a batch of sequences. Reused from step to step:
/// bind() allocates only when a batch is larger than every one before.
class StateBatch {
 public:
  explicit StateBatch(const model::Model& model);

  /// Points at the states of `sequences`, in that order; valid until one of them grows or moves.
  /// Cost: one pointer per tensor and sequence.
  void bind(std::span<SequenceState* const> sequences);
  model::LayerStates layers() const { return layers_; }

 private:
  std::vector<size_t> tensors_per_layer_;
  size_t num_tensors_ = 0;
  size_t capacity_ = 0;
  std::vector<float*> pointers_;     // [tensor][sequence]
  std::vector<float* const*> rows_;  // [tensor]
  std::vector<mixers::StateRefs<float>> layers_;
};

}  // namespace tarn::runtime
