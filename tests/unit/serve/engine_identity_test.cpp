// What a turn draws does not depend on what else the engine does.
#include <chrono>
#include <set>
#include <thread>

#include "unit/serve/engine_fixture.h"

namespace tarn::serve {
namespace {

struct PlannedTurn {
  Tokens prompt;
  int64_t count = 0;
  runtime::SamplerOptions sampler;
};

/// Lengths around the pieces that prompts are read in.
std::vector<PlannedTurn> plan(uint64_t session) {
  constexpr int64_t kLengths[] = {0, 1, 2, 7, 70, 511, 512, 513, 600, 1024, 1025, 1500};
  Philox rng{7, session, 0};
  std::vector<PlannedTurn> turns;
  for (uint64_t i = 0; i < 3; ++i) {
    PlannedTurn turn;
    turn.prompt = random_tokens(kLengths[rng.next_below(12)], 10 * session + i);
    turn.count = rng.next_below(12);
    turn.sampler.greedy = rng.next_below(4) == 0;
    turn.sampler.temperature = 0.5f + rng.next_uniform();
    turn.sampler.top_k = static_cast<int64_t>(rng.next_below(6));
    turns.push_back(std::move(turn));
  }
  return turns;
}

/// Plays the turns of one session, each after a turn that is cancelled at some moment.
void play_session(Engine& engine, uint64_t seed, const std::vector<std::vector<Tokens>>& wanted,
                  const std::string& id) {
  Philox rng{8, seed, 0};
  const std::vector<PlannedTurn> turns = plan(seed);
  for (size_t i = 0; i < turns.size(); ++i) {
    Request doomed;
    doomed.session = id;
    doomed.prompt = random_tokens(rng.next_below(2) == 0 ? 3 : 3000, seed);
    doomed.max_tokens = 1'000'000;
    Submission submission = engine.submit(std::move(doomed));
    ASSERT_TRUE(submission.admitted());
    std::this_thread::sleep_for(std::chrono::microseconds(rng.next_below(3000)));
    submission.handle.cancel();
    submission.handle.wait();

    Request request;
    request.session = id;
    request.prompt = turns[i].prompt;
    request.max_tokens = turns[i].count;
    request.sampler = turns[i].sampler;
    const Record played = play(engine, std::move(request));
    EXPECT_EQ(played.tokens, wanted[seed][i]) << "session " << seed << ", turn " << i;
    EXPECT_EQ(played.end.reason, FinishReason::kLength);
  }
}

void expect_identity(const ModelPointer& model, EngineOptions options) {
  constexpr uint64_t kSessions = 9;
  std::vector<std::vector<Tokens>> wanted(kSessions);
  std::vector<std::string> snapshots;
  for (uint64_t s = 0; s < kSessions; ++s) {
    Alone alone(model, s);
    for (const PlannedTurn& turn : plan(s)) {
      wanted[s].push_back(alone.turn(turn.prompt, turn.count, turn.sampler));
    }
    snapshots.push_back(alone.snapshot());
  }
  const auto engine = make_engine(model, std::move(options));
  std::vector<std::thread> callers;
  for (uint64_t s = 0; s < kSessions; ++s) {
    const std::string id = "s" + std::to_string(s);
    ASSERT_TRUE(engine->sessions().create(id, s).ok());
    callers.emplace_back([&, s, id] { play_session(*engine, s, wanted, id); });
  }
  for (std::thread& caller : callers) caller.join();
  for (uint64_t s = 0; s < kSessions; ++s) {
    EXPECT_EQ(snapshot_of(*engine, "s" + std::to_string(s)), snapshots[s]) << s;
  }
}

struct Stack {
  const char* name;
  std::vector<Json> mixers;
};

class EngineIdentity : public testing::TestWithParam<int> {
 protected:
  static Stack stack() {
    switch (GetParam()) {
      case 0: return {"linear", {linear(), linear()}};
      case 1: return {"delta", {delta(), delta()}};
      case 2: return {"softmax", {softmax(), softmax()}};
      default: return {"hybrid", {linear(), delta(), softmax()}};
    }
  }
};

TEST_P(EngineIdentity, SameBitsAsAlone) {
  SCOPED_TRACE(stack().name);
  const auto model = endless_model(stack().mixers);
  EngineOptions options;
  options.threads = 2;
  expect_identity(model, options);
}

TEST_P(EngineIdentity, SameBitsWithOtherBudgetsAndFewPlaces) {
  SCOPED_TRACE(stack().name);
  const auto model = endless_model(stack().mixers);
  EngineOptions options;
  options.prompt_budget = 100;
  options.max_running = 4;
  expect_identity(model, options);
  options.prompt_budget = 5000;
  options.max_running = 64;
  options.threads = 3;
  expect_identity(model, options);
}

TEST_P(EngineIdentity, EvictedSessionsComeBackWithTheSameBits) {
  SCOPED_TRACE(stack().name);
  const auto model = endless_model(stack().mixers);
  EngineOptions options;
  // Room for a few sessions that run with their copies; the longest has some 5000 tokens.
  runtime::Session session(model, {});
  options.memory_limit_bytes =
      24 * SessionTable::bytes_of(session) + session.state().bytes_per_token() * 150'000;
  expect_identity(model, options);
}

INSTANTIATE_TEST_SUITE_P(Mixers, EngineIdentity, testing::Range(0, 4));

TEST(Engine, ManyIdenticalGreedyRequestsHaveOneAnswer) {
  for (const auto& mixers : {std::vector<Json>{delta(), delta()}, {linear(), softmax()}}) {
    const auto model = endless_model(mixers);
    EngineOptions options;
    options.threads = 2;
    const auto engine = make_engine(model, options);
    std::vector<std::shared_ptr<Record>> records;
    std::vector<Handle> handles;
    for (int i = 0; i < 32; ++i) {
      Request request;
      request.prompt = random_tokens(700, 1);
      request.sampler.greedy = true;
      request.max_tokens = 40;
      records.push_back(record(*engine, &request));
      handles.push_back(engine->submit(std::move(request)).handle);
    }
    std::set<Tokens> answers;
    for (size_t i = 0; i < handles.size(); ++i) {
      handles[i].wait();
      answers.insert(records[i]->tokens);
    }
    Alone alone(model, 0);
    runtime::SamplerOptions greedy;
    greedy.greedy = true;
    EXPECT_EQ(answers, std::set<Tokens>{alone.turn(random_tokens(700, 1), 40, greedy)});
  }
}

TEST(Engine, SecondTurnEvaluatesOnlyWhatIsNew) {
  const auto engine = make_engine(endless_model({delta(), softmax()}));
  ASSERT_TRUE(engine->sessions().create("a", 1).ok());
  Request request;
  request.session = "a";
  request.prompt = random_tokens(600, 1);
  request.max_tokens = 5;
  EXPECT_EQ(play(*engine, request).end.tokens_evaluated, 601);  // and the start token
  request.prompt = random_tokens(3, 2);
  EXPECT_EQ(play(*engine, request).end.tokens_evaluated, 4);  // and the last drawn one
  request.max_tokens = 0;
  EXPECT_EQ(play(*engine, request).end.tokens_evaluated, 4);
  request.prompt = {1};
  const Record last = play(*engine, request);
  EXPECT_EQ(last.end.tokens_evaluated, 1);
  EXPECT_EQ(last.end.token_count, 600 + 5 + 3 + 5 + 3 + 1);
}

TEST(Engine, SeedRestartsTheRandomNumbers) {
  const auto model = endless_model({linear()});
  const auto engine = make_engine(model);
  Request request;
  request.max_tokens = 30;
  request.seed = 5;
  const Tokens first = play(*engine, request).tokens;
  EXPECT_EQ(play(*engine, request).tokens, first);
  request.seed = 6;
  EXPECT_NE(play(*engine, request).tokens, first);
  Alone alone(model, 5);
  EXPECT_EQ(alone.turn({}, 30, {}), first);
}

}  // namespace
}  // namespace tarn::serve
