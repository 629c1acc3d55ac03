#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/json_override.h"
#include "train/checkpoint.h"
#include "train/torch_threads.h"
#include "train/trainer.h"
#include "unit/train/test_models.h"

namespace tarn::train {
namespace {

namespace fs = std::filesystem;

class ResumeTest : public testing::TestWithParam<const char*> {
 protected:
  ResumeTest()
      : folder_(fs::temp_directory_path() / ("tarn_resume_" + std::to_string(getpid()))),
        pool_(torch_thread_pool(1)) {
    fs::remove_all(folder_);
  }
  ~ResumeTest() override { fs::remove_all(folder_); }

  void use_threads(int count) { pool_ = torch_thread_pool(count); }
  std::string out(const std::string& name) const { return (folder_ / name).string(); }

  Result<TrainResult> run(const std::string& name, const std::string& override, bool resume,
                          const std::atomic<int>* stop = nullptr) {
    Json json = small_training_json(GetParam());
    if (!override.empty()) {
      TARN_RETURN_IF_ERROR(apply_override(json, override));
    }
    TARN_ASSIGN(const TrainConfig config, parse_train_config(json, "test"));
    TrainOptions options;
    options.out_directory = out(name);
    options.resume = resume;
    options.stop = stop;
    return train(config, options, pool_.get());
  }

  std::string model_bytes(const std::string& name) const {
    const auto content = read_file(out(name) + "/model.safetensors", 1 << 24);
    TARN_CHECK(content.ok());
    return *content;
  }
  /// Parameters, moments and averages; the header holds times, which differ.
  std::string state_bytes(const std::string& name) const {
    const auto content = read_file(out(name) + "/checkpoint/state.safetensors", 1 << 24);
    TARN_CHECK(content.ok());
    return content->substr(content->size() - 4 * 4 * 8000);
  }
  std::vector<Json> log(const std::string& name) const {
    const auto content = read_file(out(name) + "/log.jsonl", 1 << 24);
    TARN_CHECK(content.ok());
    std::vector<Json> events;
    std::istringstream lines(*content);
    for (std::string line; std::getline(lines, line);) {
      const auto event = parse_json(line, "log.jsonl");
      TARN_CHECK(event.ok());
      events.push_back(*event);
    }
    return events;
  }
  /// The log must have one end, in its last line.
  void expect_end(const std::string& name, int64_t update, bool stopped) const {
    const std::vector<Json> events = log(name);
    const auto is_end = [](const Json& event) { return *event.find("event") == Json("end"); };
    ASSERT_EQ(std::count_if(events.begin(), events.end(), is_end), 1);
    const Json& end = events.back();
    ASSERT_TRUE(is_end(end)) << end.dump();
    EXPECT_EQ(*end.find("update"), Json(update));
    EXPECT_EQ(*end.find("stopped"), Json(stopped));
    ASSERT_NE(end.find("seconds"), nullptr);
  }
  int64_t train_lines(const std::string& name) const {
    const std::vector<Json> events = log(name);
    return std::count_if(events.begin(), events.end(),
                         [](const Json& event) { return *event.find("event") == Json("train"); });
  }

 private:
  fs::path folder_;
  std::unique_ptr<ThreadPool> pool_;
};

TEST_P(ResumeTest, SameSeedSameBits) {
  ASSERT_TRUE(run("first", "", false).ok());
  ASSERT_TRUE(run("second", "", false).ok());
  EXPECT_EQ(model_bytes("first"), model_bytes("second"));
  ASSERT_TRUE(run("other", "training.seed=4", false).ok());
  EXPECT_NE(model_bytes("first"), model_bytes("other"));
}

TEST_P(ResumeTest, SameBitsForAnyNumberOfThreads) {
  for (const std::string precision : {"f32", "bf16"}) {
    const std::string key = "training.precision=" + precision;
    use_threads(1);
    ASSERT_TRUE(run("one_" + precision, key, false).ok());
    use_threads(3);
    ASSERT_TRUE(run("three_" + precision, key, false).ok());
    EXPECT_EQ(model_bytes("one_" + precision), model_bytes("three_" + precision));
  }
}

TEST_P(ResumeTest, ContinuesBitForBitAfterStops) {
  // Long enough for the watcher to be there in time.
  const std::string length = "training.updates=400";
  const auto whole = run("whole", length, false);
  ASSERT_TRUE(whole.ok()) << whole.error().to_string();
  EXPECT_EQ(whole->updates, 400);
  expect_end("whole", 400, false);
  // Stops that arrive at any moment: a watcher raises the flag as soon as the log has grown.
  int pieces = 0;
  Result<TrainResult> piece = TrainResult{};
  do {
    std::atomic<int> stop{0};
    std::atomic<bool> done{false};
    std::thread watcher([&] {
      std::error_code ignored;
      const std::string log = out("pieces") + "/log.jsonl";
      const auto before = fs::exists(log) ? fs::file_size(log, ignored) : 0;
      while (!done.load()) {
        if (fs::exists(log) && fs::file_size(log, ignored) > before) break;
        std::this_thread::yield();
      }
      stop.store(2);
    });
    piece = run("pieces", length, pieces > 0, &stop);
    done.store(true);
    watcher.join();
    ASSERT_TRUE(piece.ok()) << piece.error().to_string();
    expect_end("pieces", piece->updates, piece->stopped);
    ++pieces;
  } while (piece->stopped && pieces < 1000);
  EXPECT_EQ(piece->updates, 400);
  EXPECT_GT(pieces, 1);
  EXPECT_EQ(model_bytes("pieces"), model_bytes("whole"));
  EXPECT_EQ(state_bytes("pieces"), state_bytes("whole"));
  EXPECT_EQ(train_lines("pieces"), train_lines("whole"));
}

TEST_P(ResumeTest, RefusesToOverwriteAndToChangeTheConfig) {
  ASSERT_TRUE(run("run", "training.updates=2", false).ok());
  EXPECT_FALSE(run("run", "", false).ok());
  const auto changed = run("run", "training.optimiser.learning_rate=0.5", true);
  ASSERT_FALSE(changed.ok());
  EXPECT_NE(changed.error().message.find("training.optimiser"), std::string::npos)
      << changed.error().message;
  EXPECT_NE(changed.error().message.find("the same --set flags"), std::string::npos)
      << changed.error().message;
  const auto longer = run("run", "training.updates=4", true);
  ASSERT_TRUE(longer.ok()) << longer.error().to_string();
  EXPECT_EQ(longer->updates, 4);
}

TEST_P(ResumeTest, RefusesDamagedCheckpoints) {
  ASSERT_TRUE(run("run", "training.updates=2", false).ok());
  const std::string path = out("run") + "/checkpoint/state.safetensors";
  const auto content = read_file(path, 1 << 24);
  ASSERT_TRUE(content.ok());
  for (const size_t length : {size_t{0}, size_t{7}, content->size() / 2, content->size() - 1}) {
    ASSERT_TRUE(write_file_atomic(path, content->substr(0, length)).ok());
    EXPECT_FALSE(run("run", "training.updates=4", true).ok()) << length;
  }
  ASSERT_TRUE(write_file_atomic(path, model_bytes("run")).ok());  // a model is no checkpoint
  EXPECT_FALSE(run("run", "training.updates=4", true).ok());
}

INSTANTIATE_TEST_SUITE_P(Mixers, ResumeTest, testing::Values(kSmallLinear, kSmallSoftmax));

}  // namespace
}  // namespace tarn::train
