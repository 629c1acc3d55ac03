// What every store does: saves, loads, versions, forks, leases, lists, expiry.
#include <algorithm>
#include <set>
#include <string>

#include "serve/record.h"
#include "unit/serve/store_fixture.h"

namespace tarn::serve {
namespace {

TARN_FOR_EVERY_STORE(StoreTest);

TEST_P(StoreTest, GivesBackWhatWasSaved) {
  for (const size_t bytes : {0, 1, 1000, 264 << 10, 1 << 20, (1 << 20) + 1, (3 << 19) + 17}) {
    const std::string id = "size-" + std::to_string(bytes);
    const std::string payload = noise(bytes, bytes);
    SaveRequest wanted = request(id, payload, 0);
    wanted.token_count = 77;
    wanted.ttl_ms = 5000;
    const auto saved = store_->save(wanted);
    ASSERT_TRUE(saved.ok()) << saved.error().to_string();
    EXPECT_EQ(saved->seq, 1);
    EXPECT_EQ(saved->durability, store_->durability());
    reopen();
    const auto record = store_->load(id, kModel);
    ASSERT_TRUE(record.ok()) << record.error().to_string();
    EXPECT_TRUE(record->payload == payload) << bytes;
    EXPECT_EQ(record->id, id);
    EXPECT_EQ(record->seq, 1);
    EXPECT_EQ(record->parent, VersionName());
    EXPECT_EQ(record->token_count, 77);
    EXPECT_EQ(record->model_fingerprint, kModel);
    EXPECT_EQ(record->created_ms, clock_.now());
    EXPECT_EQ(record->written_ms, clock_.now());
    EXPECT_EQ(record->ttl_ms, 5000);
    EXPECT_EQ(record->expires_ms, clock_.now() + 5000);
  }
}

TEST_P(StoreTest, SaysWhatASaveSurvives) {
  for (const bool sync : {false, true}) {
    options_.sync = sync;
    reopen();
    const auto saved = store_->save(request(sync ? "synced" : "not", "x", 0));
    ASSERT_TRUE(saved.ok());
    EXPECT_EQ(saved->durability, place_->durability(options_));
  }
  EXPECT_STREQ(durability_name(Durability::kMemory), "memory");
  EXPECT_STREQ(durability_name(Durability::kProcess), "process");
  EXPECT_STREQ(durability_name(Durability::kPower), "power");
}

TEST_P(StoreTest, GoesOnWhenItsServerIsStartedAnew) {
  options_.sync = true;
  reopen();
  EXPECT_EQ(save("a", "one", 0), 1);
  // The connection that waits for its next use is a dead one then: for a load, and for a save.
  place_->restart();
  EXPECT_EQ(load("a"), "one");
  place_->restart();
  EXPECT_EQ(save("a", "two", 1), 2);
  EXPECT_EQ(load("a"), "two");
}

TEST_P(StoreTest, SavesOnlyOverTheVersionThatTheWriterKnows) {
  EXPECT_EQ(save("a", "one", 0), 1);
  EXPECT_EQ(save("a", "two", 1), 2);
  for (const int64_t stale : {int64_t{0}, int64_t{1}, int64_t{3}}) {
    const auto saved = store_->save(request("a", "late", stale));
    ASSERT_FALSE(saved.ok());
    EXPECT_EQ(saved.error().code, ErrorCode::kConflict);
    EXPECT_EQ(saved.error().where, kSeqConflict);
  }
  const auto missing = store_->save(request("new", "x", 1));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kConflict);
  EXPECT_EQ(load("a"), "two");
  const auto record = store_->load("a", kModel);
  EXPECT_EQ(record->parent, (VersionName{"a", 1}));
  EXPECT_EQ(save("a", "three", 2), 3);
}

TEST_P(StoreTest, RefusesWhatCannotBeASession) {
  const std::string too_long(65, 'a');
  for (const std::string_view id :
       {std::string_view(""), std::string_view(too_long), std::string_view("."),
        std::string_view("../a"), std::string_view("a/b"), std::string_view("a b"),
        std::string_view("\xc3\xa9"), std::string_view("a\0b", 3)}) {
    const auto code_of = [](const auto& result) {
      return result.ok() ? ErrorCode::kCancelled : result.error().code;
    };
    EXPECT_EQ(code_of(store_->save(request(id, "x", 0))), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of(store_->load(id, kModel)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of(store_->remove(id)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of(store_->fork(id, 1, "b")), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of(store_->fork("a", 1, id)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of(store_->rollback(id, 1)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of(store_->acquire_lease(id, "me", 5)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of(store_->renew_lease(id, 1, 5, true)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of(store_->release_lease(id, 1)), ErrorCode::kInvalidArgument);
  }
  SaveRequest bad = request("a", "x", 0);
  bad.ttl_ms = -1;
  EXPECT_EQ(store_->save(bad).error().code, ErrorCode::kInvalidArgument);
  bad = request("a", "x", -1);
  EXPECT_EQ(store_->save(bad).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->acquire_lease("a", "has space", 5).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->acquire_lease("a", "me", 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->list("../", 5).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->list("", 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(objects("s/").empty());
  EXPECT_EQ(save(std::string(64, 'Z'), "x", 0), 1);
}

TEST_P(StoreTest, RefusesPayloadsAboveTheLimit) {
  options_.max_payload_bytes = 10;
  reopen();
  EXPECT_EQ(save("a", "0123456789", 0), 1);
  const auto saved = store_->save(request("a", "0123456789x", 1));
  ASSERT_FALSE(saved.ok());
  EXPECT_EQ(saved.error().code, ErrorCode::kResource);
  EXPECT_EQ(load("a"), "0123456789");
}

TEST_P(StoreTest, RefusesAnotherModel) {
  save("a", "x", 0);
  const auto record = store_->load("a", 0xabc);
  ASSERT_FALSE(record.ok());
  EXPECT_EQ(record.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(record.error().message.find("1234567890abcdef"), std::string::npos);
  EXPECT_NE(record.error().message.find("0000000000000abc"), std::string::npos);
  EXPECT_EQ(load("a"), "x");
}

TEST_P(StoreTest, KeepsTheNewestVersions) {
  options_.keep_versions = 3;
  reopen();
  for (int64_t i = 0; i < 10; ++i) save("a", "version " + std::to_string(i + 1), i);
  EXPECT_EQ(load("a"), "version 10");
  for (const int64_t seq : {8, 9, 10}) EXPECT_EQ(load("a", seq), "version " + std::to_string(seq));
  for (const int64_t seq : {0, 1, 7, 11}) {
    EXPECT_EQ(load_error("a", seq).code, ErrorCode::kNotFound);
  }
  EXPECT_EQ(load_error("b").code, ErrorCode::kNotFound);
  EXPECT_EQ(objects("r/").size(), 3);
}

TEST_P(StoreTest, StoresEqualChunksOnce) {
  const std::string large = noise((1 << 20) + 5, 1);
  save("a", large, 0);
  EXPECT_EQ(objects("c/").size(), 5);
  std::string changed = large;
  changed.back() ^= 1;
  save("b", changed, 0);
  EXPECT_EQ(objects("c/").size(), 6);
  save("b", large, 1);
  EXPECT_EQ(objects("c/").size(), 6);
  EXPECT_TRUE(store_->remove("a").ok());
  EXPECT_EQ(load("b", 1), changed);
  EXPECT_EQ(load("b", 2), large);
  EXPECT_TRUE(store_->remove("b").ok());
  for (const char* prefix : {"r/", "c/", "n/"}) EXPECT_TRUE(objects(prefix).empty()) << prefix;
}

TEST_P(StoreTest, CountsAChunkThatRepeatsWithinAPayload) {
  options_.keep_versions = 1;
  reopen();
  const std::string zeros(3 << 20, '\0');
  save("a", zeros, 0);
  EXPECT_EQ(objects("c/").size(), 1);
  save("a", zeros.substr(0, 2 << 20), 1);
  EXPECT_EQ(load("a"), zeros.substr(0, 2 << 20));
  save("a", "small", 2);
  EXPECT_EQ(load("a"), "small");
  EXPECT_TRUE(objects("c/").empty());
  EXPECT_TRUE(objects("n/").empty());
}

TEST_P(StoreTest, ForksReferToTheVersionWithoutACopy) {
  for (const size_t bytes : {size_t{300}, size_t{2} << 20}) {
    const std::string id = "a" + std::to_string(bytes), child = "b" + std::to_string(bytes);
    const std::string first = noise(bytes, 1), second = noise(bytes, 2);
    save(id, first, 0);
    save(id, second, 1);
    const size_t records = objects("r/").size(), chunks = objects("c/").size();
    const auto forked = store_->fork(id, 1, child);
    ASSERT_TRUE(forked.ok()) << forked.error().to_string();
    EXPECT_EQ(forked->seq, 1);
    EXPECT_EQ(objects("r/").size(), records);
    EXPECT_EQ(objects("c/").size(), chunks);
    const auto record = store_->load(child, kModel);
    ASSERT_TRUE(record.ok()) << record.error().to_string();
    EXPECT_EQ(record->payload, first);
    EXPECT_EQ(record->id, child);
    EXPECT_EQ(record->seq, 1);
    EXPECT_EQ(record->parent, (VersionName{id, 1}));
    EXPECT_EQ(store_->fork(id, 1, child).error().code, ErrorCode::kConflict);
    EXPECT_EQ(store_->fork(id, 9, "c").error().code, ErrorCode::kNotFound);
    EXPECT_EQ(store_->fork("absent", 1, "c").error().code, ErrorCode::kNotFound);
    // Each goes its own way, and the source may go.
    save(child, "changed", 1);
    EXPECT_EQ(load(id), second);
    EXPECT_TRUE(store_->remove(id).ok());
    EXPECT_EQ(load(child, 1), first);
    EXPECT_TRUE(store_->remove(child).ok());
    for (const char* prefix : {"r/", "c/", "n/"}) EXPECT_TRUE(objects(prefix).empty()) << prefix;
  }
}

TEST_P(StoreTest, RollsBackToAnOlderVersion) {
  options_.keep_versions = 3;
  reopen();
  save("a", "one", 0);
  save("a", "two", 1);
  const auto rolled = store_->rollback("a", 1);
  ASSERT_TRUE(rolled.ok()) << rolled.error().to_string();
  EXPECT_EQ(rolled->seq, 3);
  EXPECT_EQ(load("a"), "one");
  EXPECT_EQ(store_->load("a", kModel)->parent, (VersionName{"a", 1}));
  EXPECT_EQ(store_->save(request("a", "late", 2)).error().code, ErrorCode::kConflict);
  save("a", "four", 3);  // version 1 is dropped, its record is still version 3
  EXPECT_EQ(load("a", 3), "one");
  save("a", "five", 4);
  save("a", "six", 5);
  EXPECT_EQ(objects("r/").size(), 3);
  EXPECT_TRUE(objects("n/").empty());
  EXPECT_EQ(store_->rollback("a", 1).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(load("a"), "six");
}

TEST_P(StoreTest, OneWriterHoldsTheLease) {
  const auto first = store_->acquire_lease("a", "host-1", 10);
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  EXPECT_EQ(first->until_ms, clock_.now() + 10000);
  EXPECT_EQ(load_error("a").code, ErrorCode::kNotFound);  // leased, but never saved
  const auto other = store_->acquire_lease("a", "host-2", 10);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kConflict);
  const auto without = store_->save(request("a", "x", 0));
  ASSERT_FALSE(without.ok());
  EXPECT_EQ(without.error().code, ErrorCode::kConflict);
  EXPECT_EQ(without.error().where, kLeaseConflict);
  EXPECT_EQ(save("a", "x", 0, first->fencing_token), 1);
  EXPECT_EQ(store_->remove("a").error().code, ErrorCode::kConflict);
  EXPECT_EQ(store_->rollback("a", 1).error().code, ErrorCode::kConflict);
  EXPECT_EQ(store_->save(request("a", "y", 1, first->fencing_token + 1)).error().code,
            ErrorCode::kConflict);
  const auto again = store_->acquire_lease("a", "host-1", 10);
  ASSERT_TRUE(again.ok());
  EXPECT_GT(again->fencing_token, first->fencing_token);
  EXPECT_EQ(store_->save(request("a", "y", 1, first->fencing_token)).error().code,
            ErrorCode::kConflict);
  EXPECT_EQ(save("a", "y", 1, again->fencing_token), 2);
  EXPECT_TRUE(store_->release_lease("a", again->fencing_token).ok());
  EXPECT_EQ(save("a", "z", 2), 3);
}

TEST_P(StoreTest, AnExpiredLeaseIsFencedByTheNextOne) {
  const auto slow = store_->acquire_lease("a", "slow", 10);
  ASSERT_TRUE(slow.ok());
  EXPECT_EQ(save("a", "one", 0, slow->fencing_token), 1);
  clock_.advance(9'999);
  EXPECT_FALSE(store_->acquire_lease("a", "quick", 10).ok());
  clock_.advance(1);
  // Its time is over, but nobody else has begun: nothing is lost by letting it finish.
  EXPECT_EQ(save("a", "two", 1, slow->fencing_token), 2);
  const auto quick = store_->acquire_lease("a", "quick", 10);
  ASSERT_TRUE(quick.ok()) << quick.error().to_string();
  EXPECT_GT(quick->fencing_token, slow->fencing_token);
  const auto late = store_->save(request("a", "late", 2, slow->fencing_token));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().where, kLeaseConflict);
  EXPECT_EQ(store_->renew_lease("a", slow->fencing_token, 10, true).error().code,
            ErrorCode::kConflict);
  EXPECT_EQ(store_->release_lease("a", slow->fencing_token).error().code, ErrorCode::kConflict);
  clock_.advance(8'000);
  const auto renewed = store_->renew_lease("a", quick->fencing_token, 10, true);
  ASSERT_TRUE(renewed.ok());
  EXPECT_EQ(renewed->until_ms, clock_.now() + 10000);
  EXPECT_EQ(renewed->fencing_token, quick->fencing_token);
  clock_.advance(8'000);
  EXPECT_FALSE(store_->acquire_lease("a", "slow", 10).ok());
  EXPECT_EQ(save("a", "three", 2, quick->fencing_token), 3);
  // A clock that is set back does not make tokens smaller.
  clock_.advance(-1'000'000);
  const auto back = store_->acquire_lease("a", "quick", 10);
  ASSERT_TRUE(back.ok());
  EXPECT_GT(back->fencing_token, quick->fencing_token);
}

TEST_P(StoreTest, ARemovedSessionIsNotRevivedByALateWriter) {
  save("a", "one", 0);
  save("a", "two", 1);
  EXPECT_TRUE(store_->remove("a").ok());
  EXPECT_EQ(load_error("a").code, ErrorCode::kNotFound);
  EXPECT_EQ(store_->remove("a").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(store_->save(request("a", "late", 2)).error().code, ErrorCode::kConflict);
  EXPECT_EQ(save("a", "new life", 0), 3);
  EXPECT_EQ(load("a"), "new life");
  EXPECT_TRUE(store_->remove("a").ok());
  EXPECT_EQ(objects("s/").size(), 1);
  EXPECT_EQ(*store_->expire(clock_.now() + options_.tombstone_ms - 1), 0);
  EXPECT_EQ(objects("s/").size(), 1);
  EXPECT_EQ(*store_->expire(clock_.now() + options_.tombstone_ms), 0);
  EXPECT_TRUE(objects("s/").empty());
}

TEST_P(StoreTest, AWriterWithoutLeaseVoidsThoseThatEnded) {
  const std::vector<std::function<Status()>> writes = {
      [&]() -> Status {
        save("a", "two", store_->info("a")->seq);
        return {};
      },
      [&]() -> Status {
        TARN_RETURN_IF_ERROR(store_->rollback("a", store_->info("a")->seq));
        return {};
      },
      [&] { return store_->remove("a"); }};
  for (const auto& write : writes) {
    save("a", "one", 0);
    const auto slow = store_->acquire_lease("a", "slow", 5);
    ASSERT_TRUE(slow.ok());
    clock_.advance(6000);
    ASSERT_TRUE(write().ok());
    const auto renewed = store_->renew_lease("a", slow->fencing_token, 5, false);
    ASSERT_FALSE(renewed.ok());
    EXPECT_EQ(renewed.error().code, ErrorCode::kConflict);
    EXPECT_TRUE(store_->acquire_lease("a", "quick", 1).ok());
    clock_.advance(2000);
    if (store_->info("a").ok()) {
      ASSERT_TRUE(store_->remove("a").ok());
    }
  }
}

TEST_P(StoreTest, ARenewalIsAUseIfItIsMeantAsOne) {
  SaveRequest timed = request("a", "x", 0);
  timed.ttl_ms = 1000;
  ASSERT_TRUE(store_->save(timed).ok());
  const auto lease = store_->acquire_lease("a", "me", 30);
  const int64_t expires = store_->info("a")->expires_ms;
  clock_.advance(500);
  ASSERT_TRUE(store_->renew_lease("a", lease->fencing_token, 30, false).ok());
  EXPECT_EQ(store_->info("a")->expires_ms, expires);
  ASSERT_TRUE(store_->renew_lease("a", lease->fencing_token, 30, true).ok());
  EXPECT_EQ(store_->info("a")->expires_ms, expires + 500);
}

TEST_P(StoreTest, ARemovedSessionHasNoLease) {
  save("a", "one", 0);
  const auto lease = store_->acquire_lease("a", "me", 30);
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(store_->remove("a", lease->fencing_token).ok());
  EXPECT_EQ(save("a", "new life", 0), 2);
  EXPECT_TRUE(store_->acquire_lease("a", "another", 30).ok());
  SaveRequest late = request("a", "late", 2);
  late.fencing_token = lease->fencing_token;
  EXPECT_EQ(store_->save(late).error().code, ErrorCode::kConflict);
}

TEST_P(StoreTest, RemovesSessionsWhoseTimeIsOver) {
  SaveRequest timed = request("short", "x", 0);
  timed.ttl_ms = 1000;
  ASSERT_TRUE(store_->save(timed).ok());
  timed.id = "leased";
  ASSERT_TRUE(store_->save(timed).ok());
  save("ever", "x", 0);
  EXPECT_EQ(*store_->expire(clock_.now() + 999), 0);
  clock_.advance(500);
  ASSERT_TRUE(store_->acquire_lease("leased", "me", 3).ok());  // a use, too
  EXPECT_EQ(*store_->expire(clock_.now() + 500), 1);
  EXPECT_EQ(load_error("short").code, ErrorCode::kNotFound);
  EXPECT_EQ(load("leased"), "x");
  EXPECT_EQ(*store_->expire(clock_.now() + 2999), 0);
  EXPECT_EQ(*store_->expire(clock_.now() + 3000), 1);
  EXPECT_EQ(load("ever"), "x");
  EXPECT_EQ(objects("r/").size(), 1);
}

TEST_P(StoreTest, ASessionWhoseTimeIsOverIsAbsentBeforeItIsSwept) {
  SaveRequest timed = request("a", "x", 0);
  timed.ttl_ms = 1000;
  ASSERT_TRUE(store_->save(timed).ok());
  for (const char* id : {"lease", "held", "fork", "save"}) {
    timed.id = id;
    ASSERT_TRUE(store_->save(timed).ok());
  }
  save("ever", "y", 0);
  clock_.advance(999);
  EXPECT_TRUE(store_->info("a").ok());
  ASSERT_TRUE(store_->acquire_lease("held", "me", 1).ok());
  clock_.advance(1);
  const auto absent = [&](auto&& result) {
    return !result.ok() && result.error().code == ErrorCode::kNotFound;
  };
  EXPECT_TRUE(absent(store_->load("a", kModel)));
  EXPECT_TRUE(absent(store_->info("a")));
  EXPECT_TRUE(absent(store_->fork("a", 1, "b")));
  EXPECT_TRUE(absent(store_->rollback("a", 1)));
  EXPECT_TRUE(absent(store_->remove("a")));
  const auto page = store_->list("", 10);
  ASSERT_EQ(page->sessions.size(), 2);
  EXPECT_EQ(page->sessions[0].id, "ever");
  EXPECT_EQ(page->sessions[1].id, "held") << "its lease keeps it";
  // A lease does not bring it back, and its id is free for others.
  const auto lease = store_->acquire_lease("lease", "me", 30);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease->seq, 0);
  EXPECT_TRUE(absent(store_->info("lease")));
  EXPECT_TRUE(store_->fork("ever", 1, "fork").ok());
  EXPECT_EQ(load("fork"), "y");
  EXPECT_EQ(store_->save(request("save", "late", 1)).error().code, ErrorCode::kConflict);
  EXPECT_EQ(save("save", "new", 0), 2);
  EXPECT_EQ(store_->info("save")->kept.size(), 1);
  clock_.advance(1000);
  EXPECT_EQ(*store_->expire(clock_.now()), 2) << "a and held";
  EXPECT_EQ(objects("r/").size(), 2) << "y, of two sessions, and new";
  EXPECT_EQ(*store_->collect(), 0);
}

TEST_P(StoreTest, ListsInPages) {
  std::set<std::string> wanted;
  for (int i = 0; i < 300; ++i) {
    const std::string id = "session-" + std::to_string(i * 7919 % 1000);
    wanted.insert(id);
    save(id, std::string(static_cast<size_t>(i), 'x'), 0);
  }
  ASSERT_TRUE(store_->remove("session-0").ok());
  wanted.erase("session-0");
  ASSERT_TRUE(store_->acquire_lease("only-leased", "me", 10).ok());
  for (const int limit : {7, 149, 299, 1000}) {
    std::vector<std::string> seen;
    std::string token;
    do {
      const auto page = store_->list(token, limit);
      ASSERT_TRUE(page.ok()) << page.error().to_string();
      EXPECT_LE(page->sessions.size(), static_cast<size_t>(limit));
      for (const StoredInfo& info : page->sessions) seen.push_back(info.id);
      token = page->next;
    } while (!token.empty());
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(std::vector<std::string>(wanted.begin(), wanted.end()), seen) << limit;
  }
}

TEST_P(StoreTest, DescribesSessions) {
  SaveRequest timed = request("a", "12345", 0);
  timed.ttl_ms = 60'000;
  ASSERT_TRUE(store_->save(timed).ok());
  clock_.advance(1000);
  timed = request("a", "123", 1);
  timed.ttl_ms = 60'000;
  ASSERT_TRUE(store_->save(timed).ok());
  const int64_t saved = clock_.now();
  clock_.advance(50);
  ASSERT_TRUE(store_->acquire_lease("a", "host:1", 1).ok());
  auto page = store_->list("", 10);
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->sessions.size(), 1);
  const StoredInfo& info = page->sessions[0];
  EXPECT_EQ(info.id, "a");
  EXPECT_EQ(info.seq, 2);
  EXPECT_EQ(info.token_count, 3);
  EXPECT_EQ(info.model_fingerprint, kModel);
  EXPECT_EQ(info.payload_bytes, 3);
  ASSERT_EQ(info.kept.size(), 2);
  EXPECT_EQ(info.kept[0].seq, 1);
  EXPECT_EQ(info.kept[0].payload_bytes, 5);
  EXPECT_EQ(info.kept[0].written_ms, saved - 1000);
  EXPECT_EQ(info.kept[1].seq, 2);
  EXPECT_EQ(info.kept[1].token_count, 3);
  EXPECT_EQ(info.kept[1].written_ms, saved);
  EXPECT_EQ(info.kept[1].parent, (VersionName{"a", 1}));
  EXPECT_EQ(info.kept_bytes, 8);
  EXPECT_EQ(info.created_ms, saved - 1000);
  EXPECT_EQ(info.last_use_ms, saved + 50);
  EXPECT_EQ(info.expires_ms, saved + 50 + 60'000);
  EXPECT_EQ(info.lease_owner, "host:1");
  clock_.advance(1000);
  EXPECT_EQ(store_->list("", 10)->sessions[0].lease_owner, "");
}

TEST_P(StoreTest, CollectsWhatNothingRefersTo) {
  const std::string large = noise(2 << 20, 3);
  save("a", large, 0);
  ASSERT_TRUE(store_->fork("a", 1, "b").ok());
  const auto counts = objects("n/");
  tamper("r/00000000000000000000000000000000", "orphan");
  tamper("c/00000000000000000000000000000000", "orphan");
  tamper("n/r-00000000000000000000000000000000", "5");
  tamper(counts.at(0).first, "9");
  const auto collected = store_->collect();
  ASSERT_TRUE(collected.ok()) << collected.error().to_string();
  EXPECT_EQ(*collected, 2);
  EXPECT_EQ(objects("n/"), counts);
  EXPECT_EQ(load("a"), large);
  EXPECT_EQ(*store_->collect(), 0);
  ASSERT_TRUE(store_->remove("a").ok());
  EXPECT_EQ(load("b"), large);
  ASSERT_TRUE(store_->remove("b").ok());
  for (const char* prefix : {"r/", "c/", "n/"}) EXPECT_TRUE(objects(prefix).empty()) << prefix;
}

}  // namespace
}  // namespace tarn::serve
