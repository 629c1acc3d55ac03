#pragma once

#include "mixers/common/attention_call.h"

namespace tarn::mixers {

/// Softmax attention whose state is a fixed number of slots, tensors `k` [slots, Hkv, K] and `v`
/// [slots, Hkv, V]. A call of several tokens reads a list of rows: slots as they were, its own
/// tokens, and rows computed from these; afterwards each slot holds one of the rows or what it had.
/// A call of one token writes its slot and reads the slots themselves. The gradient follows from
/// the list of rows.
struct SlotLayout {
  virtual ~SlotLayout() = default;

  virtual int64_t num_slots() const = 0;

  /// A call of `tokens` tokens of a sequence after `seen` others.
  struct Call {
    int64_t seen = 0;
    int64_t tokens = 0;
  };
  /// Sources of a row besides the call's tokens (≥ 0) and the slots (~slot).
  static constexpr int32_t kComputed = INT32_MAX;

  /// At least as many as plan() returns.
  virtual int64_t max_rows(const Call& call) const = 0;
  /// source[row]: where it comes from; held[slot]: the row that it holds afterwards, or −1 when it
  /// keeps what it has. Returns the number of rows.
  virtual int64_t plan(const Call& call, int32_t* source, int32_t* held) const = 0;
  /// What queries [first, first + count) of a call see of its rows.
  virtual void see_rows(const Call& call, kernels::QueryBlock& block) const = 0;

  /// The slot of the token at `position`.
  virtual int64_t slot_of(int64_t position) const = 0;
  /// Further slots that the token at `position` is written to; −1: none.
  virtual int64_t second_slot_of(int64_t) const { return -1; }
  /// What the query at `position` sees of the slots.
  virtual void see_slots(int64_t position, kernels::QueryBlock& block) const = 0;

  /// Keys or values of one sequence for functions that compute some of them.
  struct Rows {
    bool keys = true;
    int64_t heads = 0;
    int64_t dim = 0;
    float* data = nullptr;  ///< [rows, heads, dim]
    const float* at(int64_t row) const { return data + row * heads * dim; }
    float* at(int64_t row) { return data + row * heads * dim; }
  };
  using Params = std::span<const float* const>;
  /// Fills the rows that are kComputed.
  virtual void compute(const Call&, Params, Rows&) const {}
  /// From the gradients of computed rows to those of the rows they come from and of the parameters
  /// (both added to).
  virtual void compute_gradient(const Call&, Params, Rows& /*rows*/, Rows& /*drows*/,
                                std::span<float* const> /*dparams*/) const {}
  /// After the token at `position` was written to its slot: computes further slots from slots.
  virtual void compute_slots(int64_t /*position*/, Params, Rows& /*slots*/) const {}
};

/// `k` and `v` as above.
std::vector<StateSpec> slot_specs(const AttentionConfig& config, int64_t slots);

/// Cost: that of the pairs that `layout` shows; scratch: the rows' keys and values.
void slot_attention(const AttentionConfig& config, const SlotLayout& layout,
                    const OpArgs<float>& args) noexcept;
void slot_attention_backward(const AttentionConfig& config, const SlotLayout& layout,
                             const OpBackwardArgs& args) noexcept;

/// Sets from and to of a run whose entries are the tokens at positions [first, first + count): query
/// r of the block, at position `query` + r, sees [max(first, query + r + 1 − window), query + r].
void see_window(int64_t first, int64_t query, int64_t window, int64_t queries,
                kernels::KeyRun& run);

}  // namespace tarn::mixers
