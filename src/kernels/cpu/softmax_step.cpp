#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/softmax_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax_step.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// s[j] = q·k_j for j < keys.
HWY_INLINE void step_scores(int64_t keys, int64_t dim, const float* q, const float* k,
                            int64_t stride, float* s) {
  const F32 d;
  const int64_t whole = dim / kLanes * kLanes;
  const int64_t tail = dim - whole;
  int64_t j = 0;
  for (; j + 4 <= keys; j += 4, k += 4 * stride) {
    VecF32 sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (int64_t i = 0; i < whole; i += kLanes) {
      const VecF32 query = hn::LoadU(d, q + i);
      sum0 = hn::MulAdd(query, hn::LoadU(d, k + i), sum0);
      sum1 = hn::MulAdd(query, hn::LoadU(d, k + stride + i), sum1);
      sum2 = hn::MulAdd(query, hn::LoadU(d, k + 2 * stride + i), sum2);
      sum3 = hn::MulAdd(query, hn::LoadU(d, k + 3 * stride + i), sum3);
    }
    if (tail > 0) {
      const VecF32 query = load_partial(q + whole, tail);
      sum0 = hn::MulAdd(query, load_partial(k + whole, tail), sum0);
      sum1 = hn::MulAdd(query, load_partial(k + stride + whole, tail), sum1);
      sum2 = hn::MulAdd(query, load_partial(k + 2 * stride + whole, tail), sum2);
      sum3 = hn::MulAdd(query, load_partial(k + 3 * stride + whole, tail), sum3);
    }
    s[j] = hn::GetLane(hn::SumOfLanes(d, sum0));
    s[j + 1] = hn::GetLane(hn::SumOfLanes(d, sum1));
    s[j + 2] = hn::GetLane(hn::SumOfLanes(d, sum2));
    s[j + 3] = hn::GetLane(hn::SumOfLanes(d, sum3));
  }
  for (; j < keys; ++j, k += stride) {
    VecF32 sum = hn::Zero(d);
    for (int64_t i = 0; i < whole; i += kLanes) {
      sum = hn::MulAdd(hn::LoadU(d, q + i), hn::LoadU(d, k + i), sum);
    }
    if (tail > 0) {
      sum = hn::MulAdd(load_partial(q + whole, tail), load_partial(k + whole, tail), sum);
    }
    s[j] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

/// Scores to weights over `keys` entries (the rest up to whole vectors is −∞ or weight 0).
/// Updates maximum and sum; returns what earlier weights are to be multiplied by.
HWY_INLINE float step_weights(int64_t keys, float* s, float* maximum, float* sum) {
  const F32 d;
  const int64_t padded = round_up_lanes(keys);
  std::fill(s + keys, s + padded, kMinusInfinity);
  VecF32 largest = hn::Set(d, *maximum);
  for (int64_t j = 0; j < padded; j += kLanes) largest = hn::Max(largest, hn::Load(d, s + j));
  largest = hn::MaxOfLanes(d, largest);
  // −∞ only if every score is: subtracting 0 then gives weights of 0 instead of NaN.
  const VecF32 base = hn::IfThenZeroElse(hn::Eq(largest, hn::Set(d, kMinusInfinity)), largest);
  VecF32 added = hn::Zero(d);
  for (int64_t j = 0; j < padded; j += kLanes) {
    const VecF32 p = exp2_nonpositive(d, hn::Sub(hn::Load(d, s + j), base));
    hn::Store(p, d, s + j);
    added = hn::Add(added, p);
  }
  const float rescale = hn::GetLane(exp2_nonpositive(d, hn::Sub(hn::Set(d, *maximum), base)));
  *maximum = hn::GetLane(largest);
  *sum = *sum * rescale + hn::GetLane(hn::SumOfLanes(d, added));
  return rescale;
}

/// `kVectors` vectors of o = rescale·o + Σ_j p_j v_j, four keys in flight. `tail` lanes of the last
/// vector exist.
template <int kVectors, bool kTail>
HWY_INLINE void step_values(int64_t keys, const float* p, const float* v, int64_t stride,
                            float rescale, float* o, int64_t tail) {
  const F32 d;
  const auto load = [tail](const float* from, int i) HWY_ATTR {
    return kTail && i == kVectors - 1 ? load_partial(from + i * kLanes, tail)
                                      : hn::LoadU(F32(), from + i * kLanes);
  };
  VecF32 sum[4][kVectors];
  for (int i = 0; i < kVectors; ++i) {
    sum[0][i] = hn::Mul(load(o, i), hn::Set(d, rescale));
    for (int t = 1; t < 4; ++t) sum[t][i] = hn::Zero(d);
  }
  int64_t j = 0;
  for (; j + 4 <= keys; j += 4, v += 4 * stride) {
    for (int t = 0; t < 4; ++t) {
      const VecF32 weight = hn::Set(d, p[j + t]);
      for (int i = 0; i < kVectors; ++i) {
        sum[t][i] = hn::MulAdd(weight, load(v + t * stride, i), sum[t][i]);
      }
    }
  }
  for (; j < keys; ++j, v += stride) {
    const VecF32 weight = hn::Set(d, p[j]);
    for (int i = 0; i < kVectors; ++i) sum[0][i] = hn::MulAdd(weight, load(v, i), sum[0][i]);
  }
  for (int i = 0; i < kVectors; ++i) {
    const VecF32 total = hn::Add(hn::Add(sum[0][i], sum[1][i]), hn::Add(sum[2][i], sum[3][i]));
    if (kTail && i == kVectors - 1) {
      store_partial(total, o + i * kLanes, tail);
    } else {
      hn::StoreU(total, d, o + i * kLanes);
    }
  }
}

HWY_INLINE void step_all_values(int64_t keys, int64_t dim, const float* p, const float* v,
                                int64_t stride, float rescale, float* o) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= dim; i += 2 * kLanes) {
    step_values<2, false>(keys, p, v + i, stride, rescale, o + i, kLanes);
  }
  if (i + kLanes <= dim) {
    step_values<1, false>(keys, p, v + i, stride, rescale, o + i, kLanes);
    i += kLanes;
  }
  if (i < dim) step_values<1, true>(keys, p, v + i, stride, rescale, o + i, dim - i);
}

/// The query of one sequence for heads [head_begin, head_end), which see the runs of `queries`. Per
/// head the scratch holds maximum, sum, then the scaled query and the output so far.
void step_sequence(const SoftmaxForwardArgs& args, int64_t sequence, int64_t head_begin,
                   int64_t head_end, const QueryBlock& queries, float* scratch) {
  const SoftmaxProblem& problem = args.problem;
  const int64_t group = problem.num_heads / problem.num_kv_heads;
  const int64_t row = problem.queries.begin[sequence];
  const int64_t head_size = 2 + problem.key_dim + problem.value_dim;
  const float factor = static_cast<float>(problem.scale * kLog2e);
  float* s = scratch;
  float* first_head = s + kStepKeys;
  for (int64_t head = head_begin; head < head_end; ++head) {
    float* state = first_head + (head - head_begin) * head_size;
    state[0] = kMinusInfinity;
    state[1] = 0.0f;
    copy_scaled(problem.key_dim, factor, args.q.at(row, head), state + 2);
    std::fill(state + 2 + problem.key_dim, state + head_size, 0.0f);
  }
  for (int64_t i = 0; i < queries.num_runs; ++i) {
    const KeyRun& run = queries.runs[i];
    for (int64_t j = run.from[0]; j < run.to[0]; j += kStepKeys) {
      const int64_t keys = std::min<int64_t>(kStepKeys, run.to[0] - j);
      const int64_t key_row = run.first + j * run.step;
      for (int64_t head = head_begin; head < head_end; ++head) {
        float* state = first_head + (head - head_begin) * head_size;
        step_scores(keys, problem.key_dim, state + 2,
                    args.k.at(problem.keys, sequence, key_row, head / group),
                    args.k.stride() * run.step, s);
        const float rescale = step_weights(keys, s, state, state + 1);
        step_all_values(keys, problem.value_dim, s,
                        args.v.at(problem.keys, sequence, key_row, head / group),
                        args.v.stride() * run.step, rescale, state + 2 + problem.key_dim);
      }
    }
  }
  for (int64_t head = head_begin; head < head_end; ++head) {
    const float* state = first_head + (head - head_begin) * head_size;
    const float sum = state[1];
    // With no key in sight the accumulated output is 0 already.
    copy_scaled(problem.value_dim, sum == 0.0f ? 0.0f : 1.0f / sum, state + 2 + problem.key_dim,
                args.out.at(row, head));
    if (args.log_sum != nullptr) {
      const float log2_sum = state[0] + std::log2(sum);
      args.log_sum[row * problem.num_heads + head] =
          sum == 0.0f ? kMinusInfinity : log2_sum * static_cast<float>(kLn2);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {

namespace {

HWY_EXPORT(step_sequence);

}  // namespace

int64_t step_scratch_size(const SoftmaxProblem& problem) {
  const int64_t floats = kStepKeys + problem.num_heads * (2 + problem.key_dim + problem.value_dim);
  return (floats + 15) / 16 * 16;
}

void softmax_step_items(const SoftmaxForwardArgs& args, int64_t begin, int64_t end,
                        float* scratch) noexcept {
  const SoftmaxProblem& problem = args.problem;
  const int64_t group = problem.num_heads / problem.num_kv_heads;
  QueryBlock queries;
  while (begin < end) {
    const int64_t sequence = begin / problem.num_kv_heads;
    const int64_t first = begin % problem.num_kv_heads;
    const int64_t count = std::min(problem.num_kv_heads - first, end - begin);
    if (problem.queries.length[sequence] == 1 && num_query_blocks(problem, sequence) > 0) {
      const int64_t head_end = (first + count) * group;
      const bool same = problem.pattern == nullptr || problem.pattern->same_for_all_heads();
      const int64_t heads = same ? count * group : 1;
      for (int64_t head = first * group; head < head_end; head += heads) {
        describe_query_block(problem, sequence, head, 0, queries);
        HWY_DYNAMIC_DISPATCH(step_sequence)(args, sequence, head, head + heads, queries, scratch);
      }
    }
    begin += count;
  }
}

}  // namespace tarn::kernels
#endif
