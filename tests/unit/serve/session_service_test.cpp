// Durable sessions on every kind of store: what a session is after turns, moves and failures must be
// what a session and a generator of its own would be, bit for bit.
#include <algorithm>
#include <atomic>
#include <thread>

#include "unit/serve/service_fixture.h"
#include "unit/serve/store_fixture.h"

namespace tarn::serve {
namespace {

TEST_P(ServiceTest, AResumedSessionEqualsOneThatNeverStopped) {
  Alone alone(model_, 7);
  {
    const auto first = service();
    create(*first, "a");
    const Told told = play(*first, turn_of("a", random_tokens(9, 1), 6));
    EXPECT_EQ(told.tokens, alone.turn(random_tokens(9, 1), 6, {}));
    EXPECT_TRUE(told.result.saved);
    EXPECT_FALSE(told.result.replayed);
    EXPECT_EQ(told.result.seq, 2);
    EXPECT_EQ(told.result.end.tokens_evaluated, 10);
    EXPECT_EQ(told.result.durability, place_->durability(store_options_));
    EXPECT_EQ(told.ends, 1);
    EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  }
  const auto second = service();
  Told told = play(*second, turn_of("a", {}, 1));
  EXPECT_EQ(told.result.end.tokens_evaluated, 1);
  EXPECT_EQ(told.tokens, alone.turn({}, 1, {}));
  const runtime::SamplerOptions cool{false, 0.5f, 4, 0.9f};
  SessionTurn turn = turn_of("a", random_tokens(4, 2), 5);
  turn.request.sampler = cool;
  told = play(*second, std::move(turn));
  EXPECT_EQ(told.result.end.tokens_evaluated, 5);
  EXPECT_EQ(told.tokens, alone.turn(random_tokens(4, 2), 5, cool));
  EXPECT_EQ(told.result.end.token_count, 25);
  EXPECT_EQ(told.result.seq, 4);
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  const auto view = second->get("a");
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->seq, 4);
  EXPECT_EQ(view->token_count, 25);
  EXPECT_TRUE(view->resident);
  EXPECT_FALSE(view->in_use);
  EXPECT_FALSE(view->unsaved);
  EXPECT_EQ(view->model_fingerprint, model_->fingerprint());
  EXPECT_EQ(view->versions.size(), 4);
}

TEST_P(ServiceTest, APromptAloneIsNotReadAgainAfterAResume) {
  Alone alone(model_, 7);
  {
    const auto first = service();
    create(*first, "a");
    play(*first, turn_of("a", random_tokens(20, 1), 0));
    alone.turn(random_tokens(20, 1), 0, {});
  }
  const auto second = service();
  const auto view = second->resume("a");
  ASSERT_TRUE(view.ok());
  EXPECT_TRUE(view->resident);
  EXPECT_EQ(second->metrics().loads.load(), 1);
  const Told told = play(*second, turn_of("a", {}, 3));
  EXPECT_EQ(told.result.end.tokens_evaluated, 0);
  EXPECT_EQ(second->metrics().loads.load(), 1);
  EXPECT_EQ(told.tokens, alone.turn({}, 3, {}));
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
}

TEST_P(ServiceTest, ASessionMovesBetweenServers) {
  Alone alone(model_, 7);
  const auto one = service("one"), two = service("two");
  create(*one, "a");
  for (int i = 0; i < 6; ++i) {
    SessionService& server = i % 3 == 0 ? *one : *two;
    SessionTurn turn = turn_of("a", random_tokens(3, 10 + i), 2);
    turn.if_seq = 1 + i;
    const Told told = play(server, std::move(turn));
    EXPECT_EQ(told.tokens, alone.turn(random_tokens(3, 10 + i), 2, {})) << i;
    EXPECT_EQ(told.result.seq, 2 + i);
    EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  }
  EXPECT_EQ(one->metrics().stale.load(), 1);
  EXPECT_EQ(two->metrics().stale.load(), 1);
  SessionTurn late = turn_of("a", {}, 1);
  late.if_seq = 6;
  const Refusal refusal = refused(*one, late);
  EXPECT_EQ(refusal.reason, RefusalReason::kPrecondition);
  EXPECT_EQ(refusal.error.where, kIfSeqConflict);
  EXPECT_EQ(seq(*two, "a"), 7);
}

TEST_P(ServiceTest, OfTwoWritersOnOneNumberExactlyOneWins) {
  const auto one = service("one"), two = service("two");
  create(*one, "a");
  Alone alone(model_, 7);
  for (int round = 0; round < 8; ++round) {
    std::atomic<int> won{0};
    std::vector<std::thread> writers;
    for (int w = 0; w < 4; ++w) {
      writers.emplace_back([&, w] {
        SessionTurn turn = turn_of("a", random_tokens(2, 50 + round), 2);
        turn.if_seq = 1 + round;
        const auto told = listen(&turn);
        TurnSubmission submission = (w % 2 == 0 ? *one : *two).submit(std::move(turn));
        if (submission.admitted()) {
          submission.handle.wait();
          EXPECT_TRUE(told->result.saved) << told->result.end.error.to_string();
          EXPECT_EQ(told->result.seq, 2 + round);
          won.fetch_add(1);
          return;
        }
        const RefusalReason reason = submission.refusal->reason;
        EXPECT_TRUE(reason == RefusalReason::kConflict || reason == RefusalReason::kPrecondition)
            << submission.refusal->error.to_string();
      });
    }
    for (std::thread& writer : writers) writer.join();
    if (won == 0) {  // each was refused because another had the session at that moment
      SessionTurn turn = turn_of("a", random_tokens(2, 50 + round), 2);
      turn.if_seq = 1 + round;
      play(*two, std::move(turn));
      won = 1;
    }
    EXPECT_EQ(won.load(), 1);
    alone.turn(random_tokens(2, 50 + round), 2, {});
    EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  }
}

TEST_P(ServiceTest, ACancelledTurnLeavesTheSessionAndFreesTheLease) {
  const auto one = service("one"), two = service("two");
  create(*one, "a");
  Alone alone(model_, 7);
  play(*one, turn_of("a", random_tokens(30, 1), 3));
  alone.turn(random_tokens(30, 1), 3, {});
  SlowTurn slow(*one, turn_of("a", random_tokens(5, 2), 1000));
  Refusal refusal = refused(*two, turn_of("a", {}, 1));
  EXPECT_EQ(refusal.reason, RefusalReason::kConflict);
  EXPECT_EQ(refusal.error.where, kLeaseConflict);
  EXPECT_GT(refusal.retry_after_seconds, 0);
  refusal = refused(*one, turn_of("a", {}, 1));
  EXPECT_EQ(refusal.reason, RefusalReason::kConflict);
  EXPECT_TRUE(one->get("a")->in_use);
  EXPECT_TRUE(two->get("a")->in_use);
  EXPECT_EQ(one->remove("a").error().code, ErrorCode::kConflict);
  EXPECT_EQ(two->remove("a").error().code, ErrorCode::kConflict);
  const TurnResult end = slow.cancel();
  EXPECT_EQ(end.end.reason, FinishReason::kCancelled);
  EXPECT_FALSE(end.saved);
  EXPECT_EQ(end.seq, 2);
  EXPECT_EQ(end.end.token_count, 33);
  EXPECT_FALSE(two->get("a")->in_use);
  // Another server goes on at once, and the first one after it.
  EXPECT_EQ(play(*two, turn_of("a", {}, 4)).tokens, alone.turn({}, 4, {}));
  const Told told = play(*one, turn_of("a", random_tokens(2, 3), 4));
  EXPECT_EQ(told.tokens, alone.turn(random_tokens(2, 3), 4, {}));
  EXPECT_EQ(told.result.end.token_count, 43);
  EXPECT_EQ(told.result.seq, 4);
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
}

TEST_P(ServiceTest, LargeResultsBehindTheNewestAreForgotten) {
  model_ = text_model();
  const auto server = service();
  create(*server, "a");
  const auto keyed = [&](const std::string& key) {
    SessionTurn turn = turn_of("a", random_tokens(2, 1, 256), 1200);
    turn.idempotency_key = key;
    turn.request.log_probs = kMaxLogProbs;  // some 420 KB
    return turn;
  };
  for (const char* key : {"1", "2", "3", "4"})
    EXPECT_FALSE(play(*server, keyed(key)).result.replayed);
  const auto record = place_->store(store_options_)->load("a", model_->fingerprint());
  ASSERT_TRUE(record.ok());
  EXPECT_LT(record->payload.size(), 2 << 20);
  EXPECT_TRUE(play(*server, keyed("4")).result.replayed);
  EXPECT_TRUE(play(*server, keyed("3")).result.replayed);
  EXPECT_FALSE(play(*server, keyed("1")).result.replayed);
}

TEST_P(ServiceTest, ARepeatedKeyIsAnsweredAndNotApplied) {
  model_ = text_model();
  options_.idempotency_keys = 2;
  options_.idempotency_seconds = 100;
  const Tokens prompt = random_tokens(5, 1, 256);
  const auto keyed = [&](const std::string& key, int64_t count) {
    SessionTurn turn = turn_of("a", prompt, count);
    turn.idempotency_key = key;
    return turn;
  };
  Told first;
  const auto expect_first = [&](const Told& told) {
    EXPECT_TRUE(told.result.replayed);
    EXPECT_TRUE(told.result.saved);
    EXPECT_EQ(told.result.seq, first.result.seq);
    EXPECT_EQ(told.tokens, first.tokens);
    EXPECT_EQ(told.positions, first.positions);
    EXPECT_EQ(told.text, first.text);
    EXPECT_EQ(told.result.end.reason, first.result.end.reason);
    EXPECT_EQ(told.result.end.tokens_evaluated, first.result.end.tokens_evaluated);
    EXPECT_EQ(told.result.end.tokens_drawn, first.result.end.tokens_drawn);
    EXPECT_EQ(told.result.end.token_count, first.result.end.token_count);
    EXPECT_EQ(told.ends, 1);
  };
  {
    const auto one = service("one");
    create(*one, "a");
    play(*one, turn_of("a", prompt, 2));
    first = play(*one, keyed("k 1", 8));
    EXPECT_FALSE(first.result.replayed);
    expect_first(play(*one, keyed("k 1", 8)));
    const Refusal refusal = refused(*one, keyed("k 1", 9));
    EXPECT_EQ(refusal.reason, RefusalReason::kConflict);
    EXPECT_EQ(refusal.error.where, kKeyConflict);
    // A fork has the same tokens but made no such turn.
    ASSERT_TRUE(one->fork("a", {}, "b").ok());
    SessionTurn other = keyed("k 1", 8);
    other.request.session = "b";
    EXPECT_FALSE(play(*one, other).result.replayed);
  }
  const auto two = service("two"), three = service("three");
  expect_first(play(*two, keyed("k 1", 8)));
  SessionTurn stale = keyed("k 1", 8);
  stale.if_seq = 2;  // what the client knew when it sent the turn
  expect_first(play(*three, stale));
  EXPECT_EQ(seq(*three, "a"), 3);
  // Two newer keys push it out, and so does time.
  play(*two, keyed("k 2", 1));
  clock_.advance(60'000);
  play(*three, keyed("k 3", 1));
  EXPECT_FALSE(play(*two, keyed("k 1", 8)).result.replayed);
  EXPECT_TRUE(play(*three, keyed("k 3", 1)).result.replayed);
  clock_.advance(100'001);
  EXPECT_FALSE(play(*three, keyed("k 3", 1)).result.replayed);
}

TEST_P(ServiceTest, ForksAndRollbacksAreVersions) {
  const auto one = service("one"), two = service("two");
  create(*one, "a");
  Alone alone(model_, 7), other(model_, 7);
  play(*one, turn_of("a", random_tokens(4, 1), 3));
  alone.turn(random_tokens(4, 1), 3, {});
  const std::string at_2 = digest(alone.snapshot());
  play(*one, turn_of("a", random_tokens(4, 2), 3));
  const auto forked = two->fork("a", 2, "b");
  ASSERT_TRUE(forked.ok()) << forked.error().to_string();
  EXPECT_EQ(forked->seq, 1);
  EXPECT_EQ(forked->token_count, 7);
  EXPECT_EQ(stored("b"), at_2);
  EXPECT_EQ(two->fork("a", 2, "b").error().code, ErrorCode::kConflict);
  EXPECT_EQ(two->fork("a", 9, "c").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(two->fork("nobody", {}, "c").error().code, ErrorCode::kNotFound);
  const auto newest = one->fork("a", {}, "");
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ(stored(newest->id), stored("a"));
  // A rollback on one server shows on the other, which has a newer copy in memory.
  const auto rolled = two->rollback("a", 2);
  ASSERT_TRUE(rolled.ok()) << rolled.error().to_string();
  EXPECT_EQ(rolled->seq, 4);
  EXPECT_EQ(rolled->token_count, 7);
  const Tokens next = alone.turn(random_tokens(2, 5), 4, {});
  EXPECT_EQ(play(*one, turn_of("a", random_tokens(2, 5), 4)).tokens, next);
  EXPECT_EQ(play(*one, turn_of("b", random_tokens(2, 5), 4)).tokens, next);
  EXPECT_EQ(one->rollback("a", 77).error().code, ErrorCode::kNotFound);
  const auto page = two->list("", 2);
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->sessions.size(), 2);
  EXPECT_FALSE(page->next.empty());
  EXPECT_EQ(two->list(page->next, 2)->sessions.size(), 1);
  // Removed on one server, gone on the other although it is in its memory.
  ASSERT_TRUE(two->remove("a").ok());
  EXPECT_EQ(refused(*one, turn_of("a", {}, 1)).reason, RefusalReason::kNotFound);
  EXPECT_EQ(one->get("a").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(one->remove("a").error().code, ErrorCode::kNotFound);
  const auto again = one->create_session({"a", 7});
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ(play(*one, turn_of("a", random_tokens(4, 1), 3)).tokens,
            other.turn(random_tokens(4, 1), 3, {}));
  EXPECT_EQ(one->create_session({"a", 7}).error().code, ErrorCode::kConflict);
  EXPECT_EQ(one->metrics().failed_saves.load(), 0);
  EXPECT_EQ(stored("a"), at_2);
}

TEST_P(ServiceTest, ManualSessionsAreSavedWhenAsked) {
  Alone alone(model_, 7);
  auto one = service("one");
  const auto two = service("two");
  create(*one, "a", SavePolicy::kManual);
  const std::string fresh = digest(alone.snapshot());
  for (int i = 0; i < 3; ++i) {
    SessionTurn turn = turn_of("a", random_tokens(3, 30 + i), 2);
    turn.idempotency_key = "k" + std::to_string(i);
    const Told told = play(*one, turn);
    EXPECT_EQ(told.tokens, alone.turn(random_tokens(3, 30 + i), 2, {}));
    EXPECT_FALSE(told.result.saved);
    EXPECT_EQ(told.result.seq, 1);
    EXPECT_FALSE(play(*one, turn).result.saved);  // the answer again
  }
  EXPECT_EQ(stored("a"), fresh);
  auto view = one->get("a");
  ASSERT_TRUE(view.ok());
  EXPECT_TRUE(view->unsaved);
  EXPECT_FALSE(view->in_use);
  EXPECT_EQ(view->token_count, 15);
  EXPECT_EQ(one->metrics().unsaved_sessions.load(), 1);
  EXPECT_EQ(refused(*two, turn_of("a", {}, 1)).reason, RefusalReason::kConflict);
  SlowTurn(*one, turn_of("a", {}, 100)).cancel();  // the turns before it stay
  view = one->save("a");
  ASSERT_TRUE(view.ok()) << view.error().to_string();
  EXPECT_EQ(view->seq, 2);
  EXPECT_FALSE(view->unsaved);
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  EXPECT_EQ(one->save("a")->seq, 2);  // nothing to do
  EXPECT_EQ(play(*two, turn_of("a", {}, 2)).tokens, alone.turn({}, 2, {}));
  EXPECT_EQ(two->pause("a")->seq, 3);
  EXPECT_FALSE(two->get("a")->resident);
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  // Unsaved turns can be dropped, are in a fork, and outlive a server that ends in order.
  play(*one, turn_of("a", random_tokens(3, 40), 2));
  ASSERT_TRUE(one->rollback("a", 3).ok());
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  EXPECT_EQ(play(*one, turn_of("a", {}, 2)).tokens, alone.turn({}, 2, {}));
  ASSERT_TRUE(one->fork("a", {}, "b").ok());
  EXPECT_EQ(stored("b"), digest(alone.snapshot()));
  play(*one, turn_of("a", {}, 1));
  alone.turn({}, 1, {});
  const auto drained = one->drain(Clock::now());
  EXPECT_EQ(drained.saved, 1);
  EXPECT_EQ(drained.failed, 0);
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  one = service("one");
  play(*one, turn_of("a", {}, 1));
  alone.turn({}, 1, {});
  one.reset();
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
}

TEST_P(ServiceTest, AnotherServerDoesNotActOnWhatIsUnsavedElsewhere) {
  auto one = service("one");
  const auto two = service("two");
  create(*one, "a", SavePolicy::kManual);
  ASSERT_TRUE(two->resume("a").ok());  // a copy of what is to become old
  const std::string fresh = stored("a");
  play(*one, turn_of("a", {1, 2}, 3));
  const auto expect_held = [&](const Result<SessionView>& view) {
    ASSERT_FALSE(view.ok());
    EXPECT_EQ(view.error().code, ErrorCode::kConflict);
    EXPECT_EQ(view.error().where, kLeaseConflict);
    EXPECT_EQ(view.error().message, "session a is held by another server for up to 30 s");
  };
  for (int copy = 0; copy < 2; ++copy) {  // with the copy, then without
    expect_held(two->save("a"));
    expect_held(two->fork("a", {}, "b"));
    expect_held(two->resume("a"));
    expect_held(two->pause("a"));
  }
  ASSERT_TRUE(two->fork("a", 1, "b").ok()) << "a version that is asked for by its number";
  EXPECT_EQ(stored("b"), fresh);
  EXPECT_TRUE(two->get("a")->in_use);
  // Its own server may do all of it.
  EXPECT_TRUE(one->resume("a").ok());
  EXPECT_EQ(one->pause("a")->seq, 2);
  EXPECT_EQ(two->resume("a")->token_count, 5);
  EXPECT_EQ(two->save("a")->seq, 2);
}

TEST_P(ServiceTest, ARefusalSaysHowLongALeaseLasts) {
  const auto one = service("one"), two = service("two");
  create(*one, "a", SavePolicy::kManual);
  play(*one, turn_of("a", {1, 2}, 3));
  clock_.advance(8'300);  // as if its server were dead
  const Refusal refusal = refused(*two, turn_of("a", {}, 1));
  EXPECT_EQ(refusal.error.message, "session a is held by another server for up to 22 s");
  EXPECT_DOUBLE_EQ(refusal.retry_after_seconds, 21.7);
  EXPECT_DOUBLE_EQ(two->lease_seconds("a"), 21.7);
  EXPECT_EQ(one->lease_seconds("a"), 0);
  clock_.advance(21'700);
  EXPECT_EQ(two->lease_seconds("a"), 0);
  EXPECT_EQ(play(*two, turn_of("a", {}, 1)).result.end.token_count, 1);
}

TEST_P(ServiceTest, AServerThatLosesItsLeaseUndoesItsTurn) {
  Alone alone(model_, 7);
  const auto one = service("one"), two = service("two");
  create(*one, "a");
  create(*one, "m", SavePolicy::kManual);
  play(*one, turn_of("m", random_tokens(3, 1), 2));
  Tokens mine;
  {
    SlowTurn slow(*one, turn_of("a", random_tokens(5, 2), 1));
    clock_.advance(31'000);  // longer than a lease, as if the server had been asleep
    mine = play(*two, turn_of("a", {3}, 2)).tokens;
    const TurnResult end = slow.finish();
    EXPECT_EQ(end.end.reason, FinishReason::kError);
    EXPECT_EQ(end.end.error.code, ErrorCode::kConflict);
    EXPECT_FALSE(end.saved);
    EXPECT_EQ(end.end.token_count, 0);
  }
  EXPECT_EQ(mine, alone.turn({3}, 2, {}));
  EXPECT_EQ(stored("a"), digest(alone.snapshot()));
  EXPECT_EQ(play(*one, turn_of("a", {4}, 2)).tokens, alone.turn({4}, 2, {}));
  // The same for turns that were not saved.
  play(*two, turn_of("m", {5}, 1));
  ASSERT_TRUE(two->save("m").ok());
  const Refusal refusal = refused(*one, turn_of("m", {}, 1));
  EXPECT_EQ(refusal.reason, RefusalReason::kConflict);
  EXPECT_NE(refusal.error.message.find("gone"), std::string::npos);
  const Told told = play(*one, turn_of("m", {}, 1));
  EXPECT_EQ(told.result.end.token_count, 3);
  ASSERT_TRUE(one->save("m").ok());
  EXPECT_EQ(seq(*one, "m"), 3);
}

TEST_P(ServiceTest, ADamagedVersionHarmsNothingElse) {
  const auto one = service();
  Alone alone(model_, 7);
  create(*one, "a");
  create(*one, "b");
  play(*one, turn_of("a", {1, 2}, 2));
  alone.turn({1, 2}, 2, {});
  ASSERT_TRUE(one->pause("a").ok());
  // A byte late in the payload, past the service; whoever damaged it repaired the record's frame.
  const auto raw = place_->store(store_options_);
  auto record = raw->load("a", model_->fingerprint());
  ASSERT_TRUE(record.ok());
  record->payload[record->payload.size() - 3] ^= 4;
  SaveRequest request;
  request.id = "a";
  request.expected_seq = 2;
  request.token_count = 4;
  request.model_fingerprint = model_->fingerprint();
  request.payload = record->payload;
  ASSERT_TRUE(raw->save(request).ok());
  const Refusal refusal = refused(*one, turn_of("a", {}, 1));
  EXPECT_EQ(refusal.reason, RefusalReason::kFailed);
  EXPECT_EQ(refusal.error.code, ErrorCode::kCorrupt);
  EXPECT_EQ(one->resume("a").error().code, ErrorCode::kCorrupt);
  Alone control(model_, 7);
  EXPECT_EQ(play(*one, turn_of("b", {1, 2}, 5)).tokens, control.turn({1, 2}, 5, {}));
  ASSERT_TRUE(one->rollback("a", 2).ok());
  EXPECT_EQ(play(*one, turn_of("a", {}, 5)).tokens, alone.turn({}, 5, {}));
}

TEST_P(ServiceTest, OneSessionTakesItsTurnsInLine) {
  const auto one = service();
  create(*one, "a");
  SlowTurn slow(*one, turn_of("a", {1}, 1));
  std::thread waiter([&] {
    SessionTurn turn = turn_of("a", {2}, 1);
    turn.request.wait_for_session = true;
    EXPECT_EQ(play(*one, turn).result.seq, 3);
  });
  SessionTurn impatient = turn_of("a", {2}, 1);
  impatient.request.wait_for_session = true;
  impatient.request.start_by = Clock::now() + std::chrono::milliseconds(20);
  EXPECT_EQ(refused(*one, impatient).reason, RefusalReason::kConflict);
  EXPECT_EQ(slow.finish().seq, 2);
  waiter.join();
}

TEST_P(ServiceTest, ADatabaseThatRestartsLosesNoTurn) {
  Alone alone(model_, 7);
  store_options_.sync = true;
  const auto server = service();
  create(*server, "a");
  for (int i = 0; i < 3; ++i) {
    SessionTurn turn = turn_of("a", random_tokens(2, i), 2);
    turn.idempotency_key = std::to_string(i);
    // Its connections are broken: the first call may find out. The key makes a retry harmless.
    std::shared_ptr<Told> told;
    for (int tries = 0; tries < 5; ++tries) {
      SessionTurn again = turn;
      told = listen(&again);
      const TurnSubmission submission = server->submit(std::move(again));
      if (!submission.admitted()) continue;
      submission.handle.wait();
      if (told->result.saved) break;
    }
    EXPECT_EQ(told->tokens, alone.turn(random_tokens(2, i), 2, {})) << i;
    EXPECT_EQ(told->result.seq, 2 + i);
    EXPECT_EQ(stored("a"), digest(alone.snapshot()));
    if (!place_->restart()) return;
  }
}

TARN_FOR_EVERY_STORE(ServiceTest);

}  // namespace
}  // namespace tarn::serve
