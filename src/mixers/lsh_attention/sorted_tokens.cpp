#include "mixers/lsh_attention/sorted_tokens.h"

#include <algorithm>

namespace tarn::mixers::lsh_attention {

using kernels::Heads;
using kernels::KeyRows;
using kernels::QueryBlock;
using kernels::SoftmaxProblem;

namespace {

void append_tokens(const OpArgs<float>& args, int64_t sequence, int64_t head, const Tokens& all) {
  const Config& config = config_of(args.config);
  const int64_t heads = config.num_heads;
  for (int64_t r = 0; r < all.length; ++r) {
    const int64_t row = args.sequences.begin[sequence] + r;
    const int64_t token = all.seen + r;
    const float* q = args.inputs[0].at(row, head);
    float* k = all.k + (token * heads + head) * config.key_dim;
    const float norm = key_norm(config.key_dim, q);
    for (int64_t c = 0; c < config.key_dim; ++c) k[c] = q[c] / norm;
    std::copy_n(args.inputs[1].at(row, head), config.value_dim,
                all.v + (token * heads + head) * config.value_dim);
  }
  constexpr int64_t kRows = 64;
  int32_t buckets[kRows];
  for (int64_t first = 0; first < all.length; first += kRows) {
    const int64_t rows = std::min(kRows, all.length - first);
    const float* q = args.inputs[0].at(args.sequences.begin[sequence] + first, head);
    float* to = all.bucket + (all.seen + first) * config.rounds * heads + head;
    for (int64_t round = 0; round < config.rounds; ++round) {
      buckets_of(config, round, rows, {q, args.inputs[0].row_stride}, buckets);
      for (int64_t r = 0; r < rows; ++r) {
        to[(r * config.rounds + round) * heads] = static_cast<float>(buckets[r]);
      }
    }
  }
}

}  // namespace

Tokens* find_tokens(const OpArgs<float>& args, bool append) {
  const Config& config = config_of(args.config);
  Arena& arena = *args.arena;
  const int64_t heads = config.num_heads;
  Tokens* tokens = arena.alloc<Tokens>(args.sequences.count);
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    Tokens& all = tokens[i] = Tokens();
    all.seen = args.state ? position_of(args.positions, i) : 0;
    all.length = args.sequences.length[i];
    if (args.state) {
      all.k = args.state.tensors[0][i];
      all.v = args.state.tensors[1][i];
      all.bucket = args.state.tensors[2][i];
    } else {
      all.k = arena.alloc<float>(all.length * heads * config.key_dim);
      all.v = arena.alloc<float>(all.length * heads * config.value_dim);
      all.bucket = arena.alloc<float>(all.length * heads * config.rounds);
    }
  }
  if (append || !args.state) {
    parallel_for(args.pool, args.sequences.count * heads, [&](int64_t begin, int64_t end, int) {
      for (int64_t item = begin; item < end; ++item) {
        append_tokens(args, item / heads, item % heads, tokens[item / heads]);
      }
    });
  }
  return tokens;
}

SortedRound::SortedRound(const OpArgs<float>& args, const Tokens* tokens, int64_t round)
    : args_(args), config_(config_of(args.config)), tokens_(tokens), round_(round) {
  Arena& arena = *args.arena;
  const int64_t count = args.sequences.count;
  const int64_t heads = config_.num_heads;
  orders_ = arena.alloc<Order>(count * heads);
  query_begin_ = arena.alloc<int64_t>(count);
  key_begin_ = arena.alloc<int64_t>(count);
  key_count_ = arena.alloc<int64_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    const Tokens& all = tokens[i];
    query_begin_[i] = query_rows_;
    key_begin_[i] = key_rows_;
    // Steps ask for the same memory at every position.
    key_count_[i] = all.length == 0 ? 0 : all.length == 1 ? config_.chunk + 1 : all.count();
    query_rows_ += all.length;
    key_rows_ += key_count_[i];
    for (int64_t h = 0; h < heads; ++h) {
      Order& order = orders_[i * heads + h] = Order();
      order.token = arena.alloc<int32_t>(key_count_[i]);
      order.query = arena.alloc<int32_t>(all.length);
      order.from = arena.alloc<int32_t>(all.length);
      order.block_end = arena.alloc<int32_t>(all.length);
    }
  }
  const int threads = args.pool == nullptr ? 1 : args.pool->num_threads();
  int32_t* places = arena.alloc<int32_t>(threads * (config_.num_buckets + 1));
  parallel_for(args.pool, count * heads, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t item = begin; item < end; ++item) {
      Order& order = orders_[item];
      if (tokens_[item / heads].length == 1) {
        search_back(item / heads, item % heads, order);
      } else {
        sort(item / heads, item % heads, places + thread * (config_.num_buckets + 1), order);
      }
    }
  });
}

/// The latest tokens of the query's bucket, then the query.
void SortedRound::search_back(int64_t sequence, int64_t head, Order& order) const {
  const Tokens& all = tokens_[sequence];
  const int64_t stride = config_.rounds * config_.num_heads;
  const float* bucket = all.bucket + round_ * config_.num_heads + head;
  const int64_t own = all.count() - 1;
  const float wanted = bucket[own * stride];
  int64_t free = key_count_[sequence] - 1;
  order.token[free] = static_cast<int32_t>(own);
  for (int64_t j = own - 1; j >= 0 && free > 0; --j) {
    if (bucket[j * stride] == wanted) order.token[--free] = static_cast<int32_t>(j);
  }
  order.entries = key_count_[sequence] - free;
  std::copy(order.token + free, order.token + key_count_[sequence], order.token);
  order.queries = order.blocks = order.block_end[0] = 1;
  order.query[0] = static_cast<int32_t>(order.entries - 1);
  order.from[0] = 0;
}

/// All tokens by bucket, a counting sort.
void SortedRound::sort(int64_t sequence, int64_t head, int32_t* places, Order& order) const {
  const Tokens& all = tokens_[sequence];
  const int64_t stride = config_.rounds * config_.num_heads;
  const float* bucket = all.bucket + round_ * config_.num_heads + head;
  std::fill_n(places, config_.num_buckets + 1, 0);
  for (int64_t j = 0; j < all.count(); ++j) ++places[static_cast<int64_t>(bucket[j * stride]) + 1];
  for (int64_t b = 0; b < config_.num_buckets; ++b) places[b + 1] += places[b];
  for (int64_t j = 0; j < all.count(); ++j) {
    order.token[places[static_cast<int64_t>(bucket[j * stride])]++] = static_cast<int32_t>(j);
  }
  order.entries = all.count();
  int64_t bucket_begin = 0;
  int64_t block_begin = 0;
  for (int64_t e = 0; e < order.entries; ++e) {
    const bool new_bucket =
        e == 0 || bucket[order.token[e] * stride] != bucket[order.token[e - 1] * stride];
    if (new_bucket) bucket_begin = e;
    if (order.token[e] < all.seen) continue;
    const int64_t index = order.queries++;
    order.query[index] = static_cast<int32_t>(e);
    order.from[index] = static_cast<int32_t>(std::max(bucket_begin, e - config_.chunk));
    const bool same_block = order.blocks > 0 && index - block_begin < kernels::kMaxQueryBlock &&
                            order.query[block_begin] >= bucket_begin;
    if (!same_block) {
      block_begin = index;
      ++order.blocks;
    }
    order.block_end[order.blocks - 1] = static_cast<int32_t>(index + 1);
  }
}

SoftmaxProblem SortedRound::problem() const {
  const int64_t* lengths = args_.sequences.length;
  SoftmaxProblem problem =
      attention_problem(config_, {args_.sequences.count, query_begin_, lengths},
                        {args_.sequences.count, key_begin_, key_count_}, args_.pool);
  problem.pattern = this;
  return problem;
}

int64_t SortedRound::num_blocks(const SoftmaxProblem&, int64_t sequence) const {
  int64_t blocks = 0;
  for (int64_t h = 0; h < config_.num_heads; ++h) {
    blocks = std::max(blocks, order(sequence, h).blocks);
  }
  return blocks;
}

void SortedRound::describe(const SoftmaxProblem&, int64_t sequence, int64_t head, int64_t index,
                           QueryBlock& block) const {
  const Order& one = order(sequence, head);
  block.step = 1;
  block.first = index == 0 || index >= one.blocks ? 0 : one.block_end[index - 1];
  block.count = index >= one.blocks ? 0 : one.block_end[index] - block.first;
  if (block.count == 0) return;
  const int64_t first = one.from[block.first];
  const int64_t entries = one.query[block.first + block.count - 1] - first;
  kernels::KeyRun& run = block.add_run(first, 1, entries);
  for (int64_t r = 0; r < block.count; ++r) {
    run.from[r] = static_cast<int32_t>(one.from[block.first + r] - first);
    run.to[r] = static_cast<int32_t>(one.query[block.first + r] - first);
  }
}

Heads<const float> SortedRound::sorted_queries(Heads<const float> from, int64_t dim) const {
  const int64_t heads = config_.num_heads;
  Heads<float> to{args_.arena->alloc<float>(query_rows_ * heads * dim), heads * dim, dim};
  parallel_for(args_.pool, args_.sequences.count * heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t sequence = item / heads;
      const int64_t head = item % heads;
      for (int64_t e = 0; e < tokens_[sequence].length; ++e) {
        const int64_t row = args_.sequences.begin[sequence] + query_row(sequence, head, e);
        std::copy_n(from.at(row, head), dim, to.at(query_begin_[sequence] + e, head));
      }
    }
  });
  return to;
}

KeyRows<const float> SortedRound::sorted_rows(float* const Tokens::*from, int64_t dim) const {
  const int64_t heads = config_.num_heads;
  Heads<float> to{args_.arena->alloc<float>(key_rows_ * heads * dim), heads * dim, dim};
  parallel_for(args_.pool, args_.sequences.count * heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t sequence = item / heads;
      const int64_t head = item % heads;
      const Order& one = order(sequence, head);
      for (int64_t e = 0; e < one.entries; ++e) {
        std::copy_n(tokens_[sequence].*from + (one.token[e] * heads + head) * dim, dim,
                    to.at(key_begin_[sequence] + e, head));
      }
    }
  });
  KeyRows<const float> result;
  result.shared = to;
  return result;
}

KeyRows<const float> SortedRound::sorted_keys() const {
  return sorted_rows(&Tokens::k, config_.key_dim);
}

KeyRows<const float> SortedRound::sorted_values() const {
  return sorted_rows(&Tokens::v, config_.value_dim);
}

}  // namespace tarn::mixers::lsh_attention
