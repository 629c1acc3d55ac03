#include "base/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

namespace tarn {
namespace {

using Piece = std::tuple<int64_t, int64_t, int>;

std::vector<Piece> pieces_of(ThreadPool& pool, int64_t count) {
  std::mutex mutex;
  std::vector<Piece> pieces;
  pool.parallel_for(count, [&](int64_t begin, int64_t end, int thread) {
    std::lock_guard lock(mutex);
    pieces.emplace_back(begin, end, thread);
  });
  std::sort(pieces.begin(), pieces.end());
  return pieces;
}

TEST(ThreadPool, PiecesCoverTheRangeOnceAndDoNotDependOnTiming) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      const std::vector<Piece> pieces = pieces_of(pool, count);
      EXPECT_LE(static_cast<int>(pieces.size()), threads);
      int64_t next = 0;
      for (const auto& [begin, end, thread] : pieces) {
        EXPECT_EQ(begin, next);
        EXPECT_LT(begin, end);
        EXPECT_LT(thread, threads);
        next = end;
      }
      EXPECT_EQ(next, count);
      for (int repeat = 0; repeat < 20; ++repeat) EXPECT_EQ(pieces_of(pool, count), pieces);
    }
  }
}

TEST(ThreadPool, ReturnsOnlyWhenAllPiecesAreDone) {
  ThreadPool pool(3);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<int> touched(17, 0);
    pool.parallel_for(17, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++touched[i];
    });
    EXPECT_EQ(touched, std::vector<int>(17, 1));
  }
}

TEST(ThreadPool, NestedLoopsRunSerially) {
  ThreadPool pool(2);
  std::atomic<int> inner_calls = 0;
  pool.parallel_for(2, [&](int64_t, int64_t, int) {
    const std::thread::id outer = std::this_thread::get_id();
    pool.parallel_for(100, [&](int64_t begin, int64_t end, int thread) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      EXPECT_EQ(end - begin, 100);
      EXPECT_EQ(thread, 0);
      ++inner_calls;
    });
  });
  EXPECT_EQ(inner_calls, 2);
}

TEST(ThreadPool, LentThreadsGetTheSamePieces) {
  ThreadPool own(3);
  ThreadPool lent(3, [](int pieces, const std::function<void(int)>& piece) {
    for (int i = pieces - 1; i >= 0; --i) piece(i);
  });
  EXPECT_EQ(pieces_of(own, 10), pieces_of(lent, 10));
}

TEST(ThreadPool, AtLeastOneThreadTakesPart) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.num_threads(), 1);
  EXPECT_GE(available_threads(), 1);
}

TEST(ParallelFor, WithoutAPoolIsOneSerialCall) {
  int calls = 0;
  parallel_for(nullptr, 5, [&](int64_t begin, int64_t end, int thread) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 5);
    EXPECT_EQ(thread, 0);
    ++calls;
  });
  parallel_for(nullptr, 0, [&](int64_t, int64_t, int) { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace tarn
