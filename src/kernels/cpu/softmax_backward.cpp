#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/softmax_blocks.h"
#include "kernels/softmax_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax_backward.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/small_gemm-inl.h"
#include "kernels/cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

// With s = scale·q·k, p = exp(s − log Σ) and δ_t = do_t·o_t (Dao 2022, arXiv 2205.14135, §B.4):
//   dv_j = Σ_t p_tj do_t    ds_tj = p_tj (do_t·v_j − δ_t)
//   dq_t = scale Σ_j ds_tj k_j    dk_j = scale Σ_t ds_tj q_t
// Scores are kept transposed, [keys, queries], as in the forward pass.

/// Scratch of one query block.
struct BackwardBlock {
  float* q;         // [key_dim, kQueryBlock], times scale·log2(e)
  float* dout;      // [value_dim, kQueryBlock]
  float* p;         // [kKeyBlock, kQueryBlock]
  float* ds;        // [kKeyBlock, kQueryBlock]
  float* log2_sum;  // [kQueryBlock]
  float* delta;     // [kQueryBlock]
};

/// Scores p become weights; ds, which holds do·v, becomes scale·p·(do·v − δ).
HWY_NOINLINE void weights_and_gradients(int64_t keys, int64_t columns, float scale,
                                        const BackwardBlock& block) {
  const F32 d;
  const VecF32 factor = hn::Set(d, scale);
  for (int64_t c = 0; c < columns; c += kLanes) {
    const VecF32 log2_sum = hn::Load(d, block.log2_sum + c);
    const VecF32 delta = hn::Load(d, block.delta + c);
    for (int64_t j = 0; j < keys; ++j) {
      float* p = block.p + j * kQueryBlock + c;
      float* ds = block.ds + j * kQueryBlock + c;
      // Rounding may put the largest score a little above the sum, hence Min.
      const VecF32 score = hn::Min(hn::Zero(d), hn::Sub(hn::Load(d, p), log2_sum));
      const VecF32 weight = exp2_nonpositive(d, score);
      hn::Store(weight, d, p);
      hn::Store(hn::Mul(hn::Mul(weight, factor), hn::Sub(hn::Load(d, ds), delta)), d, ds);
    }
  }
}

/// Fills q, dout, log2_sum and delta; `row` is that of the block's first query.
HWY_INLINE void load_query_block(const SoftmaxBackwardArgs& args, int64_t row, int64_t head,
                                 const QueryBlock& queries, const BackwardBlock& block) {
  const SoftmaxProblem& problem = args.problem;
  const int64_t count = queries.count;
  transpose_scaled(count, problem.key_dim, args.q.at(row, head), args.q.row_stride * queries.step,
                   static_cast<float>(problem.scale * kLog2e), block.q, kQueryBlock);
  transpose_scaled(count, problem.value_dim, args.dout.at(row, head),
                   args.dout.row_stride * queries.step, 1.0f, block.dout, kQueryBlock);
  for (int64_t r = 0; r < count; ++r) {
    const int64_t query = row + r * queries.step;
    const float log_sum = args.log_sum[query * problem.num_heads + head];
    // A query that saw no key has log Σ = −∞; +∞ makes its weights 0.
    block.log2_sum[r] =
        log_sum == kMinusInfinity ? -kMinusInfinity : log_sum * static_cast<float>(kLog2e);
    block.delta[r] =
        dot_rows(problem.value_dim, args.dout.at(query, head), args.out.at(query, head));
  }
  std::fill(block.log2_sum + count, block.log2_sum + kQueryBlock, -kMinusInfinity);
  std::fill(block.delta + count, block.delta + kQueryBlock, 0.0f);
}

/// Adds what one block of queries of one head gives to dk and dv of a run, and what the run gives to
/// their dq.
void backward_run(const SoftmaxBackwardArgs& args, int64_t sequence, int64_t head,
                  const QueryBlock& queries, const KeyRun& run, const BackwardBlock& block) {
  const SoftmaxProblem& problem = args.problem;
  const int64_t kv_head = head / (problem.num_heads / problem.num_kv_heads);
  const int64_t row = problem.queries.begin[sequence] + queries.first;
  const int64_t columns = round_up_lanes(queries.count);
  const int64_t k_stride = args.k.stride() * run.step;
  const RunBounds bounds = bounds_of(run, queries.count);
  for (int64_t j = bounds.from; j < bounds.to; j += kKeyBlock) {
    const int64_t keys = std::min(kKeyBlock, bounds.to - j);
    const int64_t key_row = run.first + j * run.step;
    const float* k = args.k.at(problem.keys, sequence, key_row, kv_head);
    const float* v = args.v.at(problem.keys, sequence, key_row, kv_head);
    small_gemm(keys, columns, problem.key_dim, {k, k_stride, 1}, block.q, kQueryBlock, block.p,
               kQueryBlock, false);
    if (j < bounds.all_from || j + keys > bounds.all_to) {
      hide_unseen(keys, columns, j, run, block.p, kQueryBlock);
    }
    small_gemm(keys, columns, problem.value_dim, {v, args.v.stride() * run.step, 1}, block.dout,
               kQueryBlock, block.ds, kQueryBlock, false);
    weights_and_gradients(keys, columns, static_cast<float>(problem.scale), block);
    small_gemm(keys, problem.value_dim, queries.count, {block.p, kQueryBlock, 1},
               args.dout.at(row, head), args.dout.row_stride * queries.step,
               args.dv.at(problem.keys, sequence, key_row, kv_head), args.dv.stride() * run.step,
               true);
    small_gemm(keys, problem.key_dim, queries.count, {block.ds, kQueryBlock, 1},
               args.q.at(row, head), args.q.row_stride * queries.step,
               args.dk.at(problem.keys, sequence, key_row, kv_head), args.dk.stride() * run.step,
               true);
    small_gemm(queries.count, problem.key_dim, keys, {block.ds, 1, kQueryBlock}, k, k_stride,
               args.dq.at(row, head), args.dq.row_stride * queries.step, true);
  }
}

/// One block of queries of one head.
void backward_query_block(const SoftmaxBackwardArgs& args, int64_t sequence, int64_t head,
                          const QueryBlock& queries, float* scratch) {
  const SoftmaxProblem& problem = args.problem;
  BackwardBlock block;
  block.log2_sum = scratch;
  block.delta = block.log2_sum + kQueryBlock;
  block.p = block.delta + kQueryBlock;
  block.ds = block.p + kKeyBlock * kQueryBlock;
  block.q = block.ds + kKeyBlock * kQueryBlock;
  block.dout = block.q + problem.key_dim * kQueryBlock;
  const int64_t row = problem.queries.begin[sequence] + queries.first;
  load_query_block(args, row, head, queries, block);
  for (int64_t r = 0; r < queries.count && !problem.accumulate; ++r) {
    float* dq = args.dq.at(row + r * queries.step, head);
    std::fill(dq, dq + problem.key_dim, 0.0f);
  }
  for (int64_t i = 0; i < queries.num_runs; ++i) {
    backward_run(args, sequence, head, queries, queries.runs[i], block);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {
namespace {

HWY_EXPORT(backward_query_block);

int64_t backward_scratch_size(const SoftmaxProblem& problem) {
  const int64_t floats = kQueryBlock * (2 + 2 * kKeyBlock + problem.key_dim + problem.value_dim);
  return (floats + 15) / 16 * 16;  // the next thread's part starts on a cache line too
}

struct BackwardWork {
  const SoftmaxBackwardArgs& args;
  float* scratch;
  int64_t scratch_size;
};

/// One sequence and kv head: dk and dv of it, and dq of the heads that read it.
void backward_kv_head(const SoftmaxBackwardArgs& args, int64_t sequence, int64_t kv_head,
                      float* scratch) {
  const SoftmaxProblem& problem = args.problem;
  const int64_t group = problem.num_heads / problem.num_kv_heads;
  for (int64_t j = 0; j < problem.keys.length[sequence] && !problem.accumulate; ++j) {
    float* dk = args.dk.at(problem.keys, sequence, j, kv_head);
    std::fill(dk, dk + problem.key_dim, 0.0f);
    float* dv = args.dv.at(problem.keys, sequence, j, kv_head);
    std::fill(dv, dv + problem.value_dim, 0.0f);
  }
  const int64_t blocks = num_query_blocks(problem, sequence);
  QueryBlock queries;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t index = 0; index < blocks; ++index) {
      describe_query_block(problem, sequence, head, index, queries);
      HWY_DYNAMIC_DISPATCH(backward_query_block)(args, sequence, head, queries, scratch);
    }
  }
}

}  // namespace

void softmax_backward(const SoftmaxProblem& problem, Heads<const float> q, KeyRows<const float> k,
                      KeyRows<const float> v, Heads<const float> out, const float* log_sum,
                      Heads<const float> dout, Heads<float> dq, KeyRows<float> dk,
                      KeyRows<float> dv, Arena& arena) noexcept {
  ArenaScope scope(arena);
  const SoftmaxBackwardArgs args{problem, q, k, v, out, log_sum, dout, dq, dk, dv};
  const int threads = problem.pool == nullptr ? 1 : problem.pool->num_threads();
  const int64_t scratch_size = backward_scratch_size(problem);
  const BackwardWork work{args, arena.alloc<float>(threads * scratch_size), scratch_size};
  parallel_for(problem.pool, problem.queries.count * problem.num_kv_heads,
               [&work](int64_t begin, int64_t end, int thread) {
                 const int64_t kv_heads = work.args.problem.num_kv_heads;
                 for (int64_t item = begin; item < end; ++item) {
                   backward_kv_head(work.args, item / kv_heads, item % kv_heads,
                                    work.scratch + thread * work.scratch_size);
                 }
               });
}

}  // namespace tarn::kernels
#endif
