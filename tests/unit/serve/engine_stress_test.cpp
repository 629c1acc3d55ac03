// Everything at once, at random: for the sanitizers, and for counts that must come out even.
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "unit/serve/engine_fixture.h"

namespace tarn::serve {
namespace {

class Client {
 public:
  Client(Engine& engine, uint64_t number, std::atomic<int64_t>& ends)
      : engine_(engine), ends_(ends), rng_{3, number, 0} {}

  void run(Clock::time_point until) {
    while (Clock::now() < until) act();
    for (Handle& handle : handles_) handle.wait();
  }
  int64_t admitted() const { return admitted_; }

 private:
  std::string some_id() { return "s" + std::to_string(rng_.next_below(12)); }

  void submit() {
    Request request;
    if (rng_.next_below(3) > 0) request.session = some_id();
    request.prompt = random_tokens(rng_.next_below(8) == 0 ? 1500 : rng_.next_below(30), 1);
    request.max_tokens = rng_.next_below(40);
    request.wait_for_session = rng_.next_below(2) == 0;
    request.fairness_key = std::to_string(rng_.next_below(3));
    request.priority = static_cast<int>(rng_.next_below(2));
    if (rng_.next_below(4) == 0) {
      request.deadline = Clock::now() + std::chrono::microseconds(rng_.next_below(5000));
    }
    request.on_token = [](const TokenEvent& event) { EXPECT_LT(event.token, 11); };
    request.on_end = [this](const TurnEnd&) { ++ends_; };
    Submission submission = engine_.submit(std::move(request));
    if (!submission.admitted()) return;
    ++admitted_;
    if (rng_.next_below(3) == 0) submission.handle.cancel();
    handles_.push_back(submission.handle);
    if (handles_.size() < 6) return;
    if (rng_.next_below(2) == 0) handles_.front().cancel();
    handles_.front().wait();
    handles_.erase(handles_.begin());
  }

  void act() {
    SessionTable& table = engine_.sessions();
    switch (rng_.next_below(16)) {
      case 0: (void)table.create(some_id(), 1); break;
      case 1: (void)table.fork(some_id(), some_id(), 2); break;
      case 2: (void)table.mark(some_id(), "m"); break;
      case 3: (void)table.rollback(some_id(), "m"); break;
      case 4: {
        const auto bytes = table.snapshot(some_id());
        if (bytes.ok()) (void)table.restore(some_id(), *bytes);
        break;
      }
      case 5:
        if (rng_.next_below(4) == 0) (void)table.remove(some_id());
        break;
      case 6: (void)table.list(); break;
      case 7: (void)table.info(some_id()); break;
      default: submit();
    }
  }

  Engine& engine_;
  std::atomic<int64_t>& ends_;
  Philox rng_;
  std::vector<Handle> handles_;
  int64_t admitted_ = 0;
};

TEST(EngineStress, EverythingAtOnce) {
  const auto model = endless_model({linear(), softmax()});
  const runtime::Session session(model, {});
  EngineOptions options;
  options.threads = 2;
  options.max_running = 6;
  options.max_queued_requests = 10;
  options.memory_limit_bytes =
      12 * SessionTable::bytes_of(session) + 20'000 * session.state().bytes_per_token();
  const auto engine = make_engine(model, options);
  std::atomic<int64_t> ends{0};
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::thread> threads;
  const auto until = Clock::now() + std::chrono::seconds(3);
  for (uint64_t i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Client>(*engine, i, ends));
    threads.emplace_back([client = clients.back().get(), until] { client->run(until); });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t admitted = 0;
  for (const auto& client : clients) admitted += client->admitted();
  EXPECT_GT(admitted, 50);
  EXPECT_EQ(ends.load(), admitted);
  const Metrics& metrics = engine->metrics();
  EXPECT_EQ(metrics.requests.load(), admitted);
  int64_t finished = 0;
  for (const auto& count : metrics.finished) finished += count.load();
  EXPECT_EQ(finished, admitted);
  EXPECT_EQ(metrics.running.load(), 0);
  EXPECT_EQ(metrics.waiting.load(), 0);
  // Nothing is counted for what has ended.
  int64_t left = 0;
  for (const SessionInfo& info : engine->sessions().list()) {
    EXPECT_FALSE(info.in_use);
    EXPECT_TRUE(engine->sessions().remove(info.id).ok());
    ++left;
  }
  EXPECT_EQ(engine->sessions().resident_bytes(), 0) << left;
}

}  // namespace
}  // namespace tarn::serve
