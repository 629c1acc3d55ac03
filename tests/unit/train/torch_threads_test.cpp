#include "train/torch_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace tarn::train {
namespace {

TEST(TorchThreads, RunEveryPieceOnceWithTheStaticSplit) {
  for (const int threads : {1, 2, 3}) {
    const auto pool = torch_thread_pool(threads);
    EXPECT_EQ(pool->num_threads(), threads);
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
      std::vector<std::atomic<int64_t>> begins(static_cast<size_t>(threads));
      for (auto& begin : begins) begin = -1;
      pool->parallel_for(count, [&](int64_t begin, int64_t end, int piece) {
        begins[static_cast<size_t>(piece)] = begin;
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      for (const auto& visit : visits) EXPECT_EQ(visit, 1);
      if (count >= threads) {
        for (int piece = 0; piece < threads; ++piece) {
          EXPECT_EQ(begins[static_cast<size_t>(piece)], count * piece / threads);
        }
      }
    }
  }
}

TEST(TorchThreads, LoopsInsideLoopsRunSerially) {
  const auto pool = torch_thread_pool(2);
  std::atomic<int> visits{0};
  pool->parallel_for(2, [&](int64_t, int64_t, int) {
    pool->parallel_for(10, [&](int64_t begin, int64_t end, int piece) {
      EXPECT_EQ(piece, 0);
      visits += static_cast<int>(end - begin);
    });
  });
  EXPECT_EQ(visits, 20);
}

}  // namespace
}  // namespace tarn::train
