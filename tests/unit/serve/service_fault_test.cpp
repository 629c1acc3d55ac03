// What durable sessions do when saves fail, memory is short, the server ends, or everybody comes at
// once.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "serve/session_store.h"
#include "unit/serve/service_fixture.h"
#include "unit/serve/store_fixture.h"

namespace tarn::serve {
namespace {

PlaceKind kind(const std::string& name) {
  for (const PlaceKind& kind : place_kinds()) {
    if (kind.name == name) return kind;
  }
  std::abort();
}

class ServiceFaultTest : public ServiceTest {
 protected:
  /// A turn whose lease is taken and whose save will fail, and what the session is after it.
  void expect_undone(SessionService& server, SlowTurn& slow, ErrorCode code, Alone& alone) {
    const TurnResult end = slow.finish();
    EXPECT_EQ(end.end.reason, FinishReason::kError);
    EXPECT_EQ(end.end.error.code, code) << end.end.error.to_string();
    EXPECT_FALSE(end.saved);
    EXPECT_EQ(end.seq, 2);
    EXPECT_EQ(end.end.token_count, alone.session().token_count());
    EXPECT_EQ(stored("a"), digest(alone.snapshot()));
    EXPECT_EQ(server.metrics().failed_saves.load(), 1);
    EXPECT_FALSE(server.get("a")->in_use);
  }
};

TEST_P(ServiceFaultTest, ASaveTooLargeUndoesTheTurn) {
  Alone alone(model_, 7);
  store_options_.max_payload_bytes = 60'000;
  const auto server = service();
  create(*server, "a");
  play(*server, turn_of("a", random_tokens(9, 1), 2));
  alone.turn(random_tokens(9, 1), 2, {});
  SessionTurn large = turn_of("a", random_tokens(1000, 2), 1);
  large.idempotency_key = "k";
  {
    SlowTurn slow(*server, large);
    expect_undone(*server, slow, ErrorCode::kResource, alone);
  }
  EXPECT_TRUE(server->ready().ready);
  SessionTurn small = turn_of("a", {1}, 3);
  small.idempotency_key = "k";  // of a turn that is no part of the session
  const Told told = play(*server, small);
  EXPECT_FALSE(told.result.replayed);
  EXPECT_EQ(told.tokens, alone.turn({1}, 3, {}));
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
}

INSTANTIATE_TEST_SUITE_P(Stores, ServiceFaultTest, testing::ValuesIn(place_kinds()), kind_name);

class ServiceOnSqlite : public ServiceFaultTest {};
TEST_P(ServiceOnSqlite, AFullDatabaseUndoesTheTurn) {
  Alone alone(model_, 7);
  store_options_.max_store_bytes = 512 << 10;
  const auto server = service();
  create(*server, "a");
  play(*server, turn_of("a", random_tokens(9, 1), 2));
  alone.turn(random_tokens(9, 1), 2, {});
  {
    SlowTurn slow(*server, turn_of("a", random_tokens(12'000, 2), 1));
    expect_undone(*server, slow, ErrorCode::kResource, alone);
  }
  EXPECT_TRUE(server->ready().ready);
  EXPECT_EQ(play(*server, turn_of("a", {1}, 3)).tokens, alone.turn({1}, 3, {}));
}
INSTANTIATE_TEST_SUITE_P(Stores, ServiceOnSqlite, testing::Values(kind("sqlite")));

class ServiceOnFolder : public ServiceFaultTest {};
TEST_P(ServiceOnFolder, AFailedFlushUndoesTheTurnAndEndsReadiness) {
  Alone alone(model_, 7);
  std::atomic<bool> failing{false};
  store_options_.sync = true;
  store_options_.sync_file = [&](int fd) {
    if (!failing) return fsync(fd);
    errno = EIO;
    return -1;
  };
  auto server = service();
  create(*server, "a");
  play(*server, turn_of("a", random_tokens(9, 1), 2));
  alone.turn(random_tokens(9, 1), 2, {});
  EXPECT_TRUE(server->ready().ready);
  {
    SlowTurn slow(*server, turn_of("a", {1, 2}, 1));
    failing = true;
    const TurnResult end = slow.finish();
    EXPECT_EQ(end.end.reason, FinishReason::kError);
    EXPECT_EQ(end.end.error.code, ErrorCode::kIo);
  }
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  EXPECT_FALSE(server->ready().ready);
  EXPECT_NE(server->ready().reason.find("fsync"), std::string::npos) << server->ready().reason;
  const Refusal refusal = refused(*server, turn_of("a", {}, 1));
  EXPECT_EQ(refusal.reason, RefusalReason::kFailed);
  EXPECT_EQ(refusal.error.code, ErrorCode::kReadOnly);
  EXPECT_EQ(server->create_session({"b"}).error().code, ErrorCode::kReadOnly);
  EXPECT_EQ(play(*server, turn_of("", {1, 2}, 3)).tokens.size(), 3);  // needs no store
  EXPECT_TRUE(server->get("a").ok());
  failing = false;
  clock_.advance(31'000);  // the lease could not be given back
  server = service();
  EXPECT_TRUE(server->ready().ready);
  EXPECT_EQ(play(*server, turn_of("a", {}, 3)).tokens, alone.turn({}, 3, {}));
}
INSTANTIATE_TEST_SUITE_P(Stores, ServiceOnFolder, testing::Values(kind("directory")));

/// On the memory store alone.
class ServiceLifeTest : public ServiceFaultTest {};

TEST_P(ServiceLifeTest, SessionsThatDoNotFitTheMemoryLiveInTheStore) {
  constexpr int kSessions = 200;
  model_ = endless_model({linear(), delta()});
  const int64_t bytes = SessionTable::bytes_of(runtime::Session(model_, {7, 0, false}));
  options_.engine.memory_limit_bytes = 20 * bytes;
  const auto server = service();
  std::vector<std::unique_ptr<Alone>> alone;
  const auto id = [](int i) { return "s" + std::to_string(i); };
  for (int i = 0; i < kSessions; ++i) {
    create(*server, id(i), i % 2 == 0 ? SavePolicy::kTurn : SavePolicy::kManual);
    alone.push_back(std::make_unique<Alone>(model_, 7));
  }
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kSessions; ++i) {
      const Tokens prompt = random_tokens(2, 100 * round + i);
      const Told told = play(*server, turn_of(id(i), prompt, 2));
      ASSERT_EQ(told.tokens, alone[i]->turn(prompt, 2, {})) << i;
      EXPECT_EQ(told.result.end.tokens_evaluated, 3);
    }
    EXPECT_LE(server->resident_bytes(), options_.engine.memory_limit_bytes);
  }
  EXPECT_GT(server->metrics().evicted.load(), 500);
  const auto drained = server->drain(Clock::now() + std::chrono::seconds(5));
  EXPECT_GT(drained.saved, 0);
  EXPECT_EQ(drained.failed, 0);
  for (int i = 0; i < kSessions; ++i) {
    EXPECT_EQ(stored(id(i)), digest(alone[i]->snapshot())) << i;
    EXPECT_EQ(seq(*server, id(i)), 4);
  }
}

TEST_P(ServiceLifeTest, ADrainEndsTurnsAndSavesTheRest) {
  const auto server = service();
  Alone alone(model_, 7), saved(model_, 7);
  create(*server, "a");
  create(*server, "m", SavePolicy::kManual);
  play(*server, turn_of("a", {1}, 2));
  alone.turn({1}, 2, {});
  play(*server, turn_of("m", {2}, 2));
  saved.turn({2}, 2, {});
  SessionTurn endless = turn_of("a", {3}, 100'000'000);
  const auto told = listen(&endless);
  const TurnSubmission running = server->submit(std::move(endless));
  ASSERT_TRUE(running.admitted());
  const auto drained = server->drain(Clock::now() + std::chrono::milliseconds(20));
  EXPECT_EQ(drained.cancelled, 1);
  EXPECT_EQ(drained.saved, 1);
  EXPECT_TRUE(running.handle.done());
  EXPECT_EQ(told->result.end.reason, FinishReason::kCancelled);
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  EXPECT_EQ(stored("m"), digest(saved.snapshot()));
  EXPECT_FALSE(server->ready().ready);
  EXPECT_EQ(refused(*server, turn_of("a", {}, 1)).reason, RefusalReason::kDraining);
  EXPECT_EQ(refused(*server, turn_of("", {}, 1)).reason, RefusalReason::kDraining);
}

TEST_P(ServiceLifeTest, AnEndingServerCancelsItsTurns) {
  auto server = service();
  create(*server, "a");
  SessionTurn endless = turn_of("a", {3}, 100'000'000);
  const auto told = listen(&endless);
  const TurnHandle handle = server->submit(std::move(endless)).handle;
  server.reset();
  EXPECT_TRUE(handle.done());
  EXPECT_EQ(told->ends, 1);
  TurnHandle(handle).cancel();
}

TEST_P(ServiceLifeTest, ALeaseIsRenewedWhileItsTurnRuns) {
  options_.lease_seconds = 1;
  store_options_.now_ms = {};  // the system's clock
  const auto one = service("one"), two = service("two");
  create(*one, "a");
  SlowTurn slow(*one, turn_of("a", {1}, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(1600));
  EXPECT_EQ(refused(*two, turn_of("a", {}, 1)).error.where, kLeaseConflict);
  EXPECT_TRUE(slow.finish().saved);
  EXPECT_EQ(play(*two, turn_of("a", {}, 1)).result.seq, 3);
}

TEST_P(ServiceLifeTest, ALeaseThatIsTakenEndsItsTurn) {
  options_.lease_seconds = 1;
  const auto one = service("one"), two = service("two");
  create(*one, "a");
  SessionTurn endless = turn_of("a", {3}, 100'000'000);
  const auto told = listen(&endless);
  const TurnHandle handle = one->submit(std::move(endless)).handle;
  clock_.advance(1001);
  // Its next renewal finds out, unless it comes before the other server.
  TurnSubmission other = two->submit(turn_of("a", {4}, 1));
  while (!other.admitted()) {
    clock_.advance(1001);
    other = two->submit(turn_of("a", {4}, 1));
  }
  handle.wait();
  EXPECT_EQ(told->result.end.reason, FinishReason::kError);
  EXPECT_EQ(told->result.end.error.where, kLeaseConflict);
  EXPECT_EQ(one->metrics().lost_leases.load(), 1);
  other.handle.wait();
  EXPECT_EQ(play(*one, turn_of("a", {}, 1)).result.end.token_count, 3);
}

/// Applies writes, and says that they failed while told to.
class SilentObjects final : public Objects {
 public:
  SilentObjects(std::unique_ptr<Objects> objects, std::atomic<bool>* silent)
      : objects_(std::move(objects)), silent_(silent) {}
  Result<MaybeValue> get(const std::string& name) override { return objects_->get(name); }
  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit) override {
    return objects_->scan(prefix, after, limit);
  }
  Status update(const Planner& planner) override {
    TARN_RETURN_IF_ERROR(objects_->update(planner));
    if (*silent_) return Error{ErrorCode::kIo, "the connection broke", "store"};
    return {};
  }
  Durability durability() const override { return objects_->durability(); }

 private:
  std::unique_ptr<Objects> objects_;
  std::atomic<bool>* silent_;
};

/// Cannot be reached while told so.
class LostObjects final : public Objects {
 public:
  LostObjects(std::unique_ptr<Objects> objects, std::atomic<bool>* lost)
      : objects_(std::move(objects)), lost_(lost) {}
  Result<MaybeValue> get(const std::string& name) override {
    if (*lost_) return gone();
    return objects_->get(name);
  }
  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit) override {
    if (*lost_) return gone();
    return objects_->scan(prefix, after, limit);
  }
  Status update(const Planner& planner) override {
    if (*lost_) return gone();
    return objects_->update(planner);
  }
  Durability durability() const override { return objects_->durability(); }

 private:
  static Error gone() { return {ErrorCode::kIo, "nobody answers", "store"}; }
  std::unique_ptr<Objects> objects_;
  std::atomic<bool>* lost_;
};

TEST_P(ServiceLifeTest, IsNotReadyWhileTheStoreIsOutOfReach) {
  std::atomic<bool> lost{false};
  auto objects = place_->objects(store_options_);
  ASSERT_TRUE(objects.ok());
  auto store = make_session_store(
      watch_objects(std::make_unique<LostObjects>(std::move(*objects), &lost), "test"),
      store_options_);
  ASSERT_TRUE(store.ok());
  auto server = SessionService::create(model_, options_, std::move(*store));
  ASSERT_TRUE(server.ok());
  create(**server, "a");
  const auto becomes = [&](bool ready) {
    for (int i = 0; i < 300 && (*server)->ready().ready != ready; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return (*server)->ready().ready == ready;
  };
  EXPECT_TRUE((*server)->ready().ready);
  lost = true;
  EXPECT_TRUE(becomes(false)) << "readiness asks by itself";
  EXPECT_EQ((*server)->ready().reason, "the test store fails: nobody answers");
  lost = false;
  EXPECT_TRUE(becomes(true));
  lost = true;
  EXPECT_EQ(refused(**server, turn_of("a", {}, 1)).reason, RefusalReason::kFailed);
  EXPECT_FALSE((*server)->ready().ready) << "a failed turn tells at once";
  lost = false;
  EXPECT_EQ(play(**server, turn_of("a", {1}, 1)).result.seq, 2);
  EXPECT_TRUE((*server)->ready().ready);
}

TEST(WatchedObjects, TellTheLogOnce) {
  std::atomic<bool> lost{false};
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) lines.emplace_back(line);
  });
  const auto objects =
      watch_objects(std::make_unique<LostObjects>(open_memory_objects(), &lost), "test");
  const auto read = [&] { return objects->get("s/a").ok(); };
  EXPECT_TRUE(read());
  lost = true;
  EXPECT_FALSE(read() || read());
  EXPECT_TRUE(objects->state().failing);
  lost = false;
  EXPECT_TRUE(read() && read());
  EXPECT_FALSE(objects->state().failing);
  const std::vector<std::string> wanted = {"the test store fails: nobody answers",
                                           "the test store is back"};
  EXPECT_EQ(lines, wanted);
  set_log_sink({});
}

TEST_P(ServiceLifeTest, ARetryFindsOutWhetherALostSaveArrived) {
  Alone alone(model_, 7);
  std::atomic<bool> silent{false};
  auto objects = place_->objects(store_options_);
  ASSERT_TRUE(objects.ok());
  auto store = make_session_store(std::make_unique<SilentObjects>(std::move(*objects), &silent),
                                  store_options_);
  ASSERT_TRUE(store.ok());
  auto server = SessionService::create(model_, options_, std::move(*store));
  ASSERT_TRUE(server.ok());
  create(**server, "a");
  SessionTurn turn = turn_of("a", {1, 2}, 3);
  turn.idempotency_key = "once";
  {
    SlowTurn slow(**server, turn);
    silent = true;
    const TurnResult end = slow.finish();
    EXPECT_EQ(end.end.reason, FinishReason::kError);
    EXPECT_EQ(end.end.error.code, ErrorCode::kIo);
    EXPECT_FALSE(end.saved);
  }
  silent = false;
  const Told told = play(**server, turn);
  EXPECT_TRUE(told.result.replayed);
  EXPECT_TRUE(told.result.saved);
  EXPECT_EQ(told.result.seq, 2);
  EXPECT_EQ(told.tokens, alone.turn({1, 2}, 3, {}));
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  EXPECT_EQ(play(**server, turn_of("a", {3}, 2)).tokens, alone.turn({3}, 2, {}));
}

TEST_P(ServiceLifeTest, SessionsExpire) {
  options_.expiry_interval_seconds = 1;
  const auto server = service();
  ASSERT_TRUE(server->create_session({"short", 1, 5000}).ok());
  create(*server, "long");
  play(*server, turn_of("short", {1}, 1));
  EXPECT_EQ(server->get("short")->expires_ms, clock_.now() + 5000);
  ASSERT_TRUE(server->create_session({"unsaved", 1, 5000, SavePolicy::kManual}).ok());
  clock_.advance(1000);
  play(*server, turn_of("unsaved", {1}, 1));
  EXPECT_EQ(server->get("unsaved")->expires_ms, clock_.now() + 5000);
  clock_.advance(4001);
  while (server->metrics().expired.load() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(server->get("unsaved")->unsaved);
  clock_.advance(1000);
  while (server->metrics().expired.load() < 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(server->resident_bytes(), 0);  // "long" was never asked for
  for (const char* gone : {"short", "unsaved"}) {
    EXPECT_EQ(refused(*server, turn_of(gone, {1}, 1)).reason, RefusalReason::kNotFound);
  }
  EXPECT_EQ(play(*server, turn_of("long", {1}, 1)).result.seq, 2);
}

TEST_P(ServiceLifeTest, AFullSequenceEndsTurnsWithoutHarm) {
  model_ = runtime::tiny_model({linear()}, {});
  const int64_t limit = model_->config().max_tokens;
  ASSERT_GT(limit, 0);
  const auto server = service();
  create(*server, "a");
  Told told = play(*server, turn_of("a", random_tokens(3, 1), 10 * limit));
  EXPECT_EQ(told.result.end.reason, FinishReason::kLength);
  EXPECT_EQ(told.result.end.token_count, limit);
  EXPECT_EQ(refused(*server, turn_of("a", {1}, 1)).reason, RefusalReason::kInvalid);
  ASSERT_TRUE(server->pause("a").ok());
  const Refusal refusal = refused(*server, turn_of("a", {}, 5));
  EXPECT_EQ(refusal.reason, RefusalReason::kInvalid);
  EXPECT_EQ(refusal.error.where, "session");
  EXPECT_EQ(seq(*server, "a"), 2);
  EXPECT_FALSE(server->get("a")->in_use);
}

TEST_P(ServiceLifeTest, RequestsThatCannotBeRightAreRefused) {
  const auto server = service();
  create(*server, "a");
  const auto reason = [&](auto change) {
    SessionTurn turn = turn_of("a", {1}, 1);
    change(turn);
    return refused(*server, turn).reason;
  };
  const auto invalid = RefusalReason::kInvalid;
  EXPECT_EQ(reason([](SessionTurn& t) { t.request.prompt = {-1}; }), invalid);
  EXPECT_EQ(reason([](SessionTurn& t) { t.request.session = "../a"; }), invalid);
  EXPECT_EQ(reason([](SessionTurn& t) { t.idempotency_key = "a\nb"; }), invalid);
  EXPECT_EQ(reason([](SessionTurn& t) { t.idempotency_key = std::string(129, 'x'); }), invalid);
  EXPECT_EQ(reason([](SessionTurn& t) { t.request.session = {}, t.if_seq = 1; }), invalid);
  EXPECT_EQ(reason([](SessionTurn& t) { t.request.session = {}, t.idempotency_key = "k"; }),
            invalid);
  EXPECT_EQ(reason([](SessionTurn& t) { t.request.session = "b"; }), RefusalReason::kNotFound);
  EXPECT_EQ(reason([](SessionTurn& t) { t.if_seq = 2; }), RefusalReason::kPrecondition);
  EXPECT_EQ(reason([](SessionTurn& t) { t.request.if_tokens = 2; }), RefusalReason::kPrecondition);
  EXPECT_EQ(server->create_session({"a/b"}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(server->get("a")->seq, 1);
  EXPECT_FALSE(server->get("a")->in_use);
  ServiceOptions options;
  options.lease_seconds = 0;
  EXPECT_FALSE(SessionService::create(model_, options, place_->store({})).ok());
  options = {};
  options.owner = "two words";
  EXPECT_FALSE(SessionService::create(model_, options, place_->store({})).ok());
}

TEST_P(ServiceLifeTest, AnotherModelsSessionsAreRefused) {
  create(*service(), "a");
  model_ = endless_model({delta()});
  const Refusal refusal = refused(*service(), turn_of("a", {1}, 1));
  EXPECT_EQ(refusal.reason, RefusalReason::kInvalid);
  EXPECT_NE(refusal.error.message.find("fingerprint"), std::string::npos);
}

TEST_P(ServiceLifeTest, EverybodyAtOnce) {
  constexpr int kThreads = 6, kSessions = 5, kCalls = 60;
  model_ = endless_model({linear()});
  store_options_.now_ms = {};
  options_.engine.memory_limit_bytes =
      8 * SessionTable::bytes_of(runtime::Session(model_, {7, 0, false}));
  const auto one = service("one"), two = service("two");
  const auto id = [](uint32_t i) { return "s" + std::to_string(i); };
  for (uint32_t i = 0; i < kSessions; ++i) create(*one, id(i));
  std::array<std::atomic<int64_t>, kSessions> turns{};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Philox chance{static_cast<uint64_t>(t), 5, 0};
      for (int call = 0; call < kCalls; ++call) {
        SessionService& server = t % 2 == 0 ? *one : *two;
        const uint32_t session = chance.next_below(kSessions);
        switch (chance.next_below(8)) {
          case 0: static_cast<void>(server.pause(id(session))); break;
          case 1: static_cast<void>(server.list("", 10)); break;
          case 2: static_cast<void>(server.resume(id(session))); break;
          default: {
            SessionTurn turn = turn_of(id(session), {1, 2}, 1);
            turn.request.wait_for_session = chance.next_below(2) == 0;
            const auto told = listen(&turn);
            TurnSubmission submission = server.submit(std::move(turn));
            if (!submission.admitted()) {
              const RefusalReason reason = submission.refusal->reason;
              EXPECT_TRUE(reason == RefusalReason::kConflict || reason == RefusalReason::kFull)
                  << submission.refusal->error.to_string();
              break;
            }
            if (chance.next_below(4) == 0) submission.handle.cancel();
            submission.handle.wait();
            EXPECT_EQ(told->ends, 1);
            if (told->result.saved) turns[session].fetch_add(1);
            if (!told->result.saved) {
              EXPECT_EQ(told->result.end.reason, FinishReason::kCancelled)
                  << told->result.end.error.to_string();
            }
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t all = 0;
  for (uint32_t i = 0; i < kSessions; ++i) {
    const auto view = two->get(id(i));
    ASSERT_TRUE(view.ok());
    EXPECT_EQ(view->seq, 1 + turns[i].load());
    EXPECT_EQ(view->token_count, 3 * turns[i].load());
    EXPECT_FALSE(view->in_use);
    Alone alone(model_, 7);
    for (int64_t k = 0; k < turns[i].load(); ++k) alone.turn({1, 2}, 1, {});
    if (turns[i].load() > 0) {
      EXPECT_EQ(stored(id(i)), digest(alone.snapshot()));
    }
    all += turns[i].load();
  }
  EXPECT_GT(all, 10);
}

INSTANTIATE_TEST_SUITE_P(Stores, ServiceLifeTest, testing::Values(kind("memory")));

}  // namespace
}  // namespace tarn::serve
