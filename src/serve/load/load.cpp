#include "serve/load/load.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "base/json.h"
#include "serve/load/callers.h"
#include "serve/load/client.h"
#include "serve/load/event_reader.h"
#include "serve/load/run.h"

namespace tarn::serve::load {
namespace {

constexpr int64_t kOtherDescriptors = 64;
constexpr std::chrono::milliseconds kLook(10);

Status raise_descriptor_limit(int64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const auto needed = static_cast<rlim_t>(wanted + kOtherDescriptors);
  if (limit.rlim_cur >= needed) return {};
  const rlim_t most = limit.rlim_max;
  limit.rlim_cur = std::min(most, needed);
  if (needed <= most && setrlimit(RLIMIT_NOFILE, &limit) == 0) return {};
  return Error{ErrorCode::kResource,
               fmt::format("{} connections need {} descriptors, the limit is {} (ulimit -n)",
                           wanted, needed, most),
               "--idle"};
}

int64_t integer(const Json* json) {
  const int64_t* value = json == nullptr ? nullptr : json->as_int();
  return value == nullptr ? 0 : *value;
}

std::string text(const Json* json) {
  const std::string* value = json == nullptr ? nullptr : json->as_string();
  return value == nullptr ? "" : *value;
}

/// Callers and what they measured, all of one thread.
struct Part {
  Samples samples;
  std::unique_ptr<IdleGroup> idle;
  std::vector<std::unique_ptr<Player>> players;
  std::unique_ptr<Arrivals> arrivals;
  std::unique_ptr<ClientLoop> loop;  // ends before what it calls
};

class Load {
 public:
  Load(const LoadOptions& options, const std::atomic<bool>& cancel) : cancel_(cancel) {
    run_.options = options;
  }

  Result<LoadResult> go();

 private:
  Result<FetchedAnswer> get(std::string_view method, std::string_view path,
                            std::string_view body = {}) const;
  Status find_facts();
  Status check_sizes() const;
  Status probe() const;
  std::optional<double> metric(std::string_view name) const;
  Status start_loops();
  Status open_idle();
  Status play();
  Status remove_sessions(const std::vector<std::string>& sessions) const;

  const std::atomic<bool>& cancel_;
  Run run_;
  std::vector<std::unique_ptr<Part>> parts_;
  LoadResult result_;
};

Result<FetchedAnswer> Load::get(std::string_view method, std::string_view path,
                                std::string_view body) const {
  return fetch(run_.target, run_.target.request(method, path, body, run_.key(0)),
               run_.options.timeout_seconds);
}

Status Load::find_facts() {
  TARN_ASSIGN(const FetchedAnswer answer, get("GET", "/v1/models"));
  if (answer.status != 200) {
    return Error{ErrorCode::kIo, fmt::format("status {}: {}", answer.status, answer.body),
                 "/v1/models"};
  }
  TARN_ASSIGN(const Json json, parse_json(answer.body, "/v1/models"));
  const Json* list = json.find("data");
  if (list == nullptr || list->as_array() == nullptr || list->as_array()->empty()) {
    return corrupt("wanted a list of models", "/v1/models");
  }
  const std::string& wanted = run_.options.model;
  const Json* found = nullptr;
  for (const Json& model : *list->as_array()) {
    if (found == nullptr && (wanted.empty() || text(model.find("id")) == wanted)) found = &model;
  }
  if (found == nullptr) {
    return Error{ErrorCode::kNotFound, "the server has no model \"" + wanted + "\"", "--model"};
  }
  run_.facts.model = result_.model = text(found->find("id"));
  if (const Json* tarn = found->find("tarn")) {
    run_.facts.vocabulary = integer(tarn->find("vocabulary"));
    run_.facts.max_tokens = integer(tarn->find("max_tokens"));
    run_.facts.counts_bytes = text(tarn->find("modality")) == "bytes";
  }
  return {};
}

Status Load::check_sizes() const {
  const int64_t most = run_.facts.max_tokens;
  const LoadOptions& options = run_.options;
  const auto check = [&](int64_t tokens, const char* flag) -> Status {
    if (most == 0 || tokens <= most) return {};
    return invalid_argument(
        fmt::format("{} tokens with those drawn, but the model takes {}", tokens, most), flag);
  };
  TARN_RETURN_IF_ERROR(check(options.prompt_tokens + options.max_tokens, "--prompt-tokens"));
  if (options.long_prompts == 0) return {};
  return check(options.long_prompt_tokens + 1, "--long-prompt-tokens");
}

/// One request before all others: a load of wrong answers says nothing.
Status Load::probe() const {
  const Question question{0, run_.options.prompt_tokens, run_.options.max_tokens, {}, 0};
  TARN_ASSIGN(const FetchedAnswer answer,
              get("POST", "/v1/completions", body_of(question, run_.facts)));
  std::string problem;
  if (answer.status == 200) {
    CompletionCheck check(expected_of(question, run_.facts));
    EventReader().put(answer.body, [&](std::string_view data) { check.event(data); });
    problem = check.verdict();
  } else {
    problem = fmt::format("status {}: {}", answer.status, answer.body);
  }
  if (problem.empty()) return {};
  return Error{ErrorCode::kCorrupt, "the first answer is wrong: " + problem, "/v1/completions"};
}

std::optional<double> Load::metric(std::string_view name) const {
  const auto answer = get("GET", "/metrics");
  if (!answer.ok() || answer->status != 200) return {};
  return metric_value(answer->body, name);
}

Status Load::start_loops() {
  const LoadOptions& options = run_.options;
  for (int i = 0; i < options.io_threads; ++i) {
    auto part = std::make_unique<Part>();
    TARN_ASSIGN(part->loop, ClientLoop::start(run_.target, options.timeout_seconds));
    parts_.push_back(std::move(part));
  }
  return {};
}

Status Load::open_idle() {
  const auto threads = std::ssize(parts_);
  const int64_t idle = run_.options.idle;
  for (int64_t i = 0; i < threads; ++i) {
    Part& part = *parts_[static_cast<size_t>(i)];
    const int64_t count = idle / threads + (i < idle % threads ? 1 : 0);
    part.idle = std::make_unique<IdleGroup>(run_, *part.loop, part.samples, count);
    part.loop->post([&part] { part.idle->start(); });
  }
  int64_t tried = 0;
  while (tried < idle) {
    std::this_thread::sleep_for(kLook);
    if (cancel_) return Error{ErrorCode::kCancelled, "the load was stopped on request", {}};
    tried = result_.idle_open = 0;
    for (const auto& part : parts_) {
      result_.idle_open += part->idle->opened();
      tried += part->idle->tried();
    }
  }
  if (result_.idle_open == idle) return {};
  std::string why;
  for (const auto& part : parts_) {
    if (why.empty()) why = part->idle->failure();
  }
  return Error{ErrorCode::kResource,
               fmt::format("only {} of {} idle connections could be opened: {} (see the server's "
                           "--connections and --per-client)",
                           result_.idle_open, idle, why),
               "--idle"};
}

Status Load::play() {
  const LoadOptions& options = run_.options;
  run_.players = options.streams;
  run_.begin = Clock::now();
  for (int64_t i = 0; i < options.streams; ++i) {
    Part& part = *parts_[static_cast<size_t>(i) % parts_.size()];
    part.loop->post([this, &part, i] {
      part.players.push_back(std::make_unique<Player>(run_, *part.loop, part.samples, i));
      part.players.back()->start();
    });
  }
  bool arriving = options.long_prompts == 0;
  bool looked = false;
  while (run_.players > 0 || run_.long_in_flight > 0) {
    std::this_thread::sleep_for(kLook);
    if (cancel_) return Error{ErrorCode::kCancelled, "the load was stopped on request", {}};
    const double done = options.requests > 0 ? static_cast<double>(run_.taken) /
                                                   static_cast<double>(options.requests)
                                             : run_.now() / options.seconds;
    if (done >= 1 && !run_.stopping.exchange(true) && options.requests == 0) {
      run_.end_now();
    }
    if (!arriving && done >= 0.5) {
      arriving = true;
      Part& part = *parts_[0];
      part.loop->post([this, &part] {
        part.arrivals = std::make_unique<Arrivals>(run_, *part.loop, part.samples);
        part.arrivals->start();
      });
    }
    if (!looked && done >= 0.25) {
      looked = true;
      result_.connections = metric("tarn_http_connections");
    }
  }
  run_.end_now();  // of so many requests: with the last answer
  return {};
}

Status Load::remove_sessions(const std::vector<std::string>& sessions) const {
  for (const std::string& session : sessions) {
    TARN_ASSIGN(const FetchedAnswer answer, get("DELETE", "/v1/sessions/" + session));
    if (answer.status >= 300 && answer.status != 404) {
      return Error{ErrorCode::kIo,
                   fmt::format("not removed, status {}: {}", answer.status, answer.body), session};
    }
  }
  return {};
}

Result<LoadResult> Load::go() {
  const LoadOptions& options = run_.options;
  TARN_ASSIGN(run_.target, parse_target(options.url));
  TARN_RETURN_IF_ERROR(raise_descriptor_limit(options.streams + options.idle + Arrivals::kMost));
  TARN_RETURN_IF_ERROR(find_facts());
  TARN_RETURN_IF_ERROR(check_sizes());
  TARN_RETURN_IF_ERROR(probe());
  const auto ticks = std::chrono::system_clock::now().time_since_epoch().count();
  run_.name = fmt::format("bench-{:x}-{:x}", ticks, getpid());
  const auto states_before = metric("tarn_resident_session_bytes");
  TARN_RETURN_IF_ERROR(start_loops());
  TARN_RETURN_IF_ERROR(open_idle());
  TARN_RETURN_IF_ERROR(play());
  const auto states_after = metric("tarn_resident_session_bytes");
  result_.peak_resident_bytes = metric("tarn_peak_resident_bytes");
  for (const auto& part : parts_) {
    part->loop.reset();
    result_.samples.add(std::move(part->samples));
  }
  result_.seconds = run_.end;
  result_.throughput = throughput(result_.samples.turns, result_.seconds);
  const auto sessions = static_cast<double>(result_.samples.sessions.size());
  if (states_before && states_after && sessions > 0) {
    result_.bytes_per_session = (*states_after - *states_before) / sessions;
  }
  TARN_RETURN_IF_ERROR(remove_sessions(result_.samples.sessions));
  return std::move(result_);
}

}  // namespace

std::string LoadResult::finding() const {
  if (samples.wrong > 0) {
    return fmt::format("{} wrong answers, such as: {}", samples.wrong, samples.wrong_example);
  }
  if (samples.distinct_answers() > 1) {
    return fmt::format("{} different answers to one question, wanted 1",
                       samples.distinct_answers());
  }
  if (!samples.turns.empty()) return {};
  const auto example = samples.error_examples.begin();
  return "no request was answered" +
         (example == samples.error_examples.end() ? "" : ": " + example->second);
}

Result<LoadResult> run_load(const LoadOptions& options, const std::atomic<bool>& cancel) {
  return Load(options, cancel).go();
}

}  // namespace tarn::serve::load
