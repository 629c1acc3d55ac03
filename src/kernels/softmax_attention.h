#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/layout.h"

namespace tarn::kernels {

struct KeyPattern;

/// Softmax attention with grouped queries: query head h reads key/value head
/// h / (num_heads / num_kv_heads).
///   o_t = Σ_j p_tj v_j,  p_t = softmax_j(scale · q_t·k_j) over the keys that t may see.
/// Causal: the last query is aligned with the last key, so query t of n sees the first
/// (num_keys − n + t + 1) keys. A query that sees no key gives zeros.
/// With a pattern, which keys a query sees is the pattern's choice; `causal` means nothing then.
struct SoftmaxProblem {
  Sequences queries;
  Sequences keys;  ///< rows of k and v; the same as `queries` when nothing is cached
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  double scale = 1.0;
  bool causal = true;
  ThreadPool* pool = nullptr;
  const KeyPattern* pattern = nullptr;
  /// Forward: `out` and `log_sum` hold the result of other keys and receive that of both together
  /// (a sequence of one query must have all its keys in one call). Backward: adds to dq, dk and dv.
  bool accumulate = false;
};

/// Queries that go through the kernels together: at most this many.
inline constexpr int64_t kMaxQueryBlock = 64;
/// Runs of keys per block of queries: at most this many.
inline constexpr int64_t kMaxKeyRuns = 20;

/// Rows first, first + step, … of a sequence's keys, `count` of them; query r of the block sees
/// entries [from[r], to[r]) of the run.
struct KeyRun {
  int64_t first = 0;
  int64_t step = 1;
  int64_t count = 0;
  int32_t from[kMaxQueryBlock];
  int32_t to[kMaxQueryBlock];
};

/// Queries first, first + step, … of a sequence and what they see.
struct QueryBlock {
  int64_t first = 0;
  int64_t step = 1;
  int64_t count = 0;
  int64_t num_runs = 0;
  KeyRun runs[kMaxKeyRuns];

  /// One more run; the caller fills from and to of all `count` queries.
  KeyRun& add_run(int64_t first_row, int64_t row_step, int64_t rows) {
    KeyRun& run = runs[num_runs++];
    run.first = first_row;
    run.step = row_step;
    run.count = rows;
    return run;
  }
};

/// Which keys each query sees: every query belongs to one block (or to none: then its rows are left
/// alone), and no key is in two runs of its block. Cost follows the runs, not the number of keys.
struct KeyPattern {
  virtual ~KeyPattern() = default;
  virtual int64_t num_blocks(const SoftmaxProblem& problem, int64_t sequence) const = 0;
  /// Block `index` of a sequence for one query head; `block` arrives without runs.
  virtual void describe(const SoftmaxProblem& problem, int64_t sequence, int64_t head,
                        int64_t index, QueryBlock& block) const = 0;
  /// Whether runs depend on the head.
  virtual bool same_for_all_heads() const { return true; }
};

/// Per-sequence keys and values; for cached attention each sequence has storage of its own.
/// When `data` is non-null, sequence i's row j, head h is at data[i] + j·row_stride +
/// h·head_stride; otherwise rows come from `shared` at keys.begin[i] + j.
template <class T>
struct KeyRows {
  T* const* data = nullptr;
  Heads<T> shared;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  T* at(const Sequences& keys, int64_t sequence, int64_t row, int64_t head) const {
    return data != nullptr ? data[sequence] + row * row_stride + head * head_stride
                           : shared.at(keys.begin[sequence] + row, head);
  }
  int64_t stride() const { return data != nullptr ? row_stride : shared.row_stride; }
};

/// Blocked online softmax: no T×T matrix. `log_sum` [query rows, num_heads] (nullable) receives
/// log Σ exp for the backward pass. One query per sequence takes a path that reads the cache once.
/// Same bits for a query whatever its batch mates and thread count.
/// Cost: 2·T²·(K+V) flops per head (half when causal), 2·(K+V) per pair of query and key of a
/// pattern; scratch O(block²) per thread.
void softmax_forward(const SoftmaxProblem& problem, Heads<const float> q, KeyRows<const float> k,
                     KeyRows<const float> v, Heads<float> out, float* log_sum,
                     Arena& arena) noexcept;

/// Gradient; recomputes scores block by block. dk and dv are overwritten for all key rows.
void softmax_backward(const SoftmaxProblem& problem, Heads<const float> q, KeyRows<const float> k,
                      KeyRows<const float> v, Heads<const float> out, const float* log_sum,
                      Heads<const float> dout, Heads<float> dq, KeyRows<float> dk,
                      KeyRows<float> dv, Arena& arena) noexcept;

/// Rotary position embedding, in place on the first `rotary_dim` channels (half-split pairs
/// (i, i + rotary_dim/2), angle = position · base^(−2i/rotary_dim)); row r of sequence i has
/// position first_position[i] + r. `inverse` rotates back (the gradient). Angles in double.
void rotary(const Sequences& sequences, const int64_t* first_position, int64_t num_heads,
            int64_t rotary_dim, double base, bool inverse, Heads<float> x) noexcept;

namespace reference {
/// The definition in double precision, one query at a time with the full row of weights.
void softmax_attention(const SoftmaxProblem& problem, Heads<const double> q,
                       KeyRows<const double> k, KeyRows<const double> v, Heads<double> out);
void rotary(const Sequences& sequences, const int64_t* first_position, int64_t num_heads,
            int64_t rotary_dim, double base, bool inverse, Heads<double> x);
}  // namespace reference

}  // namespace tarn::kernels
