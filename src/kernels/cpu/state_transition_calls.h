#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/cpu/state_update_scratch.h"
#include "kernels/state_transition.h"

namespace tarn::kernels {

/// Heads of v that read one head of q and k.
inline int64_t heads_per_key(const StateTransitionProblem& problem) {
  return problem.num_heads / problem.num_key_heads;
}

/// Calls `body` with the problem's policies as compile-time constants: whether channels decay each
/// for itself, and Erase.
template <class Body>
void with_policies(const StateTransitionProblem& problem, const Body& body) {
  const auto with_erase = [&](auto channels) {
    switch (problem.erase) {
      case Erase::kNone: body(channels, std::integral_constant<Erase, Erase::kNone>()); break;
      case Erase::kDelta: body(channels, std::integral_constant<Erase, Erase::kDelta>()); break;
      case Erase::kRankOne: body(channels, std::integral_constant<Erase, Erase::kRankOne>()); break;
    }
  };
  if (problem.decay == Decay::kPerChannel) {
    with_erase(std::true_type());
  } else {
    with_erase(std::false_type());
  }
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

/// n rounded up to whole cache lines of floats.
inline int64_t round_up_line(int64_t n) {
  constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(float));
  return (n + kLine - 1) / kLine * kLine;
}

/// Tokens per chunk: what the caller asked for, else `automatic`; no more than the longest sequence,
/// than 64, and, if channels decay each for itself, than 16.
inline int64_t transition_chunk_tokens(const StateTransitionProblem& problem, int64_t automatic) {
  const int64_t most = problem.decay == Decay::kPerChannel ? 16 : 64;
  const int64_t wanted = problem.chunk_size > 0 ? problem.chunk_size : automatic;
  int64_t longest = 1;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    longest = std::max(longest, problem.sequences.length[i]);
  }
  return std::min({wanted, longest, most});
}

/// Heads of one sequence that take turns chunk by chunk, so that memory is read in long runs: the
/// rows of one head alone lie far apart. As many as keep their states in the second-level cache.
inline int64_t transition_heads_in_turn(const StateTransitionProblem& problem) {
  constexpr int64_t kFloats = int64_t{1} << 17;
  const int64_t size = std::max<int64_t>(1, problem.key_dim * problem.value_dim);
  return std::clamp<int64_t>(kFloats / size, 1, std::max<int64_t>(1, problem.num_heads));
}

/// Matrices of one chunk of n ≤ C tokens. Readers are the rows that ask the state: q, and k (kDelta)
/// or b (kRankOne). Writers are those that write to it: k, or a and k (kRankOne); what they write is
/// their payload. With n tokens, rows of the second reader or writer begin at n. The strides are
/// whole cache lines.
struct ChunkScratch {
  ChunkScratch(const StateTransitionProblem& problem, int64_t tokens, Scratch& space)
      : chunk(tokens),
        readers(problem.erase == Erase::kNone ? 1 : 2),
        writers(problem.erase == Erase::kRankOne ? 2 : 1),
        key_stride(round_up_line(problem.key_dim)),
        value_stride(round_up_line(problem.value_dim)),
        token_stride(round_up_line(writers * tokens)) {
    const bool channels = problem.decay == Decay::kPerChannel;
    const int64_t per_token = channels ? key_stride : 1;
    read = space.take(readers * chunk * key_stride);
    end = space.take(writers * chunk * key_stride);
    columns = space.take(problem.key_dim * token_stride + kSlack);
    weights = space.take(readers * chunk * token_stride);
    payload = space.take(writers * chunk * value_stride);
    old = space.take(chunk * value_stride);
    solver = space.take(chunk * token_stride);
    between = space.take(chunk * (channels ? key_stride : round_up_line(chunk)));
    from_start = space.take(chunk * per_token);
    to_end = space.take(chunk * per_token);
    sum = space.take(channels ? key_stride : round_up_line(chunk));
    end_decay = space.take(key_stride);
    beta = space.take(chunk);
  }
  /// Vectors of tokens may be loaded beyond the last writer.
  static constexpr int64_t kSlack = 16;

  int64_t chunk, readers, writers, key_stride, value_stride, token_stride;
  float* read;     // [readers·n, K]: readers, decayed since the chunk's start; q times scale
  float* end;      // [writers·n, K]: writers, decayed to the chunk's end
  float* columns;  // [K, writers·n]: writers, transposed
  float* weights;  // [readers·n, writers·n]: reader · writer with the decay between them, masked
  float* payload;  // [writers·n, V]
  float* old;      // [n, V]: kDelta: v less what the state answered to k
  float* solver;   // [n, n]: a row's coefficients of earlier rows of `old`
  float* between;  // [n, n] decays between tokens, or [n, K] decays of tokens (kPerChannel)
  float* from_start;  // [n] or [n, K] decays from the chunk's start through a token
  float* to_end;      // [n] or [n, K] decays after a token through the chunk's end
  float* sum;         // sums of log decays
  float* end_decay;   // [K]: decay of the whole chunk
  float* beta;        // [n]
};

/// One forward call: what all its tasks, (sequence, head) pairs, share.
struct TransitionForwardCall {
  const StateTransitionProblem& problem;
  const StateTransitionRows<const float>& rows;
  float* const* state;
  Heads<float> out;
  int64_t chunk;
  int64_t turn;  ///< most heads that take turns
  void (*run)(const TransitionForwardCall& call, int64_t begin, int64_t end, float* memory);
  int64_t scratch_size = 0;
  float* scratch = nullptr;
};

struct TransitionForwardScratch {
  TransitionForwardScratch(const TransitionForwardCall& call, float* memory)
      : space(memory), chunk(call.problem, call.chunk, space) {
    const int64_t size = call.problem.key_dim * call.problem.value_dim;
    states = space.take(call.state == nullptr ? call.turn * size : 0);
  }
  Scratch space;
  ChunkScratch chunk;
  float* states;  // [turn, K, V], when the caller keeps none
};

/// One backward call. Tasks are (sequence, key head), so that a key head's gradients are summed by
/// one thread, in order.
struct TransitionBackwardCall {
  const StateTransitionProblem& problem;
  const StateTransitionRows<const float>& rows;
  const float* const* initial;
  Heads<const float> dout;
  const float* const* dfinal;
  const StateTransitionGradients& gradients;
  int64_t chunk;
  void (*run)(const TransitionBackwardCall& call, int64_t begin, int64_t end, float* memory);
  int64_t turn = 1;      ///< most key heads that take turns
  int64_t segment = 1;   ///< chunks whose matrices are kept at a time
  int64_t segments = 1;  ///< most segments of a sequence; the state before each is kept
  int64_t scratch_size = 0;
  float* scratch = nullptr;
};

/// How much a backward call keeps: states before segments are few floats beside a segment's rows,
/// and what is kept of a segment's chunks stays in the caches.
inline void choose_segments(TransitionBackwardCall& call) {
  constexpr int64_t kMostInTurn = 4;
  const StateTransitionProblem& problem = call.problem;
  const int64_t heads = std::min(kMostInTurn, transition_heads_in_turn(problem));
  call.turn = std::clamp<int64_t>(heads / heads_per_key(problem), 1, problem.num_key_heads);
  int64_t chunks = 1;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    chunks = std::max(chunks, (problem.sequences.length[i] + call.chunk - 1) / call.chunk);
  }
  call.segment = std::min<int64_t>(16, chunks);
  call.segments = (chunks + call.segment - 1) / call.segment;
}

/// What is kept of one chunk of a segment.
struct TransitionSlot {
  TransitionSlot(const TransitionBackwardCall& call, float* memory)
      : space(memory), chunk(call.problem, call.chunk, space) {
    state = space.take(call.problem.key_dim * call.problem.value_dim);
  }
  Scratch space;
  ChunkScratch chunk;
  float* state;  // [K, V]: before the chunk
};

struct TransitionBackwardScratch {
  TransitionBackwardScratch(const TransitionBackwardCall& call, float* memory)
      : space(memory), slot_size(TransitionSlot(call, nullptr).space.used()) {
    const StateTransitionProblem& problem = call.problem;
    const ChunkScratch chunk = TransitionSlot(call, nullptr).chunk;
    const int64_t size = problem.key_dim * problem.value_dim;
    const int64_t heads = call.turn * heads_per_key(problem);
    const int64_t n = call.chunk;
    const bool channels = problem.decay == Decay::kPerChannel;
    before = space.take(heads * call.segments * size);
    dstates = space.take(heads * size);
    slots = space.take(heads * call.segment * slot_size);
    state_columns = space.take(problem.value_dim * chunk.key_stride);
    dstate_columns = space.take(problem.value_dim * chunk.key_stride);
    payload_columns = space.take(problem.value_dim * chunk.token_stride);
    danswer = space.take(chunk.readers * n * chunk.value_stride);
    dpayload = space.take(chunk.writers * n * chunk.value_stride);
    dread = space.take(chunk.readers * n * chunk.key_stride);
    dend = space.take(chunk.writers * n * chunk.key_stride);
    dweights = space.take(chunk.readers * n * chunk.token_stride + ChunkScratch::kSlack);
    dlog_decay = space.take(channels ? n * chunk.key_stride : n);
    dwhole = space.take(chunk.key_stride);
  }
  Scratch space;
  int64_t slot_size;
  float* before;          // [heads, segments, K, V]: states before segments
  float* dstates;         // [heads, K, V]: gradient of the state after a chunk, then of that before
  float* slots;           // [heads, segment]
  float* state_columns;   // [V, K]
  float* dstate_columns;  // [V, K]
  float* payload_columns;  // [V, writers·n]
  float* danswer;          // [readers·n, V]: of what the readers got
  float* dpayload;         // [writers·n, V]
  float* dread;            // [readers·n, K]: of `read`, then of the readers
  float* dend;             // [writers·n, K]: of `end`, then of the writers
  float* dweights;         // [readers·n, writers·n]
  float* dlog_decay;       // [n] or [n, K]
  float* dwhole;           // [K]: of the chunk's log decay through the state that passes it
};

}  // namespace tarn::kernels
