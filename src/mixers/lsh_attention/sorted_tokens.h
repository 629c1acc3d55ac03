#pragma once

#include "mixers/lsh_attention/lsh_attention.h"

namespace tarn::mixers::lsh_attention {

/// Per sequence all tokens so far: normalised keys, values and buckets, in the caches or in the
/// arena.
struct Tokens {
  int64_t seen = 0;    ///< before the call
  int64_t length = 0;  ///< of the call
  float* k = nullptr;  ///< [seen + length, H, K]
  float* v = nullptr;
  float* bucket = nullptr;  ///< [seen + length, rounds, H]
  int64_t count() const { return seen + length; }
};

/// Keys, values and buckets of every sequence; with `append` those of the call's tokens are computed
/// and written (a gradient finds them in the caches).
Tokens* find_tokens(const OpArgs<float>& args, bool append);

/// The tokens of one sequence and head in the order that one round reads them in: bucket by bucket,
/// oldest first.
struct Order {
  int64_t entries = 0;
  int64_t queries = 0;
  int64_t blocks = 0;
  int32_t* token = nullptr;      ///< [entries] position in the sequence
  int32_t* query = nullptr;      ///< [queries] entry of each query, rising
  int32_t* from = nullptr;       ///< [queries] a query sees entries [from, its own)
  int32_t* block_end = nullptr;  ///< [blocks] queries of one bucket, at most 64
};

/// One round of a call: orders of all sequences and heads, and rows in that order. Row e of sequence
/// i and head h is token order(i, h).token[e] (keys, values) or row query[e] of it.
class SortedRound final : public kernels::KeyPattern {
 public:
  /// Takes its memory from args.arena.
  SortedRound(const OpArgs<float>& args, const Tokens* tokens, int64_t round);

  kernels::SoftmaxProblem problem() const;
  const Order& order(int64_t sequence, int64_t head) const {
    return orders_[sequence * config_.num_heads + head];
  }
  /// Position in the call of query `index`.
  int64_t query_row(int64_t sequence, int64_t head, int64_t index) const {
    const Order& one = order(sequence, head);
    return one.token[one.query[index]] - tokens_[sequence].seen;
  }
  /// First row of each sequence among sorted queries and among sorted keys.
  int64_t query_begin(int64_t sequence) const { return query_begin_[sequence]; }
  int64_t key_begin(int64_t sequence) const { return key_begin_[sequence]; }
  int64_t query_rows() const { return query_rows_; }
  int64_t key_rows() const { return key_rows_; }

  /// `from` [rows, H, dim] of the call, in the order of queries.
  kernels::Heads<const float> sorted_queries(kernels::Heads<const float> from, int64_t dim) const;
  /// Keys or values of all tokens in order.
  kernels::KeyRows<const float> sorted_keys() const;
  kernels::KeyRows<const float> sorted_values() const;

  int64_t num_blocks(const kernels::SoftmaxProblem& problem, int64_t sequence) const final;
  void describe(const kernels::SoftmaxProblem& problem, int64_t sequence, int64_t head,
                int64_t index, kernels::QueryBlock& block) const final;
  bool same_for_all_heads() const final { return false; }

 private:
  void sort(int64_t sequence, int64_t head, int32_t* places, Order& order) const;
  void search_back(int64_t sequence, int64_t head, Order& order) const;
  kernels::KeyRows<const float> sorted_rows(float* const Tokens::*from, int64_t dim) const;

  const OpArgs<float>& args_;
  const Config& config_;
  const Tokens* tokens_;
  int64_t round_ = 0;
  Order* orders_ = nullptr;
  int64_t* query_begin_ = nullptr;
  int64_t* key_begin_ = nullptr;
  int64_t* key_count_ = nullptr;
  int64_t query_rows_ = 0;
  int64_t key_rows_ = 0;
};

}  // namespace tarn::mixers::lsh_attention
