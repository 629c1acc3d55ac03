// What every store does with damaged bytes: an error that says so, and the next load works.
#include <string>

#include "serve/record.h"
#include "unit/serve/store_fixture.h"

namespace tarn::serve {
namespace {

class DamageTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    if (IsSkipped()) return;
    save("control", "untouched", 0);
  }

  /// The one object of a kind that is not of the session `control`.
  NamedValue only(const std::string& prefix, const std::string& id) {
    for (const NamedValue& row : objects(prefix)) {
      if (prefix == "s/" ? row.first == "s/" + id : row.second.find(id) != std::string::npos) {
        return row;
      }
    }
    ADD_FAILURE() << "no object of " << id;
    return {};
  }

  void expect_damage(const std::string& id, const std::string& what) {
    const Error error = load_error(id);
    EXPECT_TRUE(error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kUnsupported)
        << what << ": " << error.to_string();
    EXPECT_FALSE(error.message.empty());
  }

  /// Every byte of `range` flipped in two ways, and every truncation of a short object.
  void damage_everywhere(const std::string& id, const NamedValue& object, size_t range) {
    for (size_t at = 0; at < range; ++at) {
      for (const int mask : {0x01, 0xff}) {
        std::string changed = object.second;
        changed[at] = static_cast<char>(changed[at] ^ mask);
        tamper(object.first, changed);
        expect_damage(id, "byte " + std::to_string(at));
      }
    }
  }
};
TARN_FOR_EVERY_STORE(DamageTest);

TEST_P(DamageTest, OfEveryByteOfARecordsHeader) {
  const std::string payload = noise(5000, 4);
  save("damaged", payload, 0);
  const NamedValue record = only("r/", "damaged");
  damage_everywhere("damaged", record, record.second.size() - payload.size());
  EXPECT_EQ(load("control"), "untouched");
  tamper(record.first, record.second);
  EXPECT_EQ(load("damaged"), payload);
}

TEST_P(DamageTest, OfEveryByteOfAHead) {
  save("damaged", "payload", 0);
  const NamedValue head = only("s/", "damaged");
  damage_everywhere("damaged", head, head.second.size());
  for (size_t size = 0; size < head.second.size(); ++size) {
    tamper(head.first, head.second.substr(0, size));
    expect_damage("damaged", "cut to " + std::to_string(size));
  }
  // Not even a save goes over a head that cannot be read; removing it is the way out.
  EXPECT_EQ(store_->save(request("damaged", "x", 1)).error().code, ErrorCode::kCorrupt);
  const auto page = store_->list("", 10);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->sessions.size(), 1);
  EXPECT_TRUE(store_->expire(clock_.now()).ok());
  EXPECT_TRUE(store_->remove("damaged").ok());
  EXPECT_EQ(save("damaged", "again", 0), 1);
  EXPECT_EQ(load("damaged"), "again");
  EXPECT_EQ(load("control"), "untouched");
}

TEST_P(DamageTest, OfAThousandBytesOfAPayload) {
  const std::string payload = noise(100'000, 5);
  save("damaged", payload, 0);
  const NamedValue record = only("r/", "damaged");
  const size_t start = record.second.size() - payload.size();
  for (uint64_t i = 0; i < 1000; ++i) {
    std::string changed = record.second;
    const size_t at = start + (i * 2654435761u) % payload.size();
    changed[at] = static_cast<char>(changed[at] ^ (1 << (i % 8)));
    tamper(record.first, changed);
    expect_damage("damaged", "byte " + std::to_string(at));
  }
  tamper(record.first, record.second);
  EXPECT_EQ(load("damaged"), payload);
}

TEST_P(DamageTest, OfEveryLengthOfASmallRecord) {
  save("damaged", "a small payload", 0);
  const NamedValue record = only("r/", "damaged");
  for (size_t size = 0; size < record.second.size(); ++size) {
    tamper(record.first, record.second.substr(0, size));
    expect_damage("damaged", "cut to " + std::to_string(size));
  }
  tamper(record.first, record.second + '\0');
  expect_damage("damaged", "a byte more");
  tamper(record.first, record.second);
  EXPECT_EQ(load("damaged"), "a small payload");
}

TEST_P(DamageTest, OfChunks) {
  const std::string payload = noise((1 << 20) + 100, 6);
  save("damaged", payload, 0);
  const auto chunks = objects("c/");
  ASSERT_EQ(chunks.size(), 5);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto& [name, content] = chunks[i];
    std::string changed = content;
    changed[changed.size() / 2] ^= 1;
    tamper(name, changed);
    expect_damage("damaged", "chunk " + std::to_string(i));
    tamper(name, content.substr(0, content.size() - 1));
    expect_damage("damaged", "short chunk");
    tamper(name, content + "x");
    expect_damage("damaged", "long chunk");
    tamper(name, chunks[(i + 1) % chunks.size()].second);
    expect_damage("damaged", "exchanged chunk");
    tamper(name, {});
    expect_damage("damaged", "lost chunk");
    tamper(name, content);
  }
  EXPECT_EQ(load("damaged"), payload);
}

TEST_P(DamageTest, RottenChunksAreNotShared) {
  const std::string payload = noise(3 << 19, 7);
  save("first", payload, 0);
  const auto chunks = objects("c/");
  std::string changed = chunks[0].second;
  changed[0] ^= 1;
  tamper(chunks[0].first, changed);
  // The same content again: it must not become part of what is already broken.
  save("second", payload, 0);
  EXPECT_EQ(load("second"), payload);
  expect_damage("first", "rotten chunk");
  EXPECT_TRUE(store_->remove("first").ok());
  EXPECT_EQ(load("second"), payload);
  EXPECT_TRUE(store_->remove("second").ok());
  EXPECT_TRUE(objects("c/").empty());
}

TEST_P(DamageTest, OfARecordThatIsLostOrAnothers) {
  save("damaged", "payload of one", 0);
  save("another", "payload of two", 0);
  const NamedValue mine = only("r/", "damaged"), other = only("r/", "another");
  tamper(mine.first, other.second);
  expect_damage("damaged", "another session's record");
  tamper(mine.first, {});
  const Error error = load_error("damaged");
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_NE(error.message.find("lost"), std::string::npos) << error.message;
  // Its old version is gone, but the session can go on and the loss can be dropped.
  EXPECT_EQ(save("damaged", "next", 1), 2);
  EXPECT_EQ(load("damaged"), "next");
  EXPECT_TRUE(store_->remove("damaged").ok());
}

TEST(RecordTest, IsWrittenAsDescribed) {
  SessionRecord record;
  record.id = "abc";
  record.seq = 3;
  record.parent = {"xy", 2};
  record.token_count = 5;
  record.model_fingerprint = 0x0807060504030201;
  record.created_ms = 6;
  record.written_ms = 7;
  record.ttl_ms = 8;
  const std::string bytes = encode_record(record, "payload", {});
  EXPECT_EQ(bytes.substr(0, 8), "TARNRECD");
  EXPECT_EQ(bytes.substr(8, 8), std::string("\1\0\0\0\4\3\2\1", 8));
  EXPECT_EQ(bytes.substr(48, 8), "\1\2\3\4\5\6\7\10");
  EXPECT_EQ(bytes.substr(128, 5), "abcxy");
  EXPECT_EQ(bytes.substr(133), "payload");
  const auto parsed = parse_record(bytes, "test");
  ASSERT_TRUE(parsed.ok()) << parsed.error().to_string();
  EXPECT_EQ(encode_record(parsed->record, parsed->payload, parsed->chunks), bytes);
  std::string other = bytes;
  std::swap(other[12], other[15]);
  std::swap(other[13], other[14]);
  EXPECT_EQ(parse_record(other, "test").error().code, ErrorCode::kUnsupported);
  other = bytes;
  other[8] = 2;
  EXPECT_EQ(parse_record(other, "test").error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace tarn::serve
