#include "serve/session_table.h"

#include <atomic>

#include "unit/serve/engine_fixture.h"

namespace tarn::serve {
namespace {

void say(Engine& engine, const std::string& id, uint64_t stream, int64_t count = 5) {
  Request request;
  request.session = id;
  request.prompt = random_tokens(7, stream);
  request.max_tokens = count;
  EXPECT_EQ(play(engine, std::move(request)).end.reason, FinishReason::kLength);
}

TEST(SessionTable, CreatesListsForksAndRemoves) {
  const auto engine = make_engine(endless_model({delta()}));
  SessionTable& table = engine->sessions();
  ASSERT_TRUE(table.create("b", 1).ok());
  EXPECT_EQ(table.create("b", 1).error().code, ErrorCode::kConflict);
  say(*engine, "b", 1);
  const auto forked = table.fork("b", "a", std::nullopt);
  ASSERT_TRUE(forked.ok());
  EXPECT_EQ(forked->token_count, 12);
  EXPECT_EQ(snapshot_of(*engine, "a"), snapshot_of(*engine, "b"));
  ASSERT_TRUE(table.fork("b", "c", 5).ok());
  EXPECT_NE(snapshot_of(*engine, "c"), snapshot_of(*engine, "b"));
  EXPECT_EQ(table.fork("b", "b", 5).error().code, ErrorCode::kConflict);
  EXPECT_EQ(table.fork("nobody", "d", 5).error().code, ErrorCode::kNotFound);
  say(*engine, "a", 2);
  const auto all = table.list();
  ASSERT_EQ(all.size(), 3);
  EXPECT_EQ(all[0].id, "a");
  EXPECT_EQ(all[0].token_count, 24);
  EXPECT_EQ(all[1].token_count, 12);
  EXPECT_FALSE(all[0].in_use);
  EXPECT_TRUE(table.remove("a").ok());
  EXPECT_EQ(table.remove("a").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(table.info("a").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(table.list().size(), 2);
  for (const std::string& id : {std::string(), std::string(129, 'a'), std::string(".a"),
                                std::string("a/b"), std::string("a\0b", 3)}) {
    EXPECT_EQ(table.create(id, 1).error().code, ErrorCode::kInvalidArgument) << id;
  }
}

TEST(SessionTable, RollsBackToMarks) {
  const auto engine = make_engine(endless_model({delta(), softmax()}));
  SessionTable& table = engine->sessions();
  ASSERT_TRUE(table.create("a", 1).ok());
  ASSERT_TRUE(table.mark("a", "start").ok());
  say(*engine, "a", 1);
  const std::string at_12 = snapshot_of(*engine, "a");
  ASSERT_TRUE(table.mark("a", "twelve").ok());
  say(*engine, "a", 2);
  const std::string at_24 = snapshot_of(*engine, "a");
  ASSERT_EQ(table.mark("a", "later")->marks.size(), 3);
  EXPECT_EQ(table.rollback("a", 13).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(table.rollback("a", "other").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(snapshot_of(*engine, "a"), at_24);
  const auto back = table.rollback("a", "twelve");
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->marks.size(), 2);  // "later" belongs to another history now
  EXPECT_EQ(snapshot_of(*engine, "a"), at_12);
  say(*engine, "a", 2);
  EXPECT_EQ(snapshot_of(*engine, "a"), at_24);
  EXPECT_EQ(table.rollback("a", 12)->token_count, 12);
  EXPECT_EQ(snapshot_of(*engine, "a"), at_12);
  EXPECT_EQ(table.rollback("a", "start")->position, 0);
  for (size_t i = 1; i < SessionTable::kMaxMarks; ++i) {
    ASSERT_TRUE(table.mark("a", std::to_string(i)).ok());
  }
  EXPECT_TRUE(table.mark("a", "1").ok());  // in place of the earlier one
  EXPECT_EQ(table.mark("a", "too many").error().code, ErrorCode::kResource);
}

TEST(SessionTable, RestoresOnlyWhatIsWhole) {
  const auto engine = make_engine(endless_model({delta(), softmax()}));
  SessionTable& table = engine->sessions();
  ASSERT_TRUE(table.create("a", 1).ok());
  say(*engine, "a", 1);
  const std::string bytes = snapshot_of(*engine, "a");
  say(*engine, "a", 2);
  const std::string later = snapshot_of(*engine, "a");
  for (const size_t at : {size_t{0}, size_t{20}, bytes.size() / 2, bytes.size() - 1}) {
    std::string broken = bytes;
    broken[at] = static_cast<char>(broken[at] ^ 1);
    EXPECT_FALSE(table.restore("a", broken).ok()) << at;
    EXPECT_FALSE(table.restore("new", broken).ok()) << at;
  }
  EXPECT_FALSE(table.restore("a", bytes.substr(0, bytes.size() - 4)).ok());
  EXPECT_EQ(snapshot_of(*engine, "a"), later);
  EXPECT_EQ(table.list().size(), 1);
  ASSERT_TRUE(table.restore("a", bytes).ok());
  ASSERT_TRUE(table.restore("b", bytes).ok());
  for (const char* id : {"a", "b"}) {
    say(*engine, id, 2);
    EXPECT_EQ(snapshot_of(*engine, id), later);
  }
}

TEST(SessionTable, TheLeastRecentlyUsedLeaveAndComeBack) {
  const auto model = endless_model({delta(), linear()});
  const int64_t each = SessionTable::bytes_of(runtime::Session(model, {}));
  std::atomic<int> evictions{0};
  EngineOptions options;
  options.memory_limit_bytes = 4 * each;
  options.hooks = hooks_in_memory();
  const auto evict = options.hooks.evict;
  options.hooks.evict = [&](const std::string& id, StoredSession session) {
    ++evictions;
    return evict(id, std::move(session));
  };
  const auto engine = make_engine(model, options);
  SessionTable& table = engine->sessions();
  std::vector<std::string> wanted;
  for (uint64_t i = 0; i < 10; ++i) {
    const std::string id = std::to_string(i);
    ASSERT_TRUE(table.create(id, i).ok());
    say(*engine, id, i);
    if (i == 3) {
      ASSERT_TRUE(table.mark(id, "m").ok());
    }
    Alone alone(model, i);
    alone.turn(random_tokens(7, i), 5, {});
    wanted.push_back(alone.snapshot());
    EXPECT_LE(table.resident_bytes(), 4 * each);
  }
  EXPECT_GE(evictions.load(), 6);
  EXPECT_FALSE(table.info("0")->resident);
  EXPECT_TRUE(table.info("9")->resident);
  EXPECT_EQ(table.info("0")->token_count, 12);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(snapshot_of(*engine, std::to_string(i)), wanted[i]);
  say(*engine, "3", 8);
  EXPECT_EQ(table.rollback("3", "m")->token_count, 12);
  EXPECT_EQ(snapshot_of(*engine, "3"), wanted[3]);
  EXPECT_TRUE(table.remove("0").ok());
  EXPECT_EQ(table.info("0").error().code, ErrorCode::kNotFound);
}

TEST(SessionTable, AStoreThatFailsLosesNothing) {
  const auto model = endless_model({delta()});
  const int64_t each = SessionTable::bytes_of(runtime::Session(model, {}));
  std::atomic<bool> broken{true};
  EngineOptions options;
  options.memory_limit_bytes = 2 * each + 100;  // and tokens that wait
  options.hooks = hooks_in_memory();
  const auto evict = options.hooks.evict;
  options.hooks.evict = [&](const std::string& id, StoredSession session) -> Status {
    if (broken) return Error{ErrorCode::kIo, "the disk is full", id};
    return evict(id, std::move(session));
  };
  const auto engine = make_engine(model, options);
  SessionTable& table = engine->sessions();
  ASSERT_TRUE(table.create("a", 1).ok());
  say(*engine, "a", 1);
  const std::string before = snapshot_of(*engine, "a");
  ASSERT_TRUE(table.create("b", 1).ok());
  EXPECT_EQ(table.create("c", 1).error().code, ErrorCode::kIo);
  EXPECT_EQ(table.info("c").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(snapshot_of(*engine, "a"), before);
  broken = false;
  EXPECT_TRUE(table.create("c", 1).ok());
  EXPECT_EQ(snapshot_of(*engine, "a"), before);
}

}  // namespace
}  // namespace tarn::serve
