// How long calls of a store wait when what they wait for does not come.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "unit/serve/servers.h"
#include "unit/serve/store_fixture.h"

namespace tarn::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int64_t kLimitMs = 300;

/// What a busy machine may add; a call without a limit waits for ever.
constexpr int64_t kSlackMs = 30'000;

/// `call` must end with kIo, not before the limit and not long after it.
void expect_time_out(const char* what, const std::function<Status()>& call,
                     milliseconds least = milliseconds(kLimitMs)) {
  const auto begin = Clock::now();
  const Status status = call();
  const auto took = Clock::now() - begin;
  ASSERT_FALSE(status.ok()) << what;
  EXPECT_EQ(status.error().code, ErrorCode::kIo) << what << ": " << status.error().to_string();
  EXPECT_NE(status.error().message.find("300 ms"), std::string::npos) << status.error().to_string();
  EXPECT_GE(took, least) << what;
  EXPECT_LT(took, milliseconds(kLimitMs + kSlackMs)) << what;
}

class StoreWaitTest : public StoreTest {};
INSTANTIATE_TEST_SUITE_P(Servers, StoreWaitTest, testing::ValuesIn(server_kinds()), kind_name);

TEST_P(StoreWaitTest, ADatabaseThatDoesNotAnswerIsNotWaitedFor) {
  options_.busy_timeout_ms = kLimitMs;
  auto opened = place_->objects(options_);
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  Objects& objects = **opened;
  const auto put = [&](size_t bytes) {
    return objects.update([&](PlanReader& reader) -> Result<Plan> {
      TARN_RETURN_IF_ERROR(reader.get("s/a"));
      Plan plan;
      plan.commit = Change{"s/a", noise(bytes, bytes)};
      return plan;
    });
  };
  ASSERT_TRUE(put(10).ok());
  ASSERT_TRUE(place_->freeze(true));
  // The first finds an idle connection, the others open new ones.
  expect_time_out("get", [&]() -> Status {
    TARN_RETURN_IF_ERROR(objects.get("s/a"));
    return {};
  });
  expect_time_out("update", [&] { return put(1000); });
  expect_time_out("scan", [&]() -> Status {
    TARN_RETURN_IF_ERROR(objects.scan("s/", "s/", 10));
    return {};
  });
  ASSERT_TRUE(place_->freeze(false));
  EXPECT_EQ(*objects.get("s/a"), noise(10, 10));
  // In the middle of a write that no buffer holds.
  bool frozen = false;
  expect_time_out(
      "a large update",
      [&] {
        return objects.update([&](PlanReader& reader) -> Result<Plan> {
          if (!frozen) {
            TARN_RETURN_IF_ERROR(reader.get("s/a"));
            frozen = place_->freeze(true);
          }
          Plan plan;
          plan.commit = Change{"s/a", noise(16 << 20, 1)};
          return plan;
        });
      },
      milliseconds(kLimitMs - 100));
  ASSERT_TRUE(place_->freeze(false));
  EXPECT_EQ(*objects.get("s/a"), noise(10, 10));
  ASSERT_TRUE(put(20).ok());
  EXPECT_EQ(*objects.get("s/a"), noise(20, 20));
}

TEST(RedisSettingsTest, ASaveTellsWhatItsDatabasePromisesNow) {
  std::string why_not;
  const auto place = make_redis(&why_not);
  if (place == nullptr) GTEST_SKIP() << why_not;
  const auto store = place->store();
  SaveRequest request;
  request.id = "a";
  EXPECT_EQ(store->save(request)->durability, Durability::kPower);
  StoreOptions lax;
  lax.sync = false;
  ASSERT_TRUE(place->objects(lax).ok());  // somebody sets the whole database to everysec
  request.expected_seq = 1;
  EXPECT_EQ(store->save(request)->durability, Durability::kProcess);
}

TEST(DirectoryWaitTest, ThreadsThatWaitForALockDoNotAddUpTheirTimes) {
  std::string folder = (std::filesystem::temp_directory_path() / "tarn-wait-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  StoreOptions options;
  options.busy_timeout_ms = kLimitMs;
  auto objects = open_objects("dir:" + folder + "/d", options);
  ASSERT_TRUE(objects.ok());
  const int fd = ::open((folder + "/d/lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const auto write = [&] {
    return (*objects)->update([](PlanReader&) -> Result<Plan> {
      Plan plan;
      plan.commit = Change{"s/a", "x"};
      return plan;
    });
  };
  std::vector<std::thread> threads;
  for (int64_t i = 0; i <= kSlackMs / kLimitMs + 1; ++i) {
    threads.emplace_back([&] { expect_time_out("update", write); });
  }
  for (std::thread& thread : threads) thread.join();
  ::close(fd);
  EXPECT_TRUE(write().ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tarn::serve
