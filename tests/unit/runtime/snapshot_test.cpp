#include "runtime/snapshot.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "runtime/session.h"
#include "unit/runtime/tiny_models.h"

namespace tarn::runtime {
namespace {

using Tokens = std::vector<int32_t>;

const SamplerOptions kSampler{.temperature = 0.75f, .top_k = 7, .top_p = 0.95f};

Tokens copy(std::span<const int32_t> tokens) { return {tokens.begin(), tokens.end()}; }

/// A session that has seen a prompt and drawn `steps` tokens; the last one waits.
Session started(const std::shared_ptr<const model::Model>& model, int steps, bool keep = true) {
  Session session(model, {5, 77, keep});
  Generator generator(model, nullptr);
  EXPECT_TRUE(generator.feed(session, Tokens{1, 2, 3}).ok());
  Session* const sessions[] = {&session};
  for (int i = 0; i < steps; ++i) EXPECT_TRUE(generator.step(sessions, kSampler).ok());
  return session;
}

struct Continuation {
  Tokens tokens;
  std::vector<float> output;
  bool operator==(const Continuation&) const = default;
};

Continuation continue_for(Session& session, int steps) {
  Generator generator(session.shared_model(), nullptr);
  Continuation result;
  Session* const sessions[] = {&session};
  for (int i = 0; i < steps; ++i) {
    int32_t drawn = -1;
    EXPECT_TRUE(generator.step(sessions, kSampler, {&drawn, 1}).ok());
    result.tokens.push_back(drawn);
  }
  result.output.assign(session.output().begin(), session.output().end());
  return result;
}

/// Overwrites a field and makes both checksums right again, as an attacker would.
template <class T>
std::string forge(std::string bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 16, 8);
  header_bytes = std::min<uint64_t>(header_bytes, bytes.size() - 48);
  const std::string_view view = bytes;
  const std::string_view payload = view.substr(48 + header_bytes);
  const uint64_t payload_hash = xxh3_64(payload.data(), static_cast<int64_t>(payload.size()));
  std::memcpy(bytes.data() + 32, &payload_hash, 8);
  Xxh3 hash;
  hash.update(bytes.data(), 40);
  hash.update(bytes.data() + 48, static_cast<int64_t>(header_bytes));
  const uint64_t header_hash = hash.digest();
  std::memcpy(bytes.data() + 40, &header_hash, 8);
  return bytes;
}

std::string error_of(std::string_view bytes, const std::shared_ptr<const model::Model>& model) {
  const auto restored = decode_snapshot(bytes, model, "file");
  return restored.ok() ? std::string() : restored.error().to_string();
}

TEST(Snapshot, RestoredContinuesAsIfNeverStopped) {
  for (const NamedMixers& stack : causal_stacks()) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers);
    for (const bool keep : {true, false}) {
      Session session = started(model, 20, keep);
      const std::string bytes = encode_snapshot(session, kSampler);
      auto restored = decode_snapshot(bytes, model, "memory");
      ASSERT_TRUE(restored.ok());
      EXPECT_EQ(restored->sampler, kSampler);
      EXPECT_EQ(restored->session.position(), session.position());
      EXPECT_EQ(restored->session.waiting(), 1);
      EXPECT_EQ(copy(restored->session.tokens()), copy(session.tokens()));
      EXPECT_EQ(restored->session.token_count(), 23);
      EXPECT_EQ(encode_snapshot(restored->session, kSampler), bytes);
      EXPECT_EQ(continue_for(restored->session, 30), continue_for(session, 30));
      EXPECT_EQ(encode_snapshot(restored->session, kSampler), encode_snapshot(session, kSampler));
    }
  }
}

TEST(Snapshot, KeepsTheOutputSoThatNothingIsEvaluatedAgain) {
  for (const NamedMixers& stack : causal_stacks(true)) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers);
    Session session = started(model, 20);
    Generator generator(model, nullptr);
    ASSERT_TRUE(generator.feed(session, {}).ok());
    ASSERT_TRUE(session.has_output());
    auto restored = decode_snapshot(encode_snapshot(session, kSampler), model, "memory");
    ASSERT_TRUE(restored.ok());
    ASSERT_TRUE(restored->session.has_output());
    Sampler sampler(model->config().head, kSampler);
    const auto expected = session.draw(sampler);
    const auto drawn = restored->session.draw(sampler);  // from the stored output alone
    ASSERT_TRUE(drawn.ok());
    EXPECT_EQ(*drawn, *expected);
    EXPECT_EQ(restored->session.position(), 24);
  }
}

TEST(Snapshot, SavesSessionsThatHaveDoneNothing) {
  const auto model = tiny_model(causal_stacks(true).back().layers);
  Session fresh(model, {9, 8, true});
  auto restored = decode_snapshot(encode_snapshot(fresh, {}), model, "memory");
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->session.position(), 0);
  EXPECT_EQ(continue_for(restored->session, 10), continue_for(fresh, 10));
}

TEST(Snapshot, KeepsUnfinishedText) {
  const auto model = tiny_model(causal_stacks(true).front().layers);
  Session session(model, {});
  EXPECT_EQ(session.text_of(0xE2), "");
  EXPECT_EQ(session.text_of(0x82), "");
  auto restored = decode_snapshot(encode_snapshot(session, {}), model, "memory");
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->session.text_of(0xAC), "\xE2\x82\xAC");
}

TEST(Snapshot, DescribesItself) {
  const auto model = tiny_model(causal_stacks(true).back().layers);
  const Session session = started(model, 20);
  const std::string bytes = encode_snapshot(session, kSampler);
  const auto info = inspect_snapshot(bytes, "memory");
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->version, 1);
  EXPECT_EQ(info->model_fingerprint, model->fingerprint());
  EXPECT_EQ(info->position, 23);
  EXPECT_EQ(info->token_count, 23);
  EXPECT_FALSE(info->has_output);
  EXPECT_EQ(info->seed, 5u);
  EXPECT_EQ(info->stream, 77u);
  EXPECT_EQ(info->random_words, 40u);
  EXPECT_EQ(info->sampler, kSampler);
  EXPECT_EQ(info->file_bytes, static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(info->state_bytes, session.state().used_bytes());
  ASSERT_EQ(info->tensors.size(), session.state().tensors().size());
  for (size_t i = 0; i < info->tensors.size(); ++i) {
    EXPECT_EQ(info->tensors[i].name, session.state().tensors()[i].spec->name);
    EXPECT_EQ(info->tensors[i].dtype, "f32");
    EXPECT_EQ(info->tensors[i].entries, info->tensors[i].per_token ? 23 : 1);
  }
}

TEST(Snapshot, EveryTruncationAndEveryFlippedByteIsRefused) {
  const auto model = tiny_model(causal_stacks(true).back().layers);
  const std::string bytes = encode_snapshot(started(model, 2), kSampler);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string message = error_of(bytes.substr(0, size), model);
    ASSERT_EQ(message.find("file: "), 0u) << size;
    ASSERT_EQ(message.find('\n'), std::string::npos);
  }
  EXPECT_FALSE(error_of(bytes + '\0', model).empty());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ mask);
      const std::string message = error_of(changed, model);
      ASSERT_EQ(message.find("file: "), 0u) << i;
      ASSERT_EQ(message.find('\n'), std::string::npos);
    }
  }
}

TEST(Snapshot, AnotherModelsSnapshotIsRefusedWithBothFingerprints) {
  const auto stacks = causal_stacks(true);
  const auto model = tiny_model(stacks.front().layers);
  const auto other = tiny_model(stacks.front().layers, {.seed = 2});
  const std::string message = error_of(encode_snapshot(started(model, 3), {}), other);
  char expected[200];
  std::snprintf(expected, sizeof expected,
                "file: belongs to the model with fingerprint %016llx, the loaded model has %016llx",
                static_cast<unsigned long long>(model->fingerprint()),
                static_cast<unsigned long long>(other->fingerprint()));
  EXPECT_EQ(message, expected);
}

TEST(Snapshot, ForgedFieldsAreRefusedWithoutAllocating) {
  // Checksums are right in all of these: only the rules between the fields can refuse them.
  const auto model = tiny_model(causal_stacks(true).back().layers);
  const std::string bytes = encode_snapshot(started(model, 2), kSampler);
  ASSERT_EQ(error_of(forge(bytes, 48, model->fingerprint()), model), "");
  const int64_t huge[] = {-1, INT64_MIN, INT64_MAX, int64_t{1} << 62, int64_t{1} << 40, 7};
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  for (const int64_t value : huge) {
    for (const size_t offset : {size_t{56}, size_t{64}, size_t{72}}) {  // position, tokens, kept
      EXPECT_NE(error_of(forge(bytes, offset, value), model), "") << offset << " " << value;
    }
    for (const size_t offset : {size_t{16}, size_t{24}}) {  // section lengths
      EXPECT_NE(error_of(forge(bytes, offset, value), model), "") << offset << " " << value;
    }
    EXPECT_NE(error_of(forge(bytes, 136 + 8, value), model), "") << value;      // entries
    EXPECT_NE(error_of(forge(bytes, 136 + 8 + 8, value), model), "") << value;  // first extent
  }
  EXPECT_NE(error_of(forge(bytes, 104, int64_t{-1}), model), "");  // top_k
  EXPECT_NE(error_of(forge(bytes, 112, 0.0f), model), "");         // temperature
  EXPECT_NE(error_of(forge(bytes, 112, std::nanf("")), model), "");
  EXPECT_NE(error_of(forge(bytes, 116, 2.0f), model), "");          // top_p
  EXPECT_NE(error_of(forge(bytes, 120, uint8_t{4}), model), "");    // flags
  EXPECT_NE(error_of(forge(bytes, 121, uint8_t{4}), model), "");    // pending bytes
  EXPECT_NE(error_of(forge(bytes, 121, uint8_t{1}), model), "");    // NUL is complete
  EXPECT_NE(error_of(forge(bytes, 122, uint8_t{1}), model), "");    // must be zero
  EXPECT_NE(error_of(forge(bytes, 127, uint8_t{1}), model), "");    // must be zero
  EXPECT_NE(error_of(forge(bytes, 128, uint32_t{11}), model), "");  // head outputs
  EXPECT_NE(error_of(forge(bytes, 128, UINT32_MAX), model), "");
  EXPECT_NE(error_of(forge(bytes, 132, UINT32_MAX), model), "");  // tensors
  EXPECT_NE(error_of(forge(bytes, 132, uint32_t{0}), model), "");
  EXPECT_NE(error_of(forge(bytes, 136, uint32_t{1}), model), "");   // layer
  EXPECT_NE(error_of(forge(bytes, 140, uint8_t{1}), model), "");    // dtype
  EXPECT_NE(error_of(forge(bytes, 141, uint8_t{2}), model), "");    // tensor flags
  EXPECT_NE(error_of(forge(bytes, 142, uint8_t{255}), model), "");  // rank
  EXPECT_NE(error_of(forge(bytes, 143, uint8_t{255}), model), "");  // name length
  EXPECT_NE(error_of(forge(bytes, 8, uint32_t{2}), model).find("format version 2"),
            std::string::npos);
  EXPECT_NE(error_of(forge(bytes, 12, uint32_t{0x04030201}), model).find("byte order"),
            std::string::npos);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 16, 8);
  const auto tokens = static_cast<size_t>(48 + header_bytes);  // no head output: tokens come first
  EXPECT_NE(error_of(forge(bytes, tokens, int32_t{12}), model).find("has token 12"),
            std::string::npos);
  EXPECT_NE(error_of(forge(bytes, tokens, int32_t{-1}), model).find("has token -1"),
            std::string::npos);
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024);  // KiB
}

TEST(Snapshot, StateThatIndexesATableIsChecked) {
  const auto model = tiny_model(causal_stacks(true).back().layers);
  const Session session = started(model, 2);
  ASSERT_EQ(session.state().tensors().back().spec->symbols, 12);
  const std::string bytes = encode_snapshot(session, kSampler);
  const size_t last = bytes.size() - sizeof(float);
  EXPECT_EQ(error_of(forge(bytes, last, 11.0f), model), "");
  for (const float value : {12.0f, -1.0f, 0.5f, std::nanf(""), 1e30f, -INFINITY}) {
    EXPECT_EQ(error_of(forge(bytes, last, value), model),
              "file: has state \"input_history\" with a value that is no whole number in [0, 12)");
  }
}

TEST(Snapshot, TokensThatWaitMustBeThere) {
  // A session that drops its tokens keeps the one that waits. Without it the next step would read
  // a token that is nowhere; lengths and checksums are made to agree.
  const auto model = tiny_model(causal_stacks(true).front().layers);
  std::string bytes = encode_snapshot(started(model, 2, false), kSampler);
  uint64_t header_bytes = 0;
  uint64_t payload_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 16, 8);
  std::memcpy(&payload_bytes, bytes.data() + 24, 8);
  bytes = forge(bytes, 72, int64_t{0});
  bytes.erase(48 + header_bytes, sizeof(int32_t));
  bytes = forge(bytes, 24, payload_bytes - sizeof(int32_t));
  EXPECT_EQ(error_of(bytes, model),
            "file: has counts that contradict each other: position 5, tokens 5, kept 0");
}

class SnapshotFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "tarn_snapshot_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

TEST_F(SnapshotFile, RoundTripsThroughDisk) {
  const auto model = tiny_model(causal_stacks(true).back().layers);
  Session session = started(model, 20);
  ASSERT_TRUE(save_snapshot(path("a"), session, kSampler).ok());
  ASSERT_TRUE(save_snapshot(path("a"), session, kSampler).ok());  // replaces
  const auto info = inspect_snapshot_file(path("a"));
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->token_count, 23);
  Session other(model, {});
  SamplerOptions sampler;
  ASSERT_TRUE(restore_snapshot(path("a"), &other, &sampler).ok());
  EXPECT_EQ(sampler, kSampler);
  EXPECT_EQ(continue_for(other, 20), continue_for(session, 20));
}

TEST_F(SnapshotFile, FailedRestoreLeavesTheSessionAlone) {
  const auto model = tiny_model(causal_stacks(true).back().layers);
  std::string bytes = encode_snapshot(started(model, 20), {});
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(path("bad"), std::ios::binary) << bytes;
  std::ofstream(path("empty"), std::ios::binary);
  Session session = started(model, 5);
  SamplerOptions sampler = kSampler;
  const std::string before = encode_snapshot(session, sampler);
  for (const std::string name : {"bad", "empty", "missing", ""}) {
    const Status status = restore_snapshot(path(name), &session, &sampler);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_NE(status.error().to_string().find(path(name)), std::string::npos);
    EXPECT_EQ(encode_snapshot(session, sampler), before);
  }
  Session control = started(model, 5);
  EXPECT_EQ(continue_for(session, 10), continue_for(control, 10));
}

}  // namespace
}  // namespace tarn::runtime
