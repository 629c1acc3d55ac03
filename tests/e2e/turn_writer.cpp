// The victim of test_kill_turns.py: takes turns of one session for ever.
//   turn_writer write STORE     prints "started SEQ", then "saved SEQ TOKENS" for each turn whose end
//                               was told, until it is killed; turn SEQ follows from its number
//   turn_writer resume STORE    one more token: prints "resumed SEQ EVALUATED TOKEN"
//   turn_writer control TURNS   the same without a store and without an interruption
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "runtime/session.h"
#include "serve/service/session_service.h"

namespace {

using namespace tarn;         // NOLINT: one program
using namespace tarn::serve;  // NOLINT: one program

constexpr const char* kConfig = R"({
  "format": "tarn-model", "format_version": 1, "modality": "tokens", "vocabulary": 65,
  "start_token": 64, "model_dim": 32, "max_tokens": 0,
  "position": {"kind": "sinusoidal"}, "embedding_scale": 1.0,
  "norm": {"kind": "layer_norm", "placement": "post"},
  "layers": [
    {"mixer": {"name": "linear_attention", "num_heads": 4, "key_dim": 8},
     "mlp": {"hidden_dim": 64, "activation": "gelu"}},
    {"mixer": {"name": "gated_delta_rule", "num_heads": 2, "key_dim": 8, "value_dim": 8},
     "mlp": {"hidden_dim": 64, "activation": "gelu"}}],
  "head": {"kind": "categorical", "classes": 64}})";
constexpr const char* kSession = "victim";
constexpr uint64_t kSeed = 11;
constexpr int64_t kTokens = 60;

std::vector<int32_t> prompt_of(int64_t turn) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < 1 + turn % 7; ++i) {
    prompt.push_back(static_cast<int32_t>((turn * 31 + i * 7) % 64));
  }
  return prompt;
}

std::string numbers(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    text += (text.empty() ? "" : ",") + std::to_string(token);
  }
  return text;
}

/// One write call, so that a line is there whole before the process can die.
void say(const std::string& line) {
  if (write(STDOUT_FILENO, (line + "\n").data(), line.size() + 1) < 0) _exit(3);
}

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.to_string().c_str());
  return 1;
}

struct Answer {
  std::vector<int32_t> tokens;
  TurnResult result;
};

Result<Answer> take_turn(SessionService& service, std::vector<int32_t> prompt, int64_t count) {
  auto answer = std::make_shared<Answer>();
  SessionTurn turn;
  turn.request.session = kSession;
  turn.request.prompt = std::move(prompt);
  turn.request.max_tokens = count;
  turn.request.on_token = [answer](const TokenEvent& event) {
    answer->tokens.push_back(event.token);
  };
  turn.on_end = [answer](const TurnResult& result) { answer->result = result; };
  const TurnSubmission submission = service.submit(std::move(turn));
  if (!submission.admitted()) return submission.refusal->error;
  submission.handle.wait();
  if (!answer->result.saved) return answer->result.end.error;
  return *answer;
}

int take_turns(const std::shared_ptr<const model::Model>& model, const std::string& url,
               bool for_ever) {
  auto store = open_store(url);
  if (!store.ok()) return fail(store.error());
  ServiceOptions options;
  options.owner = "victim";  // the next one need not wait for the lease of the one that was killed
  auto service = SessionService::create(model, options, std::move(*store));
  if (!service.ok()) return fail(service.error());
  auto view = (*service)->get(kSession);
  if (!view.ok() && view.error().code == ErrorCode::kNotFound) {
    view = (*service)->create_session({kSession, kSeed});
  }
  if (!view.ok()) return fail(view.error());
  if (!for_ever) {
    const auto answer = take_turn(**service, {}, 1);
    if (!answer.ok()) return fail(answer.error());
    say("resumed " + std::to_string(view->seq) + " " +
        std::to_string(answer->result.end.tokens_evaluated) + " " + numbers(answer->tokens));
    return 0;
  }
  say("started " + std::to_string(view->seq));
  for (int64_t seq = view->seq + 1;; ++seq) {
    const auto answer = take_turn(**service, prompt_of(seq), kTokens);
    if (!answer.ok()) return fail(answer.error());
    say("saved " + std::to_string(answer->result.seq) + " " + numbers(answer->tokens));
  }
}

int control(const std::shared_ptr<const model::Model>& model, int64_t last) {
  runtime::Session session(model, {kSeed, 0, false});
  runtime::Generator generator(model, nullptr);
  runtime::Session* const sessions[] = {&session};
  const auto draw = [&](int64_t count) -> Result<std::vector<int32_t>> {
    std::vector<int32_t> drawn(static_cast<size_t>(count));
    for (int32_t& token : drawn) {
      TARN_RETURN_IF_ERROR(generator.step(sessions, {}, {&token, 1}));
    }
    return drawn;
  };
  for (int64_t seq = 2; seq <= last; ++seq) {
    const Status status = session.append(prompt_of(seq));
    if (!status.ok()) return fail(status.error());
    const auto drawn = draw(kTokens);
    if (!drawn.ok()) return fail(drawn.error());
    say("saved " + std::to_string(seq) + " " + numbers(*drawn));
  }
  const auto one = draw(1);
  if (!one.ok()) return fail(one.error());
  say("resumed " + std::to_string(last) + " 1 " + numbers(*one));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc == 3 ? argv[1] : "";
  const auto json = parse_json(kConfig, "config");
  if (!json.ok()) return fail(json.error());
  const auto config = model::parse_model_config(*json, "config");
  if (!config.ok()) return fail(config.error());
  const auto model = model::Model::random(*config, 5, {});
  if (command == "write") return take_turns(model, argv[2], true);
  if (command == "resume") return take_turns(model, argv[2], false);
  if (command == "control") return control(model, std::atoll(argv[2]));
  std::fprintf(stderr, "usage: turn_writer write|resume STORE, turn_writer control TURNS\n");
  return 2;
}
