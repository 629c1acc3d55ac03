// Counts every allocation of this test program that goes through operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "runtime/session.h"
#include "unit/runtime/tiny_models.h"

namespace {
std::atomic<int64_t> allocations = 0;
}  // namespace

// Not inlined: gcc would see new without its delete, or the other way round, and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* pointer = std::malloc(size == 0 ? 1 : size)) return pointer;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, size_t) noexcept { std::free(pointer); }

namespace tarn::runtime {
namespace {

constexpr int64_t kSteps = 50;
constexpr size_t kBatch = 5;

/// Allocations of `kSteps` passes of the model alone over a batch, after a warm-up.
int64_t allocations_of_forward(const std::shared_ptr<const model::Model>& model, ThreadPool* pool) {
  std::vector<SequenceState> states;
  for (size_t i = 0; i < kBatch; ++i) {
    states.emplace_back(model);
    EXPECT_TRUE(states.back().reserve(96).ok());
  }
  std::vector<SequenceState*> pointers;
  for (SequenceState& state : states) pointers.push_back(&state);
  StateBatch batch(*model);
  batch.bind(pointers);
  const std::vector<int64_t> begin{0, 1, 2, 3, 4};
  const std::vector<int64_t> length(kBatch, 1);
  std::vector<int64_t> positions(kBatch, 0);
  const std::vector<int32_t> inputs(kBatch, 1);
  std::vector<float> outputs(kBatch * static_cast<size_t>(model->config().head.output_dim()));
  Arena arena;
  int64_t before = 0;
  for (int64_t step = 0; step < kSteps + 3; ++step) {
    if (step == 3) before = allocations;
    const model::TokenBatch tokens{
        {int64_t{kBatch}, begin.data(), length.data()}, positions.data(), inputs.data()};
    model->forward(tokens, batch.layers(), mixers::Form::kStep, model::Outputs::kLastRowOfEach,
                   outputs.data(), pool, arena);
    for (int64_t& position : positions) ++position;
  }
  return allocations - before;
}

TEST(Allocation, StepsAllocateNothingBeyondTheModelsPass) {
  for (const NamedMixers& stack : causal_stacks()) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE(stack.name);
      const auto model = tiny_model(stack.layers);
      ThreadPool pool(threads);
      Generator generator(model, &pool);
      std::vector<Session> sessions;
      std::vector<Session*> batch;
      for (uint64_t i = 0; i < kBatch; ++i) {
        sessions.emplace_back(model, Session::Options{1, i, true});
        ASSERT_TRUE(sessions.back().reserve(96).ok());
      }
      for (Session& session : sessions) batch.push_back(&session);
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(generator.step(batch, {.top_k = 5}).ok());
      const int64_t before = allocations;
      bool ok = true;
      for (int64_t i = 0; i < kSteps; ++i) ok = generator.step(batch, {.top_k = 5}).ok() && ok;
      const int64_t used = allocations - before;
      EXPECT_TRUE(ok);
      EXPECT_EQ(used, allocations_of_forward(model, &pool));
    }
  }
}

}  // namespace
}  // namespace tarn::runtime
