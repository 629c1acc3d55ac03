#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/frame.h"
#include "serve/service/session_service.h"
#include "unit/serve/engine_fixture.h"
#include "unit/serve/places.h"

namespace tarn::serve {

/// What a turn of a service told. Read it after the handle's wait().
struct Told {
  Tokens tokens;
  std::vector<int64_t> positions;
  std::string text;
  TurnResult result;
  int ends = 0;
};

inline std::shared_ptr<Told> listen(SessionTurn* turn) {
  auto told = std::make_shared<Told>();
  turn->request.on_token = [told](const TokenEvent& event) {
    told->tokens.push_back(event.token);
    told->positions.push_back(event.position);
    told->text += event.text;
  };
  turn->on_end = [told](const TurnResult& result) {
    told->result = result;
    ++told->ends;
  };
  return told;
}

inline SessionTurn turn_of(const std::string& id, Tokens prompt, int64_t count) {
  SessionTurn turn;
  turn.request.session = id;
  turn.request.prompt = std::move(prompt);
  turn.request.max_tokens = count;
  return turn;
}

inline std::string digest(std::string_view bytes) {
  return std::to_string(bytes.size()) + " bytes, " +
         hex(xxh3_64(bytes.data(), static_cast<int64_t>(bytes.size())));
}

/// Submits and waits.
inline Told play(SessionService& service, SessionTurn turn) {
  const auto told = listen(&turn);
  TurnSubmission submission = service.submit(std::move(turn));
  if (!submission.admitted()) {
    ADD_FAILURE() << submission.refusal->error.to_string();
    return {};
  }
  submission.handle.wait();
  return *told;
}

/// Submits a turn that must be refused.
inline Refusal refused(SessionService& service, SessionTurn turn) {
  TurnSubmission submission = service.submit(std::move(turn));
  EXPECT_FALSE(submission.admitted());
  if (submission.admitted()) submission.handle.wait();
  return submission.refusal.value_or(Refusal{});
}

/// A turn that runs until it is let go: its first token waits in on_token.
class SlowTurn {
 public:
  SlowTurn(SessionService& service, SessionTurn turn) {
    turn.request.on_token = [this](const TokenEvent&) {
      std::unique_lock lock(mutex_);
      drawing_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return free_; });
    };
    turn.on_end = [this](const TurnResult& end) { result = end; };
    submission = service.submit(std::move(turn));
    EXPECT_TRUE(submission.admitted());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return drawing_ || !submission.admitted(); });
  }
  ~SlowTurn() { finish(); }
  TurnResult finish() {
    {
      const std::lock_guard lock(mutex_);
      free_ = true;
    }
    changed_.notify_all();
    submission.handle.wait();
    return result;
  }
  TurnResult cancel() {
    submission.handle.cancel();
    return finish();
  }
  TurnSubmission submission;
  TurnResult result;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool drawing_ = false, free_ = false;
};

/// A place of the parameter's kind; services on it share a clock that stands still.
class ServiceTest : public testing::TestWithParam<PlaceKind> {
 protected:
  void SetUp() override {
    std::string why_not;
    place_ = GetParam().make(&why_not);
    if (place_ == nullptr) GTEST_SKIP() << GetParam().name << " store NOT TESTED: " << why_not;
    store_options_.sync = false;
    store_options_.now_ms = [this] { return clock_.now(); };
    options_.now_ms = store_options_.now_ms;
    options_.expiry_interval_seconds = 0;
  }

  std::unique_ptr<SessionService> service(const std::string& owner = {}) {
    ServiceOptions options = options_;
    options.owner = owner;
    auto service = SessionService::create(model_, options, place_->store(store_options_));
    TARN_CHECK(service.ok());
    return std::move(*service);
  }
  static void create(SessionService& service, const std::string& id,
                     SavePolicy policy = SavePolicy::kTurn) {
    const auto made = service.create_session({id, 7, 0, policy});
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    EXPECT_EQ(made->seq, 1);
  }
  /// Digest of the snapshot in a version of the store: a whole one fills pages when it differs.
  std::string stored(const std::string& id, std::optional<int64_t> seq = {}) {
    const auto record = place_->store(store_options_)->load(id, model_->fingerprint(), seq);
    EXPECT_TRUE(record.ok()) << record.error().to_string();
    if (!record.ok()) return {};
    const auto saved = parse_saved_session(record->payload, id);
    EXPECT_TRUE(saved.ok());
    return saved.ok() ? digest(saved->snapshot) : std::string();
  }
  static int64_t seq(SessionService& service, const std::string& id) {
    const auto view = service.get(id);
    EXPECT_TRUE(view.ok()) << view.error().to_string();
    return view.ok() ? view->seq : -1;
  }

  ModelPointer model_ = endless_model({linear(), delta(), softmax()});
  TestClock clock_;
  std::unique_ptr<Place> place_;
  StoreOptions store_options_;
  ServiceOptions options_;
};

}  // namespace tarn::serve
