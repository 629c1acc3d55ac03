// What every store does when several writers want the same thing: threads and processes.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "unit/serve/store_fixture.h"

namespace tarn::serve {
namespace {

class RaceTest : public StoreTest {
 protected:
  /// Runs `body(i)` in processes of their own; the sum of what they return (0 to 100 each).
  static int in_processes(int count, const std::function<int(int)>& body) {
    std::vector<pid_t> children;
    for (int i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child == 0) _exit(body(i));
      children.push_back(child);
    }
    int sum = 0;
    for (const pid_t child : children) {
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status)) << "a process was killed by signal " << WTERMSIG(status);
      EXPECT_LE(WEXITSTATUS(status), 100) << "a process met an error other than a conflict";
      sum += WEXITSTATUS(status);
    }
    return sum;
  }
  static void in_threads(int count, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
    for (std::thread& thread : threads) thread.join();
  }
};
TARN_FOR_EVERY_STORE(RaceTest);

constexpr int kWriters = 4;
constexpr int kRounds = 12;

TEST_P(RaceTest, OneThreadWinsEachVersion) {
  for (int64_t round = 0; round < kRounds; ++round) {
    std::atomic<int> won{0}, conflicts{0};
    in_threads(kWriters, [&](int i) {
      const std::string payload = "writer " + std::to_string(i);
      const auto saved = store_->save(request("a", payload, round));
      if (saved.ok()) {
        ++won;
      } else if (saved.error().code == ErrorCode::kConflict) {
        ++conflicts;
      } else {
        ADD_FAILURE() << saved.error().to_string();
      }
    });
    ASSERT_EQ(won, 1);
    ASSERT_EQ(conflicts, kWriters - 1);
  }
  EXPECT_EQ(store_->load("a", kModel)->seq, kRounds);
}

TEST_P(RaceTest, OneProcessWinsEachVersion) {
  if (!place_->outlives_process()) return;  // no other process can see it
  store_.reset();
  const int won = in_processes(kWriters, [&](int i) {
    auto store = place_->store(options_);
    int wins = 0;
    for (int64_t round = 0; round < kRounds; ++round) {
      for (;;) {  // until this round is decided
        const auto saved = store->save(request("a", "writer " + std::to_string(i), round));
        if (saved.ok()) ++wins;
        if (saved.ok() || saved.error().code == ErrorCode::kConflict) break;
        fprintf(stderr, "%s\n", saved.error().to_string().c_str());
        return 101;
      }
    }
    return wins;
  });
  // Each number was given once, although everybody tried for it.
  store_ = place_->store(options_);
  const auto record = store_->load("a", kModel);
  ASSERT_TRUE(record.ok()) << record.error().to_string();
  EXPECT_EQ(record->seq, won);
  EXPECT_LE(won, kRounds);
  EXPECT_GE(won, 1);
}

TEST_P(RaceTest, OneProcessGetsTheLease) {
  if (!place_->outlives_process()) return;
  store_.reset();
  const int got = in_processes(kWriters, [&](int i) {
    auto store = place_->store(options_);
    const auto lease = store->acquire_lease("a", "process-" + std::to_string(i), 60);
    if (!lease.ok() && lease.error().code != ErrorCode::kConflict) return 101;
    return lease.ok() ? 1 : 0;
  });
  EXPECT_EQ(got, 1);
  store_ = place_->store(options_);
}

TEST_P(RaceTest, ReadersSeeWholeVersionsWhileWritersReplaceThem) {
  options_.keep_versions = 1;
  options_.chunk_above_bytes = 100'000;
  reopen();
  // Half of the versions are in chunks. The payload follows from the token count.
  const auto payload_of = [](int64_t i) {
    return noise(static_cast<size_t>(i % 2 == 0 ? 70'000 : 300'000), static_cast<uint64_t>(i));
  };
  save("a", payload_of(0), 0);
  std::atomic<bool> done{false};
  std::atomic<int> loads{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!done) {
        const auto record = store_->load("a", kModel);
        if (!record.ok()) {
          ADD_FAILURE() << record.error().to_string();
          return;
        }
        if (record->payload != payload_of(record->seq - 1)) ADD_FAILURE() << record->seq;
        ++loads;
      }
    });
  }
  for (int64_t i = 1; i < 60; ++i) save("a", payload_of(i), i);
  while (loads < 20) std::this_thread::yield();
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_TRUE(objects("n/").empty());
}

TEST_P(RaceTest, SharedChunksOutliveTheirWriters) {
  options_.keep_versions = 1;
  options_.chunk_above_bytes = 1000;
  reopen();
  // Every session holds the same chunk or none: counts go up and down all the time.
  const std::string shared = noise(2000, 9);
  in_threads(3, [&](int i) {
    const std::string id = "s" + std::to_string(i);
    for (int64_t round = 0; round < 20; ++round) {
      save(id, round % 2 == 0 ? shared : "none", round);
      if (round % 2 == 0) {
        EXPECT_EQ(load(id), shared);
      }
    }
  });
  EXPECT_TRUE(objects("c/").empty());
  EXPECT_TRUE(objects("n/").empty());
}

TEST_P(RaceTest, NothingAcknowledgedIsLostWhenTheServerFalls) {
  options_.sync = true;
  reopen();
  std::atomic<bool> done{false};
  std::atomic<int64_t> acknowledged{save("a", noise(50'000, 1), 0)};
  std::thread writer([&] {
    while (!done) {
      // After an error the writer does not know whether its save arrived: it looks.
      const auto record = store_->load("a", kModel);
      if (!record.ok()) continue;
      const int64_t next = record->seq + 1;
      const auto saved =
          store_->save(request("a", noise(50'000, static_cast<uint64_t>(next)), record->seq));
      if (saved.ok()) acknowledged = saved->seq;
    }
  });
  const auto wait_for_saves = [&] {
    const int64_t before = acknowledged;
    for (int i = 0; i < 3000 && acknowledged < before + 3; ++i) usleep(10'000);
    EXPECT_GE(acknowledged, before + 3) << "no saves arrive";
  };
  for (int i = 0; i < 3; ++i) {
    wait_for_saves();
    if (!place_->restart()) break;
  }
  wait_for_saves();
  done = true;
  writer.join();
  const auto record = store_->load("a", kModel);
  ASSERT_TRUE(record.ok()) << record.error().to_string();
  EXPECT_GE(record->seq, acknowledged);
  EXPECT_EQ(record->payload, noise(50'000, static_cast<uint64_t>(record->seq)));
}

}  // namespace
}  // namespace tarn::serve
