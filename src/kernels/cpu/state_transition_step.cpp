#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_transition_calls.h"
#include "kernels/state_transition.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_transition_step.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/state_transition_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// One token of one head. Without erasure `write` is k and `amount` β; the state is read after its
/// update, in the same pass. With erasure the old state answers both questions in a first pass
/// (Sᵀ(α∘q) is what the decayed state answers to q), and the second only writes.
struct StepHead {
  int64_t key_dim, value_dim;
  const float* alpha;
  const float* read_old;  ///< kDelta: α∘k, kRankOne: b
  const float* read_new;  ///< α∘q, or q without erasure
  const float* write;     ///< k, or a for kRankOne
  const float* key;       ///< k
  float amount;           ///< β
  float write_dot;        ///< write · q
  float key_dot;          ///< k · q
  float scale;
};

/// kVectors vectors of value channels of the whole state.
template <Erase kErase, int kVectors, bool kTail>
HWY_INLINE void step_columns(const StepHead& h, const float* HWY_RESTRICT value,
                             float* HWY_RESTRICT state, float* HWY_RESTRICT out,
                             int64_t tail_size) {
  const F32 d;
  const Tail tail(tail_size);
  const auto load = [&](const float* from, int j) HWY_ATTR {
    return kTail && j == kVectors - 1 ? load_partial(from + j * kLanes, tail)
                                      : hn::LoadU(d, from + j * kLanes);
  };
  const auto store = [&](VecF32 x, float* to, int j) HWY_ATTR {
    if (kTail && j == kVectors - 1) {
      store_partial(x, to + j * kLanes, tail);
    } else {
      hn::StoreU(x, d, to + j * kLanes);
    }
  };
  VecF32 given[kVectors];
  VecF32 written[kVectors];
  VecF32 answer[kVectors];
  TARN_UNROLL
  for (int j = 0; j < kVectors; ++j) {
    given[j] = load(value, j);
    written[j] = hn::Mul(given[j], hn::Set(d, h.amount));
    answer[j] = hn::Zero(d);
  }
  if constexpr (kErase != Erase::kNone) {
    VecF32 old[kVectors];
    TARN_UNROLL
    for (int j = 0; j < kVectors; ++j) old[j] = hn::Zero(d);
    const float* row = state;
    for (int64_t c = 0; c < h.key_dim; ++c, row += h.value_dim) {
      const VecF32 x = hn::Set(d, h.read_old[c]);
      const VecF32 y = hn::Set(d, h.read_new[c]);
      TARN_UNROLL
      for (int j = 0; j < kVectors; ++j) {
        const VecF32 s = load(row, j);
        old[j] = hn::MulAdd(x, s, old[j]);
        answer[j] = hn::MulAdd(y, s, answer[j]);
      }
    }
    TARN_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      if constexpr (kErase == Erase::kDelta) {
        written[j] = hn::Mul(hn::Sub(given[j], old[j]), hn::Set(d, h.amount));
      } else {
        written[j] = old[j];
        answer[j] = hn::MulAdd(given[j], hn::Set(d, h.key_dot), answer[j]);
      }
      answer[j] = hn::MulAdd(written[j], hn::Set(d, h.write_dot), answer[j]);
    }
  }
  for (int64_t c = 0; c < h.key_dim; ++c, state += h.value_dim) {
    const VecF32 alpha = hn::Set(d, h.alpha[c]);
    const VecF32 write = hn::Set(d, h.write[c]);
    TARN_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      VecF32 s = hn::MulAdd(write, written[j], hn::Mul(alpha, load(state, j)));
      if constexpr (kErase == Erase::kRankOne) {
        s = hn::MulAdd(hn::Set(d, h.key[c]), given[j], s);
      }
      if constexpr (kErase == Erase::kNone) {
        answer[j] = hn::MulAdd(hn::Set(d, h.read_new[c]), s, answer[j]);
      }
      store(s, state, j);
    }
  }
  TARN_UNROLL
  for (int j = 0; j < kVectors; ++j) store(hn::Mul(answer[j], hn::Set(d, h.scale)), out, j);
}

template <Erase kErase, int kVectors>
HWY_NOINLINE void step_columns_any(const StepHead& h, const float* value, float* state, float* out,
                                   int64_t tail) {
  if (tail != kLanes) {
    step_columns<kErase, kVectors, true>(h, value, state, out, tail);
  } else {
    step_columns<kErase, kVectors, false>(h, value, state, out, tail);
  }
}

template <Erase kErase>
void step_state(const StepHead& h, const float* value, float* state, float* out) {
  constexpr int kVectors = kManyRegisters ? 4 : 2;
  for (int64_t at = 0; at < h.value_dim; at += kVectors * kLanes) {
    const int64_t width = std::min(kVectors * kLanes, h.value_dim - at);
    const int64_t vectors = (width + kLanes - 1) / kLanes;
    const int64_t tail = width - (vectors - 1) * kLanes;
    if (vectors == kVectors) {
      step_columns_any<kErase, kVectors>(h, value + at, state + at, out + at, tail);
    } else if (vectors == 3) {
      step_columns_any<kErase, 3>(h, value + at, state + at, out + at, tail);
    } else if (vectors == 2) {
      step_columns_any<kErase, 2>(h, value + at, state + at, out + at, tail);
    } else {
      step_columns_any<kErase, 1>(h, value + at, state + at, out + at, tail);
    }
  }
}

template <Erase kErase>
void step_head(const StepCall& call, const StepScratch& scratch, int64_t sequence, int64_t head) {
  const StateTransitionProblem& problem = call.problem;
  const StateTransitionRows<const float>& rows = call.rows;
  const int64_t K = problem.key_dim;
  const int64_t row = problem.sequences.begin[sequence];
  const int64_t key_head = head / heads_per_key(problem);
  const float* q = rows.q.at(row, key_head);
  const float* k = rows.k.at(row, key_head);
  StepHead h{.key_dim = K,
             .value_dim = problem.value_dim,
             .alpha = scratch.alpha,
             .read_old = scratch.read_old,
             .read_new = q,
             .write = k,
             .key = k,
             .amount = rows.beta ? rows.beta.at(row, head)[0] : 1.0f,
             .write_dot = 0.0f,
             .key_dot = 0.0f,
             .scale = static_cast<float>(problem.scale)};
  decay_factors(problem, rows.g, row, head, scratch.alpha);
  if constexpr (kErase != Erase::kNone) {
    multiply_rows(scratch.alpha, q, scratch.read_new, K);
    h.read_new = scratch.read_new;
    if constexpr (kErase == Erase::kDelta) {
      multiply_rows(scratch.alpha, k, scratch.read_old, K);
    } else {
      h.read_old = rows.b.at(row, key_head);
      h.write = rows.a.at(row, key_head);
      h.key_dot = dot(k, q, K);
    }
    h.write_dot = dot(h.write, q, K);
  }
  step_state<kErase>(h, rows.v.at(row, head), call.state[sequence] + head * K * problem.value_dim,
                     call.out.at(row, head));
}

void transition_step_items(const StepCall& call, int64_t begin, int64_t end, float* memory) {
  const StepScratch scratch(call.problem.key_dim, memory);
  const int64_t heads = call.problem.num_heads;
  for (int64_t item = begin; item < end; ++item) {
    switch (call.problem.erase) {
      case Erase::kNone: step_head<Erase::kNone>(call, scratch, item / heads, item % heads); break;
      case Erase::kDelta:
        step_head<Erase::kDelta>(call, scratch, item / heads, item % heads);
        break;
      case Erase::kRankOne:
        step_head<Erase::kRankOne>(call, scratch, item / heads, item % heads);
        break;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(transition_step_items);

/// Below this many state elements per call, waking the threads costs more than it saves.
constexpr int64_t kParallelStep = int64_t{1} << 17;

}  // namespace

void transition_step(const StateTransitionProblem& problem,
                     const StateTransitionRows<const float>& rows, float* const* state,
                     Heads<float> out, Arena& arena) noexcept {
  StepCall call{problem, rows, state, out, HWY_DYNAMIC_DISPATCH(transition_step_items)};
  call.scratch_size = StepScratch(problem.key_dim, nullptr).space.used();
  const int64_t items = problem.sequences.count * problem.num_heads;
  const int64_t work = items * problem.key_dim * problem.value_dim;
  run_tasks(work < kParallelStep ? nullptr : problem.pool, items, call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
