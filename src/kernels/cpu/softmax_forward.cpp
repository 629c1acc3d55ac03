#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/softmax_blocks.h"
#include "kernels/softmax_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax_forward.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/small_gemm-inl.h"
#include "kernels/cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

// Scores are kept transposed, s [keys, queries]: then both products read K and V as they lie in
// memory, and every query of the block has a lane of its own, so that maxima and sums over keys
// need no shuffles.

/// Scratch of one query block.
struct ForwardBlock {
  float* q;        // [key_dim, kQueryBlock], times scale·log2(e)
  float* s;        // [kKeyBlock, kQueryBlock]
  float* o;        // [kQueryBlock, o_stride]
  float* maximum;  // [kQueryBlock], of the scores so far
  float* sum;      // [kQueryBlock]
  float* rescale;  // [kQueryBlock], what the last key block multiplies earlier weights by
  int64_t o_stride;
};

/// Turns scores into weights 2^(s − maximum) with the new maximum and updates the sums.
/// Returns true when some query's earlier weights have to be rescaled.
HWY_NOINLINE bool update_weights(int64_t keys, int64_t columns, const ForwardBlock& block) {
  const F32 d;
  bool any = false;
  for (int64_t c = 0; c < columns; c += kLanes) {
    float* s = block.s + c;
    const VecF32 old = hn::Load(d, block.maximum + c);
    VecF32 max0 = old, max1 = old, max2 = old, max3 = old;
    int64_t j = 0;
    for (; j + 4 <= keys; j += 4) {
      max0 = hn::Max(max0, hn::Load(d, s + (j + 0) * kQueryBlock));
      max1 = hn::Max(max1, hn::Load(d, s + (j + 1) * kQueryBlock));
      max2 = hn::Max(max2, hn::Load(d, s + (j + 2) * kQueryBlock));
      max3 = hn::Max(max3, hn::Load(d, s + (j + 3) * kQueryBlock));
    }
    for (; j < keys; ++j) max0 = hn::Max(max0, hn::Load(d, s + j * kQueryBlock));
    const VecF32 maximum = hn::Max(hn::Max(max0, max1), hn::Max(max2, max3));
    // A query that has seen nothing yet keeps −∞; subtracting 0 then gives weights of 0.
    const VecF32 base = hn::IfThenZeroElse(hn::Eq(maximum, hn::Set(d, kMinusInfinity)), maximum);
    VecF32 sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (j = 0; j + 4 <= keys; j += 4) {
      float* row = s + j * kQueryBlock;
      const VecF32 p0 = exp2_nonpositive(d, hn::Sub(hn::Load(d, row), base));
      const VecF32 p1 = exp2_nonpositive(d, hn::Sub(hn::Load(d, row + kQueryBlock), base));
      const VecF32 p2 = exp2_nonpositive(d, hn::Sub(hn::Load(d, row + 2 * kQueryBlock), base));
      const VecF32 p3 = exp2_nonpositive(d, hn::Sub(hn::Load(d, row + 3 * kQueryBlock), base));
      hn::Store(p0, d, row);
      hn::Store(p1, d, row + kQueryBlock);
      hn::Store(p2, d, row + 2 * kQueryBlock);
      hn::Store(p3, d, row + 3 * kQueryBlock);
      sum0 = hn::Add(sum0, p0);
      sum1 = hn::Add(sum1, p1);
      sum2 = hn::Add(sum2, p2);
      sum3 = hn::Add(sum3, p3);
    }
    // The rest as if hidden keys filled it up: a query's bits do not depend on how far others see.
    VecF32* const sums[] = {&sum0, &sum1, &sum2};
    for (int64_t i = 0; j < keys; ++i, ++j) {
      float* row = s + j * kQueryBlock;
      const VecF32 p = exp2_nonpositive(d, hn::Sub(hn::Load(d, row), base));
      hn::Store(p, d, row);
      *sums[i] = hn::Add(*sums[i], p);
    }
    const VecF32 rescale = exp2_nonpositive(d, hn::Sub(old, base));
    const VecF32 added = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
    const VecF32 total = hn::MulAdd(hn::Load(d, block.sum + c), rescale, added);
    hn::Store(maximum, d, block.maximum + c);
    hn::Store(rescale, d, block.rescale + c);
    hn::Store(total, d, block.sum + c);
    any = any || !hn::AllTrue(d, hn::Eq(rescale, hn::Set(d, 1.0f)));
  }
  return any;
}

/// The queries' part of the scratch: scaled queries, and what is known before the first key.
HWY_INLINE void start_block(const SoftmaxForwardArgs& args, int64_t row, int64_t head,
                            const QueryBlock& queries, const ForwardBlock& block) {
  const SoftmaxProblem& problem = args.problem;
  const float factor = static_cast<float>(problem.scale * kLog2e);
  transpose_scaled(queries.count, problem.key_dim, args.q.at(row, head),
                   args.q.row_stride * queries.step, factor, block.q, kQueryBlock);
  std::fill(block.maximum, block.maximum + kQueryBlock, kMinusInfinity);
  std::fill(block.sum, block.sum + kQueryBlock, 0.0f);
  if (!problem.accumulate) return;
  // The result of other keys counts as one key with the score log Σ and the value `out`.
  for (int64_t r = 0; r < queries.count; ++r) {
    const int64_t query = row + r * queries.step;
    const float log_sum = args.log_sum[query * problem.num_heads + head];
    block.maximum[r] = log_sum * static_cast<float>(kLog2e);
    block.sum[r] = log_sum == kMinusInfinity ? 0.0f : 1.0f;
    std::copy_n(args.out.at(query, head), problem.value_dim, block.o + r * block.o_stride);
  }
}

/// Divides by the sums and writes out and log Σ exp.
HWY_INLINE void finish_block(const SoftmaxForwardArgs& args, int64_t first_row, int64_t head,
                             const QueryBlock& queries, const ForwardBlock& block) {
  const SoftmaxProblem& problem = args.problem;
  for (int64_t r = 0; r < queries.count; ++r) {
    const int64_t row = first_row + r * queries.step;
    // With keys in view the largest weight is 1, so a sum of 0 means that there were none.
    const float sum = block.sum[r];
    float* out = args.out.at(row, head);
    if (sum == 0.0f) {
      std::fill(out, out + problem.value_dim, 0.0f);
    } else {
      copy_scaled(problem.value_dim, 1.0f / sum, block.o + r * block.o_stride, out);
    }
    if (args.log_sum != nullptr) {
      const float log2_sum = block.maximum[r] + std::log2(sum);
      args.log_sum[row * problem.num_heads + head] =
          sum == 0.0f ? kMinusInfinity : log2_sum * static_cast<float>(kLn2);
    }
  }
}

/// One run of keys; `empty`: no key has been seen, and block.o holds nothing yet.
void forward_run(const SoftmaxForwardArgs& args, int64_t sequence, int64_t head,
                 const QueryBlock& queries, const KeyRun& run, const ForwardBlock& block,
                 bool& empty) {
  const SoftmaxProblem& problem = args.problem;
  const int64_t kv_head = head / (problem.num_heads / problem.num_kv_heads);
  const int64_t columns = round_up_lanes(queries.count);
  const RunBounds bounds = bounds_of(run, queries.count);
  for (int64_t j = bounds.from; j < bounds.to; j += kKeyBlock) {
    const int64_t keys = std::min(kKeyBlock, bounds.to - j);
    const int64_t key_row = run.first + j * run.step;
    small_gemm(keys, columns, problem.key_dim,
               {args.k.at(problem.keys, sequence, key_row, kv_head), args.k.stride() * run.step, 1},
               block.q, kQueryBlock, block.s, kQueryBlock, false);
    if (j < bounds.all_from || j + keys > bounds.all_to) {
      hide_unseen(keys, columns, j, run, block.s, kQueryBlock);
    }
    const bool rescale = update_weights(keys, columns, block);
    if (rescale && !empty) {
      for (int64_t r = 0; r < queries.count; ++r) {
        scale_span(problem.value_dim, block.rescale[r], block.o + r * block.o_stride);
      }
    }
    small_gemm(queries.count, problem.value_dim, keys, {block.s, 1, kQueryBlock},
               args.v.at(problem.keys, sequence, key_row, kv_head), args.v.stride() * run.step,
               block.o, block.o_stride, !empty);
    empty = false;
  }
}

/// One block of queries of one sequence and head.
void forward_query_block(const SoftmaxForwardArgs& args, int64_t sequence, int64_t head,
                         const QueryBlock& queries, float* scratch) {
  const SoftmaxProblem& problem = args.problem;
  ForwardBlock block;
  block.maximum = scratch;
  block.sum = block.maximum + kQueryBlock;
  block.rescale = block.sum + kQueryBlock;
  block.s = block.rescale + kQueryBlock;
  block.q = block.s + kKeyBlock * kQueryBlock;
  block.o = block.q + problem.key_dim * kQueryBlock;
  block.o_stride = problem.value_dim;
  const int64_t row = problem.queries.begin[sequence] + queries.first;
  start_block(args, row, head, queries, block);
  bool empty = !problem.accumulate;
  for (int64_t i = 0; i < queries.num_runs; ++i) {
    forward_run(args, sequence, head, queries, queries.runs[i], block, empty);
  }
  finish_block(args, row, head, queries, block);
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {
namespace {

HWY_EXPORT(forward_query_block);

int64_t block_scratch_size(const SoftmaxProblem& problem) {
  const int64_t floats = kQueryBlock * (3 + kKeyBlock + problem.key_dim + problem.value_dim);
  return (floats + 15) / 16 * 16;  // the next thread's part starts on a cache line too
}

struct ForwardWork {
  const SoftmaxForwardArgs& args;
  int64_t blocks = 0;  // query blocks of the sequence with most of them, at least two queries long
  float* scratch = nullptr;
  int64_t scratch_size = 0;  // floats per thread
};

/// Items [begin, end) of (sequence, head, query block), but for sequences of one query.
void forward_items(const ForwardWork& work, int64_t begin, int64_t end, float* scratch) {
  const SoftmaxProblem& problem = work.args.problem;
  QueryBlock queries;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t pair = item / work.blocks;
    const int64_t sequence = pair / problem.num_heads;
    const int64_t head = pair % problem.num_heads;
    // First, last, second, … : later blocks see more keys, so this evens out a split in the middle.
    const int64_t turn = item % work.blocks;
    const int64_t index = turn % 2 == 0 ? turn / 2 : work.blocks - 1 - turn / 2;
    if (problem.queries.length[sequence] == 1) continue;
    if (index >= num_query_blocks(problem, sequence)) continue;
    describe_query_block(problem, sequence, head, index, queries);
    HWY_DYNAMIC_DISPATCH(forward_query_block)(work.args, sequence, head, queries, scratch);
  }
}

/// The pool, or none when the work is too small to pay for waking the workers.
ThreadPool* pool_for(const SoftmaxProblem& problem) {
  constexpr double kMinParallelWork = 1e6;  // multiply-adds
  double work = 0.0;
  for (int64_t i = 0; i < problem.queries.count; ++i) {
    work += static_cast<double>(problem.queries.length[i] * problem.num_heads) *
            static_cast<double>(problem.keys.length[i] * (problem.key_dim + problem.value_dim));
  }
  return work < kMinParallelWork ? nullptr : problem.pool;
}

}  // namespace

void softmax_forward(const SoftmaxProblem& problem, Heads<const float> q, KeyRows<const float> k,
                     KeyRows<const float> v, Heads<float> out, float* log_sum,
                     Arena& arena) noexcept {
  ArenaScope scope(arena);
  const SoftmaxForwardArgs args{problem, q, k, v, out, log_sum};
  ForwardWork work{args};
  bool any_single = false;
  for (int64_t i = 0; i < problem.queries.count; ++i) {
    if (problem.queries.length[i] == 1) {
      any_single = true;
    } else {
      work.blocks = std::max(work.blocks, num_query_blocks(problem, i));
    }
  }
  ThreadPool* pool = pool_for(problem);
  work.scratch_size = std::max(step_scratch_size(problem), block_scratch_size(problem));
  work.scratch =
      arena.alloc<float>((pool == nullptr ? 1 : pool->num_threads()) * work.scratch_size);
  // A sequence's own length decides its path, so that its bits do not depend on batch mates.
  if (any_single) {
    parallel_for(pool, problem.queries.count * problem.num_kv_heads,
                 [&work](int64_t begin, int64_t end, int thread) {
                   softmax_step_items(work.args, begin, end,
                                      work.scratch + thread * work.scratch_size);
                 });
  }
  if (work.blocks > 0) {
    parallel_for(pool, problem.queries.count * problem.num_heads * work.blocks,
                 [&work](int64_t begin, int64_t end, int thread) {
                   forward_items(work, begin, end, work.scratch + thread * work.scratch_size);
                 });
  }
}

}  // namespace tarn::kernels
#endif
