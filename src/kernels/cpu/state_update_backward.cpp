#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_update_calls.h"
#include "kernels/state_update.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_update_backward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/state_scan-inl.h"
#include "kernels/cpu/state_update_backward-inl.h"
#include "kernels/cpu/state_update_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

HWY_INLINE void causal_prefix_chunk(const BackwardHead& h, int64_t chunk, const RowsAhead& ahead) {
  const int64_t row = h.chunk_row(chunk);
  const int64_t tokens = h.chunk_length(chunk);
  h.prepare(row, 0, tokens);
  if (!h.call.stream) {
    prefetch_for_writing(h.call.gradients.dq, row, tokens, h.head, h.call.problem.key_dim);
  }
  scan_and_prefetch(h.query_scan(), tokens, ahead);
  h.write_dq(row, 0, tokens);
}

HWY_INLINE void causal_suffix_chunk(const BackwardHead& h, int64_t chunk, const RowsAhead& ahead) {
  const int64_t row = h.chunk_row(chunk);
  const int64_t tokens = h.chunk_length(chunk);
  h.prepare(row, 0, tokens);
  if (!h.call.stream) {
    prefetch_for_writing(h.call.gradients.dv, row, tokens, h.head, h.value_dim());
  }
  scan_and_prefetch(h.value_scan(row, tokens - 1), tokens, ahead);
  if (!h.call.stream) {
    prefetch_for_writing(h.call.gradients.dk, row, tokens, h.head, h.call.problem.key_dim);
  }
  scan(h.key_scan(tokens - 1), tokens);
  h.write_dk(row, 0, tokens);
}

void causal_backward_items(const BackwardCall& call, int64_t begin, int64_t end, float* memory) {
  const BackwardScratch scratch = BackwardScratch::alone(call, memory);
  while (begin < end) {
    const HeadGroup group = HeadGroup::at(call.problem, begin, end, call.group);
    begin += group.count;
    const auto head = [&](int64_t i) {
      return BackwardHead{call, scratch, group.sequence, group.first + i, i};
    };
    const int64_t chunks = head(0).num_chunks();
    for (int64_t i = 0; i < group.count; ++i) head(i).load_states();
    // The heads take turns: after the last one the first reads on, in the pass's direction.
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t i = 0; i < group.count; ++i) {
        const bool same_rows = i + 1 < group.count;
        const BackwardHead h = head(i);
        causal_prefix_chunk(h, chunk,
                            h.rows_ahead(h.chunk_row(same_rows ? chunk : chunk + 1),
                                         group.first + (same_rows ? i + 1 : 0)));
      }
    }
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      for (int64_t i = 0; i < group.count; ++i) {
        const bool same_rows = i + 1 < group.count;
        const BackwardHead h = head(i);
        causal_suffix_chunk(h, chunk,
                            h.rows_ahead(h.chunk_row(same_rows ? chunk : chunk - 1),
                                         group.first + (same_rows ? i + 1 : 0)));
      }
    }
    for (int64_t i = 0; i < group.count; ++i) head(i).store_initial_gradient();
  }
  if (call.stream) hwy::FlushStream();
}

/// One head by all threads, each with columns of every state of its own. Every thread prepares all
/// rows, which costs less than fetching what another core has written; only dφ changes hands.
void causal_backward_shared(const BackwardCall& call, int64_t item, float* memory) {
  const int64_t threads = call.problem.pool->num_threads();
  const HeadGroup group = HeadGroup::at(call.problem, item, item + 1, 1);
  const BackwardScratch common = BackwardScratch::shared(call, memory);
  const auto own = [&](int64_t thread) {
    BackwardScratch scratch = BackwardScratch::shared(call, memory + thread * common.space.used());
    scratch.dphi = common.dphi;
    scratch.r = common.r;
    scratch.prefix = common.prefix;
    scratch.suffix = common.suffix;
    return scratch;
  };
  const auto with_head = [&](int64_t thread, const auto& body) {
    const BackwardScratch scratch = own(thread);
    body(BackwardHead{call, scratch, group.sequence, group.first, 0});
    if (call.stream) hwy::FlushStream();
  };
  const Together together{call.problem.pool};
  const BackwardHead whole{call, common, group.sequence, group.first, 0};
  whole.load_states();
  for (int64_t chunk = 0; chunk < whole.num_chunks(); ++chunk) {
    const int64_t row = whole.chunk_row(chunk);
    const int64_t tokens = whole.chunk_length(chunk);
    together(threads, [&](int64_t thread, int64_t, int) {
      with_head(thread, [&](const BackwardHead& h) {
        h.prepare(row, 0, tokens);
        scan_part(h.query_scan(), tokens, thread, threads);
      });
    });
    together(threads, [&](int64_t thread, int64_t, int) {
      with_head(thread, [&](const BackwardHead& h) {
        h.write_dq(row, tokens * thread / threads, tokens * (thread + 1) / threads);
      });
    });
  }
  for (int64_t chunk = whole.num_chunks() - 1; chunk >= 0; --chunk) {
    const int64_t row = whole.chunk_row(chunk);
    const int64_t tokens = whole.chunk_length(chunk);
    together(threads, [&](int64_t thread, int64_t, int) {
      with_head(thread, [&](const BackwardHead& h) {
        h.prepare(row, 0, tokens);
        scan_part(h.value_scan(row, tokens - 1), tokens, thread, threads);
        scan_part(h.key_scan(tokens - 1), tokens, thread, threads);
      });
    });
    together(threads, [&](int64_t thread, int64_t, int) {
      with_head(thread, [&](const BackwardHead& h) {
        h.write_dk(row, tokens * thread / threads, tokens * (thread + 1) / threads);
      });
    });
  }
  whole.store_initial_gradient();
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(causal_backward_items);
HWY_EXPORT(causal_backward_shared);

}  // namespace

void causal_backward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                     Heads<const float> v, Heads<const float> out, const float* denominator,
                     StatePointers<const float> initial, Heads<const float> dout,
                     StatePointers<const float> dfinal, const StateUpdateGradients& gradients,
                     Arena& arena) noexcept {
  BackwardCall call{problem,
                    q,
                    k,
                    v,
                    out,
                    denominator,
                    initial,
                    dout,
                    dfinal,
                    gradients,
                    causal_chunk_tokens(problem),
                    0,
                    bypasses_caches(problem, gradients.dq, problem.key_dim) &&
                        bypasses_caches(problem, gradients.dk, problem.key_dim) &&
                        bypasses_caches(problem, gradients.dv, problem.value_dim),
                    HWY_DYNAMIC_DISPATCH(causal_backward_items),
                    HWY_DYNAMIC_DISPATCH(causal_backward_shared)};
  call.group = heads_in_turn(
      problem, problem.feature_map.feature_dim * (2 * call.extended_dim() + problem.value_dim));
  run_call<BackwardScratch>(call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
