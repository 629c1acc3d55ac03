#pragma once

#include <algorithm>
#include <cstdint>

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/cpu/state_update_scratch.h"
#include "kernels/state_transition.h"

namespace tarn::kernels {

/// Heads of v that read one head of q and k.
inline int64_t heads_per_key(const StateTransitionProblem& problem) {
  return problem.num_heads / problem.num_key_heads;
}

/// Runs `call.run(call, begin, end, scratch)` over `count` tasks, each thread with
/// `call.scratch_size` floats of its own. The closure is one pointer, so that the function object
/// needs no memory.
template <class Call>
void run_tasks(ThreadPool* pool, int64_t count, Call& call, Arena& arena) {
  ArenaScope scope(arena);
  const int64_t threads = pool != nullptr ? pool->num_threads() : 1;
  call.scratch = arena.alloc<float>(threads * call.scratch_size);
  parallel_for(pool, count, [&call](int64_t begin, int64_t end, int thread) {
    call.run(call, begin, end, call.scratch + thread * call.scratch_size);
  });
}

/// One step call: what all its (sequence, head) pairs share.
struct StepCall {
  const StateTransitionProblem& problem;
  const StateTransitionRows<const float>& rows;
  float* const* state;
  Heads<float> out;
  void (*run)(const StepCall& call, int64_t begin, int64_t end, float* memory);
  int64_t scratch_size = 0;
  float* scratch = nullptr;
};

/// Coefficients of one head's token, by key channel.
struct StepScratch {
  StepScratch(int64_t key_dim, float* memory) : space(memory) {
    alpha = space.take(key_dim);
    read_old = space.take(key_dim);
    read_new = space.take(key_dim);
  }
  Scratch space;
  float* alpha;     // [K]: e^g
  float* read_old;  // [K]: α∘k (kDelta): what asks the state for that which is erased
  float* read_new;  // [K]: α∘q
};

}  // namespace tarn::kernels
