#include "runtime/session.h"
#include "runtime/snapshot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "runtime/selftest.h"
#include "unit/runtime/tiny_models.h"

namespace tarn::runtime {
namespace {

using Tokens = std::vector<int32_t>;

Tokens random_tokens(int64_t count, uint64_t stream) {
  Philox rng{99, stream, 0};
  Tokens tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next_below(11));
  return tokens;
}

Tokens copy(std::span<const int32_t> tokens) { return {tokens.begin(), tokens.end()}; }

std::vector<Session*> pointers(std::vector<Session>& sessions) {
  std::vector<Session*> result;
  for (Session& session : sessions) result.push_back(&session);
  return result;
}

/// Tokens and the bits of the last output after `steps` draws, one session at a time.
struct Trace {
  Tokens tokens;
  std::vector<float> output;
};

Trace run_alone(const std::shared_ptr<const model::Model>& model, uint64_t stream,
                const Tokens& prompt, int64_t steps) {
  Generator generator(model, nullptr);
  Session session(model, {5, stream, true});
  EXPECT_TRUE(session.append(prompt).ok());
  Session* const sessions[] = {&session};
  for (int64_t i = 0; i < steps; ++i) EXPECT_TRUE(generator.step(sessions, {}).ok());
  return {copy(session.tokens()), {session.output().begin(), session.output().end()}};
}

TEST(Session, BatchMatesAndThreadsDoNotChangeABit) {
  constexpr int64_t kSteps = 20;
  for (const NamedMixers& stack : causal_stacks()) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers);
    std::vector<Trace> alone;
    for (uint64_t i = 0; i < 7; ++i) {
      alone.push_back(run_alone(model, i, random_tokens(static_cast<int64_t>(5 * i), i), kSteps));
    }
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      Generator generator(model, &pool);
      std::vector<Session> sessions;
      for (uint64_t i = 0; i < 7; ++i) {
        sessions.emplace_back(model, Session::Options{5, i, true});
        ASSERT_TRUE(sessions[i].append(random_tokens(static_cast<int64_t>(5 * i), i)).ok());
      }
      const auto batch = pointers(sessions);
      Tokens drawn(7, -1);
      for (int64_t step = 0; step < kSteps; ++step) {
        ASSERT_TRUE(generator.step(batch, {}, drawn).ok());
        for (size_t i = 0; i < 7; ++i) ASSERT_EQ(drawn[i], sessions[i].tokens().back());
      }
      for (size_t i = 0; i < 7; ++i) {
        EXPECT_EQ(copy(sessions[i].tokens()), alone[i].tokens) << i;
        EXPECT_TRUE(std::equal(alone[i].output.begin(), alone[i].output.end(),
                               sessions[i].output().begin()))
            << i;
      }
    }
  }
}

TEST(Session, CountsInputsAndWaitingTokens) {
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 6});
  Generator generator(model, nullptr);
  Session session(model, {});
  EXPECT_EQ(session.waiting(), 1);  // the start token
  EXPECT_FALSE(session.has_output());
  ASSERT_TRUE(generator.feed(session, Tokens{1, 2, 3}).ok());
  EXPECT_EQ(session.position(), 4);
  EXPECT_EQ(session.token_count(), 3);
  EXPECT_TRUE(session.has_output());
  ASSERT_TRUE(generator.feed(session, {}).ok());  // nothing waits, nothing happens
  EXPECT_EQ(session.position(), 4);
  Session* const sessions[] = {&session};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(generator.step(sessions, {}).ok());
  EXPECT_TRUE(session.is_full());
  EXPECT_EQ(session.position(), 6);  // the last token has no position: it stays waiting
  const Status full = generator.step(sessions, {});
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().message, "the sequence is full: it has 6 tokens, the model takes no more");
  EXPECT_EQ(session.position(), 6);
}

TEST(Session, RefusesBadTokensWhole) {
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 6});
  Session session(model, {});
  EXPECT_FALSE(session.append(Tokens{1, 12}).ok());
  EXPECT_FALSE(session.append(Tokens{1, -1}).ok());
  EXPECT_FALSE(session.append(Tokens(7, 1)).ok());
  EXPECT_EQ(session.token_count(), 0);
  EXPECT_FALSE(session.reserve(7).ok());
  EXPECT_FALSE(session.reserve(int64_t{1} << 62).ok());
  Sampler sampler(model->config().head, {});
  EXPECT_FALSE(session.draw(sampler).ok());  // the start token waits
}

TEST(Session, PiecesOfAnyQuantaEndInTheSameBits) {
  for (const NamedMixers& stack : causal_stacks(true)) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers, {.max_tokens = 0});
    Generator generator(model, nullptr);
    // The start token waits as well: with 64 more one input beyond a quantum, and so on.
    for (const int64_t length : {64, 512, 700}) {
      SCOPED_TRACE(length);
      const Tokens prompt = random_tokens(length, 1);
      Session whole(model, {});
      ASSERT_TRUE(generator.feed(whole, prompt).ok());
      for (int64_t most = generator.piece_quantum(); most <= 192; most *= 3) {
        SCOPED_TRACE(most);
        Session pieces(model, {});
        ASSERT_TRUE(pieces.append(prompt).ok());
        Session* const one[] = {&pieces};
        while (pieces.evaluable() > 0) ASSERT_TRUE(generator.advance(one, most).ok());
        EXPECT_EQ(pieces.position(), length + 1);
        EXPECT_TRUE(
            std::equal(whole.output().begin(), whole.output().end(), pieces.output().begin()));
        EXPECT_EQ(encode_snapshot(whole, {}), encode_snapshot(pieces, {}));
      }
    }
  }
}

TEST(Session, LongPromptsInPiecesMatchShortFeedsOfTheSamePieces) {
  // Pieces depend on the session alone, so feeding exactly piece by piece gives the same bits.
  for (const NamedMixers& stack : causal_stacks(true)) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers, {.max_tokens = 0});
    const Tokens prompt = random_tokens(2 * Generator::kPieceTokens + 40, 1);
    Generator generator(model, nullptr);
    Session whole(model, {});
    ASSERT_TRUE(generator.feed(whole, prompt).ok());
    Session pieces(model, {});
    const auto cut = static_cast<size_t>(Generator::kPieceTokens - 1);  // beside the start token
    ASSERT_TRUE(generator.feed(pieces, std::span(prompt).first(cut)).ok());
    EXPECT_EQ(pieces.position(), Generator::kPieceTokens);
    ASSERT_TRUE(generator.feed(pieces, std::span(prompt).subspan(cut)).ok());
    EXPECT_TRUE(std::equal(whole.output().begin(), whole.output().end(), pieces.output().begin()));
    // A crowd that does not fit one pass is split into passes without a change either.
    std::vector<Session> crowd;
    for (uint64_t i = 0; i < 10; ++i) {
      crowd.emplace_back(model, Session::Options{});
      ASSERT_TRUE(crowd[i].append(prompt).ok());
    }
    ASSERT_TRUE(generator.evaluate(pointers(crowd)).ok());
    for (const Session& session : crowd) {
      EXPECT_EQ(session.position(), whole.position());
      EXPECT_TRUE(
          std::equal(whole.output().begin(), whole.output().end(), session.output().begin()));
    }
  }
}

TEST(Session, ForkContinuesOnItsOwnAndCloneExactly) {
  for (const NamedMixers& stack : causal_stacks()) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers);
    Generator generator(model, nullptr);
    Session original(model, {5, 1, true});
    ASSERT_TRUE(generator.feed(original, random_tokens(9, 3)).ok());
    Session twin = original.clone();
    Session fork = original.fork(2);
    Session fork_again = original.fork(2);
    const auto advance = [&](Session& session) {
      Session* const sessions[] = {&session};
      for (int i = 0; i < 30; ++i) ASSERT_TRUE(generator.step(sessions, {}).ok());
    };
    advance(fork);  // must not disturb the others
    advance(original);
    advance(twin);
    advance(fork_again);
    EXPECT_EQ(copy(original.tokens()), copy(twin.tokens()));
    EXPECT_EQ(copy(fork.tokens()), copy(fork_again.tokens()));
    EXPECT_NE(copy(original.tokens()), copy(fork.tokens()));
  }
}

TEST(Session, RollbackForgetsADraft) {
  for (const NamedMixers& stack : causal_stacks()) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers);
    Generator generator(model, nullptr);
    Session plain(model, {5, 1, true});
    Session drafted(model, {5, 1, true});
    for (Session* session : {&plain, &drafted}) {
      ASSERT_TRUE(generator.feed(*session, random_tokens(9, 3)).ok());
    }
    const Session mark = drafted.mark();
    ASSERT_TRUE(generator.feed(drafted, random_tokens(33, 4)).ok());
    drafted.rollback(mark);
    EXPECT_EQ(drafted.position(), plain.position());
    for (Session* session : {&plain, &drafted}) {
      Session* const sessions[] = {session};
      for (int i = 0; i < 20; ++i) ASSERT_TRUE(generator.step(sessions, {}).ok());
    }
    EXPECT_EQ(copy(plain.tokens()), copy(drafted.tokens()));
    EXPECT_TRUE(std::equal(plain.output().begin(), plain.output().end(), drafted.output().begin()));
  }
}

TEST(Session, ResetEqualsANewSession) {
  for (const NamedMixers& stack : causal_stacks(true)) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers);
    Generator generator(model, nullptr);
    Session session(model, {5, 1, true});
    Tokens first;
    for (int round = 0; round < 2; ++round) {
      Session* const sessions[] = {&session};
      for (int i = 0; i < 30; ++i) ASSERT_TRUE(generator.step(sessions, {}).ok());
      if (round == 0) first = copy(session.tokens());
      EXPECT_EQ(copy(session.tokens()), first);
      session.reset();
      EXPECT_EQ(session.position(), 0);
      EXPECT_EQ(session.token_count(), 0);
    }
  }
}

TEST(Session, DroppingTokensChangesNothingElse) {
  const auto model = tiny_model(causal_stacks(true).front().layers);
  Generator generator(model, nullptr);
  Session keeps(model, {5, 1, true});
  Session drops(model, {5, 1, false});
  std::vector<Session*> sessions{&keeps, &drops};
  Tokens drawn(2);
  for (Session* session : sessions) {
    ASSERT_TRUE(generator.feed(*session, random_tokens(9, 3)).ok());
  }
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(generator.step(sessions, {}, drawn).ok());
    EXPECT_EQ(drawn[0], drawn[1]);
    EXPECT_EQ(drops.tokens().size(), 1u);
  }
  EXPECT_EQ(drops.token_count(), 39);
}

TEST(Session, StateBytesAreThoseOfTheTables) {
  for (const NamedMixers& stack : causal_stacks()) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers);
    int64_t fixed = 0;
    int64_t growing = 0;
    for (const auto& layer : model->state_specs()) {
      for (const auto& spec : layer) {
        int64_t bytes = 4;
        for (const int64_t extent : spec.shape) bytes *= extent;
        (spec.per_token ? growing : fixed) += bytes;
      }
    }
    Session session(model, {});
    Generator generator(model, nullptr);
    ASSERT_TRUE(generator.feed(session, random_tokens(40, 1)).ok());
    EXPECT_EQ(session.state().fixed_bytes(), fixed);
    EXPECT_EQ(session.state().bytes_per_token(), growing);
    EXPECT_EQ(session.state().used_bytes(), fixed + 41 * growing);
    EXPECT_EQ(SequenceState::used_bytes_at(*model, 41), fixed + 41 * growing);
  }
}

TEST(Session, TenThousandStepsNeedNoMoreMemory) {
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (!mixer->bounded_state) continue;
    if (mixers::has_operator(*mixer) && mixer->step == nullptr) continue;  // whole sequences only
    SCOPED_TRACE(mixer->name);
    auto json = parse_json(mixer->example_configs().front(), mixer->name);
    ASSERT_TRUE(json.ok());
    Json layer = *json;
    layer.set("name", mixer->name);
    const auto model = tiny_model({layer}, {.max_tokens = 0});
    Generator generator(model, nullptr);
    std::vector<Session> sessions;
    for (uint64_t i = 0; i < 3; ++i) sessions.emplace_back(model, Session::Options{1, i, false});
    const auto batch = pointers(sessions);
    for (int i = 0; i < 500; ++i) ASSERT_TRUE(generator.step(batch, {}).ok());
    const int64_t before = resident_bytes();
    for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(generator.step(batch, {}).ok());
    if (!kSanitized) {
      // Pages the allocator happens to touch; one state kept per step would be 500 MiB.
      EXPECT_LE(resident_bytes() - before, int64_t{1} << 20);
    }
    for (const float value : sessions[0].output()) EXPECT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace tarn::runtime
