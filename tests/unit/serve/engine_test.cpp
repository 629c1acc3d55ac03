// Fairness, cancelling, admission, drain and errors.
#include "serve/engine.h"

#include <chrono>
#include <functional>
#include <limits>
#include <thread>

#include "unit/serve/engine_fixture.h"

namespace tarn::serve {
namespace {

using std::chrono::milliseconds;

Request endless(const std::string& session = {}) {
  Request request;
  request.session = session;
  request.max_tokens = int64_t{1} << 40;
  return request;
}

/// Until `condition`, for at most a minute.
void wait_until(const std::function<bool()>& condition) {
  const auto end = Clock::now() + std::chrono::minutes(1);
  while (!condition() && Clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
  ASSERT_TRUE(condition());
}

TEST(Engine, StreamsGetATokenEveryRoundWhileALongPromptIsRead) {
  const auto engine = make_engine(endless_model({linear(), delta()}));
  std::vector<std::shared_ptr<Record>> streams;
  std::vector<Handle> handles;
  for (int i = 0; i < 8; ++i) {
    Request request = endless();
    request.max_tokens = 3000;
    streams.push_back(record(*engine, &request));
    handles.push_back(engine->submit(std::move(request)).handle);
  }
  wait_until([&] { return engine->metrics().generated_tokens.load() > 80; });
  Request prompt;
  prompt.prompt = random_tokens(4096, 1);
  prompt.max_tokens = 1;
  const int64_t before = engine->metrics().rounds.load();
  const Record reader = play(*engine, std::move(prompt));
  const int64_t after = engine->metrics().rounds.load();
  wait_until([&] { return engine->metrics().rounds.load() > after + 3; });
  for (Handle& handle : handles) handle.cancel();
  for (Handle& handle : handles) handle.wait();
  ASSERT_EQ(reader.tokens.size(), 1);
  EXPECT_GE(reader.rounds[0] - before, 128);  // 4097 inputs, 32 in a round
  EXPECT_LE(reader.rounds[0] - before, 134);
  for (const auto& stream : streams) {
    ASSERT_GT(stream->rounds.back(), reader.rounds[0]);
    for (size_t i = 1; i < stream->rounds.size(); ++i) {
      if (stream->rounds[i] > after) break;
      ASSERT_EQ(stream->rounds[i], stream->rounds[i - 1] + 1);
    }
  }
}

TEST(Engine, PromptsShareTheBudgetOfARound) {
  constexpr int64_t kPrompts = 4;
  const auto engine = make_engine(endless_model({linear()}));
  std::vector<int64_t> read;  // prompt tokens so far, at each token of the stream
  Request stream = endless();
  stream.on_token = [&](const TokenEvent&) {
    read.push_back(engine->metrics().prompt_tokens.load());
  };
  Handle handle = engine->submit(std::move(stream)).handle;
  wait_until([&] { return engine->metrics().generated_tokens.load() > 0; });
  std::vector<std::shared_ptr<Record>> readers;
  std::vector<Handle> handles;
  for (int64_t i = 0; i < kPrompts; ++i) {
    Request request;
    request.prompt = random_tokens(10 * 512, static_cast<uint64_t>(i));
    request.max_tokens = 1;
    readers.push_back(record(*engine, &request));
    handles.push_back(engine->submit(std::move(request)).handle);
  }
  for (Handle& each : handles) each.wait();
  handle.cancel();
  handle.wait();
  for (size_t i = 1; i < read.size(); ++i) {
    // A prompt's last input is a step, which the budget does not count.
    EXPECT_LE(read[i] - read[i - 1], 512 + kPrompts) << i;
  }
  EXPECT_LE(readers[kPrompts - 1]->rounds[0] - readers[0]->rounds[0], 2 * kPrompts);
}

TEST(Engine, ShortPromptsPassALongOne) {
  const auto engine = make_engine(endless_model({delta(), delta()}));
  Request request;
  request.prompt = random_tokens(60'000, 1);
  request.max_tokens = 1;
  const auto long_one = record(*engine, &request);
  Handle handle = engine->submit(request).handle;
  for (const char* key : {"", "other"}) {
    Request quick;
    quick.prompt = random_tokens(300, 2);
    quick.max_tokens = 1;
    quick.fairness_key = key;
    EXPECT_EQ(play(*engine, quick).ends, 1);
    EXPECT_FALSE(handle.done());
  }
  handle.wait();
  EXPECT_EQ(long_one->tokens.size(), 1);
}

TEST(Engine, FairnessKeysTakeTurns) {
  EngineOptions options;
  options.max_running = 1;
  const auto engine = make_engine(endless_model({linear()}), options);
  Handle first = engine->submit(endless()).handle;
  wait_until([&] { return engine->metrics().running.load() == 1; });
  std::string order;
  std::vector<Handle> handles;
  const auto add = [&](const char* key, int priority, char name) {
    Request request;
    request.max_tokens = 1;
    request.fairness_key = key;
    request.priority = priority;
    request.on_end = [&order, name](const TurnEnd&) { order += name; };
    handles.push_back(engine->submit(std::move(request)).handle);
  };
  for (const char name : {'1', '2', '3'}) add("greedy", 0, name);
  add("modest", 0, 'm');
  add("greedy", 1, '!');
  first.cancel();
  for (Handle& handle : handles) handle.wait();
  EXPECT_EQ(order, "!m123");
}

TEST(Engine, CancelledTurnsLeaveTheSessionAsItWas) {
  const auto model = endless_model({delta(), softmax()});
  const auto engine = make_engine(model);
  ASSERT_TRUE(engine->sessions().create("a", 1).ok());
  Request request;
  request.session = "a";
  request.prompt = random_tokens(20, 1);
  request.max_tokens = 10;
  play(*engine, request);
  const std::string before = snapshot_of(*engine, "a");

  Request generating = endless("a");
  generating.seed = 77;
  generating.sampler.greedy = true;
  const auto told = record(*engine, &generating);
  Handle handle = engine->submit(std::move(generating)).handle;
  wait_until([&] { return engine->metrics().generated_tokens.load() > 100; });
  handle.cancel();
  const int64_t at_cancel = engine->metrics().rounds.load();
  handle.wait();
  EXPECT_LE(told->rounds.back(), at_cancel + 1);
  EXPECT_EQ(told->end.reason, FinishReason::kCancelled);
  EXPECT_EQ(told->end.token_count, 30);
  EXPECT_EQ(told->ends, 1);
  EXPECT_EQ(snapshot_of(*engine, "a"), before);

  Request reading = endless("a");
  reading.prompt = random_tokens(900'000, 2);
  const auto read = record(*engine, &reading);
  handle = engine->submit(std::move(reading)).handle;
  const int64_t rounds = engine->metrics().rounds.load();
  wait_until([&] { return engine->metrics().rounds.load() > rounds + 3; });
  handle.cancel();
  const int64_t evaluated = engine->metrics().prompt_tokens.load();
  handle.wait();
  EXPECT_TRUE(read->tokens.empty());
  EXPECT_LE(engine->metrics().prompt_tokens.load(), evaluated + 2 * 512);
  EXPECT_EQ(snapshot_of(*engine, "a"), before);
}

TEST(Engine, DeadlinesEndTurnsThatRunAndThatWait) {
  EngineOptions options;
  options.max_running = 1;
  const auto engine = make_engine(endless_model({linear()}), options);
  ASSERT_TRUE(engine->sessions().create("a", 1).ok());
  const std::string before = snapshot_of(*engine, "a");
  Request running = endless("a");
  running.deadline = Clock::now() + milliseconds(150);
  const auto ran = record(*engine, &running);
  Handle handle = engine->submit(std::move(running)).handle;
  Request waiting;
  waiting.start_by = Clock::now() + milliseconds(20);
  const Record waited = play(*engine, std::move(waiting));
  EXPECT_EQ(waited.end.reason, FinishReason::kDeadline);
  EXPECT_TRUE(waited.tokens.empty());
  EXPECT_FALSE(handle.done());
  handle.wait();
  EXPECT_EQ(ran->end.reason, FinishReason::kDeadline);
  EXPECT_GE(ran->end.seconds, 0.15);
  EXPECT_EQ(snapshot_of(*engine, "a"), before);
}

TEST(Engine, AdmissionIsBoundedByRequestsAndByTokens) {
  EngineOptions options;
  options.max_running = 1;
  options.max_queued_requests = 3;
  options.max_queued_tokens = 100;
  const auto engine = make_engine(endless_model({linear()}), options);
  Handle running = engine->submit(endless()).handle;
  wait_until([&] { return engine->metrics().running.load() == 1; });
  Request request;
  request.prompt = random_tokens(60, 1);
  Handle first = engine->submit(request).handle;
  const Submission tokens = engine->submit(request);
  ASSERT_FALSE(tokens.admitted());
  EXPECT_EQ(tokens.refusal->reason, RefusalReason::kFull);
  EXPECT_GE(tokens.refusal->retry_after_seconds, 1.0);
  request.prompt.clear();
  Handle second = engine->submit(request).handle;
  Handle third = engine->submit(request).handle;
  EXPECT_EQ(engine->submit(request).refusal->reason, RefusalReason::kFull);
  EXPECT_EQ(engine->metrics().waiting.load(), 3);
  EXPECT_EQ(engine->metrics().refused.load(), 2);
  second.cancel();
  second.wait();
  EXPECT_TRUE(engine->submit(request).admitted());
  running.cancel();
  first.wait();
  third.wait();
  request.prompt = random_tokens(101, 1);
  EXPECT_EQ(engine->submit(request).refusal->reason, RefusalReason::kInvalid);
}

TEST(Engine, RefusesWhatCanNeverBeRight) {
  const auto engine = make_engine(runtime::tiny_model({linear()}));  // max_tokens 96
  const auto reason = [&](const std::function<void(Request*)>& change) {
    Request request;
    request.max_tokens = 1;
    change(&request);
    const Submission submission = engine->submit(std::move(request));
    EXPECT_FALSE(submission.admitted());
    return submission.admitted() ? RefusalReason::kFailed : submission.refusal->reason;
  };
  EXPECT_EQ(reason([](auto* r) { r->prompt = {12}; }), RefusalReason::kInvalid);
  EXPECT_EQ(reason([](auto* r) { r->prompt = {-1}; }), RefusalReason::kInvalid);
  EXPECT_EQ(reason([](auto* r) { r->prompt = random_tokens(97, 1); }), RefusalReason::kInvalid);
  EXPECT_EQ(reason([](auto* r) { r->max_tokens = -1; }), RefusalReason::kInvalid);
  EXPECT_EQ(reason([](auto* r) { r->sampler.temperature = 0; }), RefusalReason::kInvalid);
  EXPECT_EQ(reason([](auto* r) { r->stop = {"x"}; }), RefusalReason::kInvalid);
  EXPECT_EQ(reason([](auto* r) { r->session = "nobody"; }), RefusalReason::kNotFound);
  EXPECT_EQ(reason([](auto* r) { r->session = "../up"; }), RefusalReason::kInvalid);
  EXPECT_TRUE(engine->sessions().list().empty());
}

TEST(Engine, OptionsAreChecked) {
  const auto model = endless_model({linear()});
  const auto refused = [&](const std::function<void(EngineOptions*)>& change) {
    EngineOptions options;
    change(&options);
    return !Engine::create(model, options).ok();
  };
  EXPECT_FALSE(refused([](auto*) {}));
  EXPECT_TRUE(refused([](auto* o) { o->threads = 0; }));
  EXPECT_TRUE(refused([](auto* o) { o->prompt_budget = 0; }));
  EXPECT_TRUE(refused([](auto* o) { o->memory_limit_bytes = -1; }));
  EXPECT_TRUE(refused([](auto* o) { o->hooks.fetch = hooks_in_memory().fetch; }));
}

TEST(Engine, OneTurnOfASessionAtOnce) {
  const auto engine = make_engine(endless_model({linear()}));
  ASSERT_TRUE(engine->sessions().create("a", 1).ok());
  Handle running = engine->submit(endless("a")).handle;
  Request second;
  second.session = "a";
  second.max_tokens = 4;
  EXPECT_EQ(engine->submit(second).refusal->reason, RefusalReason::kConflict);
  EXPECT_EQ(engine->sessions().snapshot("a").error().code, ErrorCode::kConflict);
  EXPECT_EQ(engine->sessions().remove("a").error().code, ErrorCode::kConflict);
  EXPECT_TRUE(engine->sessions().info("a")->in_use);
  second.wait_for_session = true;
  const auto waited = record(*engine, &second);
  Handle behind = engine->submit(second).handle;
  EXPECT_FALSE(behind.done());
  running.cancel();
  behind.wait();
  EXPECT_EQ(waited->tokens.size(), 4);
  second.if_tokens = 3;
  EXPECT_EQ(engine->submit(second).refusal->reason, RefusalReason::kPrecondition);
  second.if_tokens = 4;
  EXPECT_TRUE(engine->submit(second).admitted());
}

TEST(Engine, SequencesEndAtTheModelsLimit) {
  const auto engine = make_engine(runtime::tiny_model({softmax()}));  // max_tokens 96
  Request request;
  request.prompt = random_tokens(90, 1);
  request.max_tokens = 100;
  const Record played = play(*engine, request);
  EXPECT_EQ(played.tokens.size(), 6);
  EXPECT_EQ(played.end.reason, FinishReason::kLength);
  EXPECT_EQ(played.positions.front(), 90);
  request.prompt = random_tokens(96, 1);
  EXPECT_TRUE(play(*engine, request).tokens.empty());
}

TEST(Engine, ATurnThatNeedsTooMuchMemoryEndsAlone) {
  const auto model = endless_model({softmax()});
  EngineOptions options;
  options.memory_limit_bytes = 600'000;  // 128 bytes per token
  const auto engine = make_engine(model, options);
  ASSERT_TRUE(engine->sessions().create("a", 1).ok());
  const std::string before = snapshot_of(*engine, "a");
  Request other = endless();
  other.max_tokens = 300;
  const auto fine = record(*engine, &other);
  Handle handle = engine->submit(std::move(other)).handle;
  Request large;
  large.session = "a";
  large.prompt = random_tokens(10'000, 1);
  large.max_tokens = 1;
  const Record failed = play(*engine, std::move(large));
  EXPECT_EQ(failed.end.reason, FinishReason::kError);
  EXPECT_EQ(failed.end.error.code, ErrorCode::kResource);
  handle.wait();
  Alone alone(model, 0);
  EXPECT_EQ(fine->tokens, alone.turn({}, 300, {}));
  EXPECT_EQ(snapshot_of(*engine, "a"), before);
  EXPECT_EQ(engine->sessions().resident_bytes(), SessionTable::bytes_of({model, {}}));
}

TEST(Engine, AnOutputThatIsNotFiniteEndsThatTurnAlone) {
  const auto model = endless_model({linear()});
  const auto engine = make_engine(model);
  ASSERT_TRUE(engine->sessions().create("a", 1).ok());
  {
    auto lease = engine->sessions().claim("a");
    ASSERT_TRUE(lease.ok());
    lease->session().state().data(0)[0] = std::numeric_limits<float>::quiet_NaN();
  }
  const std::string before = snapshot_of(*engine, "a");
  Request other;
  other.max_tokens = 200;
  const auto fine = record(*engine, &other);
  Handle handle = engine->submit(std::move(other)).handle;
  Request request = endless("a");
  request.prompt = {1, 2, 3};
  const Record failed = play(*engine, std::move(request));
  EXPECT_EQ(failed.end.reason, FinishReason::kError);
  EXPECT_EQ(failed.end.error.code, ErrorCode::kCorrupt);
  EXPECT_TRUE(failed.tokens.empty());
  handle.wait();
  Alone alone(model, 0);
  EXPECT_EQ(fine->tokens, alone.turn({}, 200, {}));
  EXPECT_EQ(snapshot_of(*engine, "a"), before);
}

TEST(Engine, DrainFinishesWhatItCanAndTakesNoMore) {
  auto engine = make_engine(endless_model({linear()}));
  Request request;
  request.max_tokens = 50;
  const auto finished = record(*engine, &request);
  Handle handle = engine->submit(request).handle;
  EXPECT_EQ(engine->drain(Clock::now() + std::chrono::minutes(1)).cancelled, 0);
  EXPECT_TRUE(handle.done());
  EXPECT_EQ(finished->tokens.size(), 50);
  EXPECT_EQ(engine->submit(request).refusal->reason, RefusalReason::kDraining);

  EngineOptions options;
  options.max_running = 2;
  engine = make_engine(endless_model({linear()}), options);
  ASSERT_TRUE(engine->sessions().create("a", 1).ok());
  const std::string before = snapshot_of(*engine, "a");
  std::vector<Handle> handles;
  handles.push_back(engine->submit(endless("a")).handle);
  for (int i = 0; i < 4; ++i) handles.push_back(engine->submit(endless()).handle);
  const auto start = Clock::now();
  EXPECT_EQ(engine->drain(start + milliseconds(50)).cancelled, 5);
  EXPECT_GE(Clock::now() - start, milliseconds(50));
  for (Handle& each : handles) EXPECT_TRUE(each.done());
  EXPECT_EQ(snapshot_of(*engine, "a"), before);
}

TEST(Engine, HandlesOutliveTheEngine) {
  Handle running, waiting;
  {
    EngineOptions options;
    options.max_running = 1;
    const auto engine = make_engine(endless_model({linear()}), options);
    running = engine->submit(endless()).handle;
    waiting = engine->submit(endless()).handle;
  }
  EXPECT_TRUE(running.done());
  EXPECT_TRUE(waiting.done());
  running.cancel();
  waiting.wait();
}

TEST(Engine, CountsWhatItDid) {
  const auto engine = make_engine(endless_model({linear()}));
  Request request;
  request.prompt = random_tokens(9, 1);
  request.max_tokens = 5;
  for (int i = 0; i < 3; ++i) play(*engine, request);
  const Metrics& metrics = engine->metrics();
  EXPECT_EQ(metrics.requests.load(), 3);
  EXPECT_EQ(metrics.prompt_tokens.load(), 30);
  EXPECT_EQ(metrics.generated_tokens.load(), 15);
  EXPECT_EQ(metrics.finished[static_cast<size_t>(FinishReason::kLength)].load(), 3);
  EXPECT_EQ(metrics.time_to_first_token.total(), 3);
  EXPECT_EQ(metrics.inter_token_latency.total(), 12);
  EXPECT_GT(metrics.inter_token_latency.sum_seconds(), 0);
  EXPECT_EQ(metrics.running.load() + metrics.waiting.load(), 0);
}

TEST(Histogram, CountsInTheBucketOfTheUpperLimit) {
  Histogram histogram;
  const auto bounds = Histogram::bounds();
  histogram.observe(bounds[0]);
  histogram.observe(bounds[0] * 1.01);
  histogram.observe(1e9);
  EXPECT_EQ(histogram.count(0), 1);
  EXPECT_EQ(histogram.count(1), 1);
  EXPECT_EQ(histogram.count(Histogram::kBuckets), 1);
  EXPECT_EQ(histogram.total(), 3);
}

}  // namespace
}  // namespace tarn::serve
