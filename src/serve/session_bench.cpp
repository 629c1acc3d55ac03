#include "serve/session_bench.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <string>
#include <utility>

#include "base/checksum.h"
#include "base/rng.h"
#include "runtime/process_memory.h"
#include "runtime/snapshot.h"
#include "runtime/timing.h"
#include "serve/engine.h"
#include "serve/service/session_service.h"

namespace tarn::serve {

namespace {

using runtime::median;
using runtime::seconds_since;
using runtime::Session;

constexpr int64_t kTurns = 3;
constexpr int64_t kDraws = 3;          // in each turn of a session
constexpr int64_t kControlBatch = 64;  // sessions of the control at once
constexpr size_t kStoredTurns = 64;    // of sessions in a store, at once
constexpr int kListRows = 1000;

/// The prompt of a session's turn: one to seven tokens of its own.
std::vector<int32_t> small_prompt(const model::Model& model, uint64_t seed, int64_t session,
                                  int64_t turn) {
  Philox rng{seed, static_cast<uint64_t>(session), static_cast<uint64_t>(turn) << 8};
  const auto symbols =
      static_cast<uint32_t>(std::min(model.config().vocabulary, model.config().head.classes));
  std::vector<int32_t> tokens(1 + rng.next_below(7));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next_below(symbols));
  return tokens;
}

std::vector<int32_t> long_prompt(const model::Model& model, uint64_t seed, int64_t count) {
  Philox rng{seed, ~uint64_t{0}, 0};
  const auto symbols =
      static_cast<uint32_t>(std::min(model.config().vocabulary, model.config().head.classes));
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next_below(symbols));
  return tokens;
}

uint64_t checksum(const std::string& bytes) {
  return xxh3_64(bytes.data(), static_cast<int64_t>(bytes.size()));
}

int64_t resident_now() {
  return runtime::reset_peak_resident() ? runtime::peak_resident_bytes() : -1;
}

class Bench {
 public:
  Bench(const std::shared_ptr<const model::Model>& model, const SessionBenchOptions& options)
      : model_(model), options_(options) {}

  Status run();
  SessionBenchResult result() { return std::move(result_); }

 private:
  std::string id(int64_t session) const { return std::to_string(session); }
  Status start_service();
  Status create(int64_t session);
  Result<std::string> snapshot(const std::string& id);
  Status remove_all();
  Status run_sessions();
  Status play_turn(int64_t turn);
  Status play_stored_turn(int64_t turn);
  Status note_sessions(int64_t turn);
  void note_session(int64_t state_bytes, int64_t token_count);
  Status compare();
  Status compare_batch(runtime::Generator& generator, int64_t begin, int64_t end);
  void run_streams();
  double streams_per_second(int64_t count);
  SessionBenchResult::Gaps gaps(int64_t count, bool with_prompts);

  std::shared_ptr<const model::Model> model_;
  const SessionBenchOptions& options_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<SessionService> service_;  // of sessions in a store
  std::unique_ptr<SessionStore> store_;      // the same store, to look at what is in it
  int64_t created_ = 0;                      // sessions in the store
  int64_t largest_state_ = 0;
  SessionBenchResult result_;
};

Status Bench::run() {
  EngineOptions options;
  options.threads = options_.threads;
  options.prompt_budget = options_.prompt_budget;
  options.max_queued_requests = options_.sessions + options_.streams;
  options.max_queued_tokens = 8 * options_.sessions + 2 * options_.prompt_tokens;
  TARN_ASSIGN(engine_, Engine::create(model_, options));
  const Status sessions = run_sessions();
  // A store is left as it was, whatever happened.
  const Status removed = remove_all();
  TARN_RETURN_IF_ERROR(sessions);
  TARN_RETURN_IF_ERROR(removed);
  run_streams();
  return {};
}

Status Bench::start_service() {
  ServiceOptions options;
  options.engine.threads = options_.threads;
  options.engine.prompt_budget = options_.prompt_budget;
  // Room for a tenth, and for the turns in hand, which take twice: the session and the copy of what
  // it was, until both have left the table.
  runtime::Session largest(model_, {});
  TARN_RETURN_IF_ERROR(largest.reserve(kTurns * (7 + kDraws)));
  const int64_t in_hand = 4 * static_cast<int64_t>(kStoredTurns);
  options.engine.memory_limit_bytes =
      (options_.sessions / 10 + in_hand) * SessionTable::bytes_of(largest);
  StoreOptions store_options;
  store_options.keep_versions = 1;
  TARN_ASSIGN(store_, open_store(options_.store, store_options));
  TARN_ASSIGN(auto store, open_store(options_.store, store_options));
  TARN_ASSIGN(service_, SessionService::create(model_, std::move(options), std::move(store)));
  return {};
}

Status Bench::create(int64_t session) {
  const uint64_t seed = options_.seed + static_cast<uint64_t>(session);
  const std::string name = id(session);
  if (service_ == nullptr) {
    const auto made = engine_->sessions().create(name, seed);
    return made.ok() ? Status() : Status(made.error());
  }
  const auto made = service_->create_session({name, seed});
  if (!made.ok()) return made.error();
  ++created_;
  return {};
}

Result<std::string> Bench::snapshot(const std::string& id) {
  if (service_ == nullptr) return engine_->sessions().snapshot(id);
  TARN_ASSIGN(const SessionRecord record, store_->load(id, model_->fingerprint()));
  TARN_ASSIGN(const SavedSession saved, parse_saved_session(record.payload, id));
  return std::string(saved.snapshot);
}

Status Bench::remove_all() {
  for (int64_t i = 0; service_ == nullptr && i < options_.sessions; ++i) {
    TARN_RETURN_IF_ERROR(engine_->sessions().remove(id(i)));
  }
  for (int64_t i = 0; i < created_; ++i) TARN_RETURN_IF_ERROR(service_->remove(id(i)));
  service_.reset();
  return {};
}

Status Bench::run_sessions() {
  const int64_t needed =
      options_.sessions * runtime::SequenceState::used_bytes_at(*model_, kTurns * (7 + kDraws));
  const int64_t memory = runtime::machine_memory_bytes();
  if (needed > memory) {
    return Error{ErrorCode::kResource,
                 std::to_string(options_.sessions) + " sessions need " + std::to_string(needed) +
                     " bytes of states, the machine has " + std::to_string(memory),
                 "sessions"};
  }
  if (!options_.store.empty()) TARN_RETURN_IF_ERROR(start_service());
  const int64_t before = resident_now();
  result_.sessions = options_.sessions;
  result_.turns = kTurns;
  for (int64_t i = 0; i < options_.sessions; ++i) TARN_RETURN_IF_ERROR(create(i));
  const auto start = runtime::Clock::now();
  for (int64_t turn = 0; turn < kTurns; ++turn) {
    TARN_RETURN_IF_ERROR(service_ == nullptr ? play_turn(turn) : play_stored_turn(turn));
    TARN_RETURN_IF_ERROR(note_sessions(turn));
  }
  result_.session_seconds = seconds_since(start);
  const Metrics& metrics = service_ == nullptr ? engine_->metrics() : service_->engine_metrics();
  result_.session_tokens = metrics.prompt_tokens + metrics.generated_tokens;
  const int64_t after = resident_now();
  if (before >= 0 && after >= 0) result_.resident_growth_bytes = after - before;
  result_.table_bytes =
      service_ == nullptr ? engine_->sessions().resident_bytes() : service_->resident_bytes();
  if (service_ != nullptr) result_.resumed = service_->metrics().loads;
  return compare();
}

void Bench::note_session(int64_t state_bytes, int64_t token_count) {
  largest_state_ = std::max(largest_state_, state_bytes);
  result_.tokens_min = std::min(result_.tokens_min, token_count);
  result_.tokens_max = std::max(result_.tokens_max, token_count);
}

/// What the sessions are after a turn.
Status Bench::note_sessions(int64_t turn) {
  largest_state_ = 0;
  result_.tokens_min = INT64_MAX;
  if (service_ == nullptr) {
    for (const SessionInfo& info : engine_->sessions().list()) {
      note_session(info.state_bytes, info.token_count);
    }
  } else {
    result_.stored_bytes = 0;
    std::string after;
    do {
      TARN_ASSIGN(const SessionViewPage page, service_->list(after, kListRows));
      for (const SessionView& view : page.sessions) {
        note_session(view.state_bytes, view.token_count);
        result_.stored_bytes += view.payload_bytes;
      }
      after = page.next;
    } while (!after.empty());
  }
  (turn == 0 ? result_.state_bytes_first : result_.state_bytes_last) = largest_state_;
  return {};
}

/// One turn of every session in the store, a few at a time.
Status Bench::play_stored_turn(int64_t turn) {
  std::deque<TurnHandle> handles;
  std::atomic<int64_t> failed{0};
  int64_t done = turn * options_.sessions;
  const auto wait_for_oldest = [&] {
    handles.front().wait();
    handles.pop_front();
    if (options_.progress) options_.progress(++done, kTurns * options_.sessions);
  };
  std::optional<Error> error;
  for (int64_t i = 0; i < options_.sessions && !error; ++i) {
    if (handles.size() == kStoredTurns) wait_for_oldest();
    SessionTurn stored;
    stored.request.session = id(i);
    stored.request.prompt = small_prompt(*model_, options_.seed, i, turn);
    stored.request.max_tokens = kDraws;
    stored.on_end = [&failed](const TurnResult& result) {
      if (!result.saved) ++failed;
    };
    TurnSubmission submission = service_->submit(std::move(stored));
    if (submission.admitted()) {
      handles.push_back(submission.handle);
    } else {
      error = submission.refusal->error;
    }
  }
  while (!handles.empty()) wait_for_oldest();
  if (error) return *error;
  if (failed == 0) return {};
  return Error{ErrorCode::kIo, std::to_string(failed) + " turns failed", "sessions"};
}

/// One turn of every session, all waiting at once.
Status Bench::play_turn(int64_t turn) {
  std::vector<Handle> handles;
  std::atomic<int64_t> failed{0};
  for (int64_t i = 0; i < options_.sessions; ++i) {
    Request request;
    request.session = id(i);
    request.prompt = small_prompt(*model_, options_.seed, i, turn);
    request.max_tokens = kDraws;
    request.on_end = [&failed](const TurnEnd& end) {
      if (end.reason != FinishReason::kLength) ++failed;
    };
    Submission submission = engine_->submit(std::move(request));
    if (!submission.admitted()) {
      for (const Handle& handle : handles) handle.wait();
      return submission.refusal->error;
    }
    handles.push_back(submission.handle);
  }
  int64_t done = turn * options_.sessions;
  for (const Handle& handle : handles) {
    handle.wait();
    if (options_.progress) options_.progress(++done, kTurns * options_.sessions);
  }
  if (failed == 0) return {};
  return Error{ErrorCode::kResource, std::to_string(failed) + " turns failed", "sessions"};
}

/// The same turns without the engine: some sessions at a time, one thread, nothing else going on.
Status Bench::compare() {
  flush_denormals();
  runtime::Generator generator(model_, nullptr);
  for (int64_t begin = 0; begin < options_.sessions; begin += kControlBatch) {
    TARN_RETURN_IF_ERROR(
        compare_batch(generator, begin, std::min(begin + kControlBatch, options_.sessions)));
  }
  return {};
}

Status Bench::compare_batch(runtime::Generator& generator, int64_t begin, int64_t end) {
  std::vector<Session> sessions;
  std::vector<Session*> batch;
  for (int64_t i = begin; i < end; ++i) {
    sessions.emplace_back(model_,
                          Session::Options{options_.seed + static_cast<uint64_t>(i), 0, false});
  }
  for (Session& session : sessions) batch.push_back(&session);
  for (int64_t turn = 0; turn < kTurns; ++turn) {
    for (int64_t i = begin; i < end; ++i) {
      TARN_RETURN_IF_ERROR(batch[static_cast<size_t>(i - begin)]->append(
          small_prompt(*model_, options_.seed, i, turn)));
    }
    for (int64_t i = 0; i < kDraws; ++i) TARN_RETURN_IF_ERROR(generator.step(batch, {}));
  }
  const bool is_text = model_->config().modality == model::Modality::kBytes;
  for (int64_t i = begin; i < end; ++i) {
    Session& session = sessions[static_cast<size_t>(i - begin)];
    TARN_ASSIGN(const std::string bytes, snapshot(id(i)));
    if (is_text) {
      // An unfinished character is a matter of what the client was told: not of this comparison.
      TARN_ASSIGN(const auto restored, runtime::decode_snapshot(bytes, model_, id(i)));
      session.text() = restored.session.text();
    }
    if (checksum(bytes) != checksum(runtime::encode_snapshot(session, {}))) ++result_.different;
  }
  return {};
}

void Bench::run_streams() {
  const int64_t limit = model_->config().max_tokens;
  result_.streams = options_.streams;
  result_.stream_tokens = limit > 0 ? std::min(options_.tokens, limit) : options_.tokens;
  std::vector<double> one, all;
  streams_per_second(options_.streams);  // the first one finds memory to be new
  for (int64_t i = 0; i < options_.repeats; ++i) {
    one.push_back(streams_per_second(1));
    all.push_back(streams_per_second(options_.streams));
  }
  result_.one_tokens_per_second = median(one);
  result_.all_tokens_per_second = median(all);
  result_.one = gaps(1, false);
  result_.all = gaps(options_.streams, false);
  if (limit == 0 || options_.prompt_tokens <= limit) {
    result_.with_prompts = gaps(options_.streams, true);
    // Streams that are full before the first prompt comes say nothing.
    if (result_.with_prompts.max == 0.0) result_.prompts = 0;
  }
}

double Bench::streams_per_second(int64_t count) {
  const auto start = runtime::Clock::now();
  std::vector<Handle> handles;
  for (int64_t i = 0; i < count; ++i) {
    Request request;
    request.max_tokens = result_.stream_tokens;
    request.seed = options_.seed + static_cast<uint64_t>(i);
    handles.push_back(engine_->submit(std::move(request)).handle);
  }
  for (const Handle& handle : handles) handle.wait();
  return static_cast<double>(count * result_.stream_tokens) / seconds_since(start);
}

/// Times between the tokens of each stream; with prompts, only while one is being read.
SessionBenchResult::Gaps Bench::gaps(int64_t count, bool with_prompts) {
  struct Stream {
    Clock::time_point last{};
    std::vector<double> seconds;
  };
  std::vector<Stream> streams(static_cast<size_t>(count));
  std::vector<Handle> handles;
  std::atomic<bool> counts{!with_prompts};
  for (Stream& stream : streams) {
    Request request;
    request.max_tokens = with_prompts ? int64_t{1} << 40 : result_.stream_tokens;
    request.on_token = [&stream, &counts](const TokenEvent&) {
      const Clock::time_point now = Clock::now();
      if (counts && stream.last != Clock::time_point{}) {
        stream.seconds.push_back(std::chrono::duration<double>(now - stream.last).count());
      }
      stream.last = now;
    };
    handles.push_back(engine_->submit(std::move(request)).handle);
  }
  if (with_prompts) {
    const std::vector<int32_t> tokens = long_prompt(*model_, options_.seed, options_.prompt_tokens);
    counts = true;
    const auto start = runtime::Clock::now();
    for (int64_t i = 0; i < 4 * options_.repeats; ++i) {
      Request request;
      request.prompt = tokens;
      engine_->submit(std::move(request)).handle.wait();
      ++result_.prompts;
    }
    result_.prompt_tokens_per_second =
        static_cast<double>(result_.prompts * options_.prompt_tokens) / seconds_since(start);
    counts = false;
    for (Handle& handle : handles) handle.cancel();
  }
  for (const Handle& handle : handles) handle.wait();
  std::vector<double> all;
  for (const Stream& stream : streams) {
    all.insert(all.end(), stream.seconds.begin(), stream.seconds.end());
  }
  if (all.empty()) return {};
  std::sort(all.begin(), all.end());
  const auto quantile = [&](double q) {
    return all[static_cast<size_t>(q * static_cast<double>(all.size() - 1))];
  };
  return {quantile(0.5), quantile(0.99), all.back()};
}

}  // namespace

Result<SessionBenchResult> bench_sessions(const std::shared_ptr<const model::Model>& model,
                                          const SessionBenchOptions& options) {
  const int64_t limit = model->config().max_tokens;
  if (limit > 0 && limit < kTurns * (7 + kDraws)) {
    return Error{ErrorCode::kUnsupported,
                 "the model takes " + std::to_string(limit) + " tokens, at least " +
                     std::to_string(kTurns * (7 + kDraws)) + " are needed",
                 "sessions"};
  }
  Bench bench(model, options);
  TARN_RETURN_IF_ERROR(bench.run());
  return bench.result();
}

}  // namespace tarn::serve
