#include "serve/load/callers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/json.h"

namespace tarn::serve::load {
namespace {

/// After a refusal.
constexpr double kPauseSeconds = 0.1;
/// A run that is killed leaves its sessions to their end.
constexpr int64_t kSessionSeconds = 3600;
/// Idle connections ask after 15 to 25 seconds; servers end them after 60 or more.
constexpr double kIdleSeconds = 15, kIdleSpread = 10;
constexpr int64_t kOpening = 64;  // idle connections at once

std::string cut(const std::string& text) { return text.substr(0, 300); }

}  // namespace

Caller::Caller(Run& run, ClientLoop& loop, Samples& samples, int64_t index)
    : run_(run), loop_(loop), samples_(samples), link_(loop.open(*this)), index_(index) {}

void Caller::ask(Question question) {
  question_ = std::move(question);
  check_.emplace(expected_of(question_, run_.facts));
  events_ = {};
  body_.clear();
  last_ = 0;
  const std::string body = body_of(question_, run_.facts);
  begun_ = run_.now();
  link_.request(run_.target.request("POST", "/v1/completions", body, run_.key(index_)));
}

void Caller::bytes(int status, std::string_view body) {
  if (status != 200) {
    body_ += body;
    return;
  }
  events_.put(body, [this](std::string_view data) {
    if (check_->event(data)) piece();
  });
}

void Caller::piece() {
  const double now = run_.now();
  const bool is_long = question_.number < 0;
  const bool with_prompts = run_.long_in_flight > 0;
  if (last_ == 0) {
    (is_long ? samples_.long_first_token : samples_.first_token)
        .push_back(static_cast<float>(now - begun_));
  } else if (!is_long) {
    (with_prompts || with_prompts_ ? samples_.gaps_with_prompts : samples_.gaps)
        .push_back(static_cast<float>(now - last_));
  }
  last_ = now;
  with_prompts_ = with_prompts;
}

void Caller::ended(const Ending& ending) {
  std::string problem;
  if (ending.status == 200 && ending.failure == Ending::Failure::kNone) {
    problem = events_.clean() ? check_->verdict() : "the stream ended within an event";
  }
  const Verdict verdict = judge(ending, 200, std::move(problem));
  if (verdict == Verdict::kRight) {
    samples_.answers[question_.number].insert(check_->hash());
    if (question_.number >= 0) {
      samples_.turns.push_back({begun_, run_.now(), check_->completion_tokens()});
    }
  }
  answered(verdict);
}

Caller::Verdict Caller::judge(const Ending& ending, int wanted, std::string problem) {
  using Failure = Ending::Failure;
  const auto count = [&](const std::string& name, const std::string& example) {
    ++samples_.errors[name];
    samples_.error_examples.emplace(name, cut(example));
  };
  const bool is_refusal = ending.status == 429 || ending.status == 503;
  if (ending.failure == Failure::kConnection) {
    count("connection", ending.message);
    return Verdict::kUnknown;
  }
  if (ending.failure == Failure::kTimeout) {
    count("timeout", ending.message);
    return Verdict::kUnknown;
  }
  if (is_refusal && ending.failure == Failure::kNone) {
    count(std::to_string(ending.status), body_);
    return Verdict::kRefused;
  }
  if (ending.failure == Failure::kBroken) {
    problem = ending.message;
  } else if (ending.status != wanted) {
    count(std::to_string(ending.status), body_);
    problem = fmt::format("status {}: {}", ending.status, body_);
  }
  if (problem.empty()) return Verdict::kRight;
  ++samples_.wrong;
  if (samples_.wrong_example.empty()) samples_.wrong_example = cut(problem);
  return Verdict::kUnknown;
}

void Player::next() {
  if (!run_.take()) {
    --run_.players;
    return;
  }
  ask_turn();
}

void Player::ask_turn() {
  const LoadOptions& options = run_.options;
  const int64_t tokens = (turn_ + 1) * (options.prompt_tokens + options.max_tokens);
  const bool is_full = run_.facts.max_tokens > 0 && tokens > run_.facts.max_tokens;
  if (options.sessions && (session_.empty() || is_full)) return make_session();
  ask({turn_, options.prompt_tokens, options.max_tokens, session_, seq_});
}

void Player::make_session() {
  making_ = true;
  body_.clear();
  session_ = fmt::format("{}-{}-{}", run_.name, index_, made_++);
  const Json body = Json::Object{{"id", session_}, {"seed", 1}, {"ttl_seconds", kSessionSeconds}};
  link_.request(run_.target.request("POST", "/v1/sessions", body.dump(), run_.key(index_)));
}

void Player::bytes(int status, std::string_view body) {
  if (making_) {
    body_ += body;
  } else {
    Caller::bytes(status, body);
  }
}

void Player::ended(const Ending& ending) {
  if (!making_) return Caller::ended(ending);
  making_ = false;
  session_made(ending);
}

void Player::session_made(const Ending& ending) {
  const auto json = parse_json(body_, "session");
  const Json* seq = json.ok() ? json->find("seq") : nullptr;
  const bool good = ending.status == 201 && seq != nullptr && seq->as_int() != nullptr;
  const Verdict verdict = judge(ending, 201, good ? "" : "no session was made: " + body_);
  if (verdict != Verdict::kRefused) samples_.sessions.push_back(session_);
  if (verdict != Verdict::kRight) {
    session_.clear();
    return wait();
  }
  seq_ = *seq->as_int();
  turn_ = 0;
  ask_turn();
}

void Player::answered(Verdict verdict) {
  if (verdict == Verdict::kRight) {
    if (run_.options.sessions) {
      ++seq_;
      ++turn_;
    }
    return next();
  }
  // Nobody knows where its session is now.
  if (verdict == Verdict::kUnknown) session_.clear();
  wait();
}

void Player::wait() {
  loop_.after(kPauseSeconds, [this] { next(); });
}

class Arrivals::Reader final : public Caller {
 public:
  using Caller::Caller;
  bool busy() const { return busy_; }
  void read() {
    busy_ = true;
    ++run_.long_in_flight;
    ask({-1, run_.options.long_prompt_tokens, 1, {}, 0});
  }

 private:
  void answered(Verdict verdict) override {
    if (verdict == Verdict::kRight) ++samples_.long_prompts;
    busy_ = false;
    --run_.long_in_flight;
  }

  bool busy_ = false;
};

Arrivals::Arrivals(Run& run, ClientLoop& loop, Samples& samples)
    : run_(run), loop_(loop), samples_(samples) {}
Arrivals::~Arrivals() = default;

void Arrivals::start() {
  due_ = run_.now();
  arrive();
}

void Arrivals::arrive() {
  if (run_.stopping) return;
  auto free = std::find_if(readers_.begin(), readers_.end(),
                           [](const auto& reader) { return !reader->busy(); });
  if (free == readers_.end() && std::ssize(readers_) < kMost) {
    readers_.push_back(std::make_unique<Reader>(run_, loop_, samples_, std::ssize(readers_)));
    free = readers_.end() - 1;
  }
  if (free != readers_.end()) {
    (*free)->read();
  } else {
    ++samples_.long_skipped;
  }
  due_ += 1 / run_.options.long_prompts;
  loop_.after(std::max(0.0, due_ - run_.now()), [this] { arrive(); });
}

class IdleGroup::Idle final : public Link::User {
 public:
  Idle(IdleGroup& group, int64_t index)
      : group_(group), link_(group.loop_.open(*this)), index_(index) {}

  void open() {
    const Run& run = group_.run_;
    link_.request(run.target.request("GET", "/livez", {}, run.key(index_)));
  }
  void bytes(int, std::string_view) override {}
  void ended(const Ending& ending) override {
    const bool is_open = ending.failure == Ending::Failure::kNone && ending.status != 503;
    if (!tried_) {
      tried_ = true;
      group_.tried_one(ending);
    } else if (!is_open) {
      ++group_.samples_.idle_lost;
    }
    const double spread = static_cast<double>(index_ % 101) / 101;
    group_.loop_.after(kIdleSeconds + kIdleSpread * spread, [this] { open(); });
  }
  void lost() override { ++group_.samples_.idle_lost; }

 private:
  IdleGroup& group_;
  Link& link_;
  const int64_t index_;
  bool tried_ = false;
};

IdleGroup::IdleGroup(Run& run, ClientLoop& loop, Samples& samples, int64_t count)
    : run_(run), loop_(loop), samples_(samples), count_(count) {}
IdleGroup::~IdleGroup() = default;

void IdleGroup::start() {
  for (int64_t i = 0; i < std::min(count_, kOpening); ++i) open_next();
}

void IdleGroup::open_next() {
  idles_.push_back(std::make_unique<Idle>(*this, begun_++));
  idles_.back()->open();
}

void IdleGroup::tried_one(const Ending& ending) {
  if (ending.failure != Ending::Failure::kNone) {
    failure_ = ending.message;
  } else if (ending.status == 503) {
    failure_ = "status 503";
  } else {
    ++opened_;
  }
  if (begun_ < count_) open_next();
  ++tried_;
}

}  // namespace tarn::serve::load
