#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/model_options.h"
#include "runtime/session.h"
#include "runtime/snapshot.h"

namespace tarn::cli {
namespace {

constexpr int64_t kMaxTokens = 1'000'000'000;

struct Options {
  ModelOptions model;
  SamplerFlags sampler;
  PromptOptions prompt;
  int64_t count = 0;
  int64_t seed = 0;
  std::string file;
  std::string out;
};

/// Draws `count` tokens; what has been drawn so far is in the session when it stops early.
Status draw(runtime::Session& session, const runtime::SamplerOptions& sampler, int64_t count,
            runtime::Generator& generator, Context& context, std::vector<int32_t>& tokens) {
  runtime::Session* sessions[] = {&session};
  const bool is_text = session.model().config().modality == model::Modality::kBytes;
  for (int64_t i = 0; i < count; ++i) {
    if (context.cancel.load()) return Error{ErrorCode::kCancelled, "stopped on request", {}};
    int32_t token = 0;
    TARN_RETURN_IF_ERROR(generator.step(sessions, sampler, {&token, 1}));
    tokens.push_back(token);
    if (is_text) context.console.stream(session.text_of(token));
    context.console.progress("tokens", i + 1, count, "tokens");
  }
  context.console.end_progress();
  // The last token is evaluated too: the next command draws without any further work.
  TARN_RETURN_IF_ERROR(generator.evaluate(sessions));
  if (is_text) {
    context.console.text("");
  } else {
    context.console.text(fmt::format("{}", fmt::join(tokens, " ")));
  }
  return {};
}

Json tokens_json(const runtime::Session& session, const std::vector<int32_t>& tokens) {
  Json json;
  json.set("tokens", Json::Array(tokens.begin(), tokens.end()));
  json.set("token_count", session.token_count());
  json.set("position", session.position());
  json.set("state_bytes", session.state().used_bytes());
  return json;
}

Status check_room(const model::Model& model, int64_t used, int64_t wanted) {
  const int64_t most = model.config().max_tokens;
  // The last input of a full sequence has no position left, so one token less can be evaluated.
  if (most == 0 || used + wanted < most) return {};
  return invalid_argument(
      fmt::format("got {} tokens after {}, wanted fewer than {} in all, so that "
                  "the session can continue",
                  wanted, used, most),
      "-n");
}

Status save(const Options& options, Context& context) {
  TARN_ASSIGN(const auto model, options.model.load());
  TARN_ASSIGN(const auto prompts, options.prompt.read(model->config()));
  if (prompts.size() > 1) {
    return invalid_argument(fmt::format("got {} prompts, wanted one", prompts.size()),
                            "--prompt-index");
  }
  const int64_t prompt_tokens = prompts.empty() ? 0 : static_cast<int64_t>(prompts.front().size());
  TARN_RETURN_IF_ERROR(check_room(*model, prompt_tokens, options.count));
  const runtime::SamplerOptions sampler = options.sampler.options();
  TARN_RETURN_IF_ERROR(runtime::validate(sampler));
  runtime::Session::Options session_options;
  session_options.seed = static_cast<uint64_t>(options.seed);
  runtime::Session session(model, session_options);
  if (!prompts.empty()) TARN_RETURN_IF_ERROR(session.append(prompts.front()));
  ThreadPool pool(static_cast<int>(options.model.threads));
  runtime::Generator generator(model, &pool);
  std::vector<int32_t> tokens;
  TARN_RETURN_IF_ERROR(draw(session, sampler, options.count, generator, context, tokens));
  TARN_RETURN_IF_ERROR(runtime::save_snapshot(options.out, session, sampler));
  Json json = tokens_json(session, tokens);
  json.set("out", options.out);
  context.console.document(json);
  context.console.text(fmt::format("saved {} after {} tokens (state: {})", options.out,
                                   session.token_count(),
                                   bytes_text(session.state().used_bytes())));
  return {};
}

Status resume(const Options& options, Context& context) {
  TARN_ASSIGN(const auto model, options.model.load());
  TARN_ASSIGN(runtime::RestoredSession restored, runtime::load_snapshot(options.file, model));
  runtime::Session& session = restored.session;
  TARN_RETURN_IF_ERROR(check_room(*model, session.token_count(), options.count));
  const int64_t position_before = session.position();
  ThreadPool pool(static_cast<int>(options.model.threads));
  runtime::Generator generator(model, &pool);
  std::vector<int32_t> tokens;
  TARN_RETURN_IF_ERROR(draw(session, restored.sampler, options.count, generator, context, tokens));
  if (!options.out.empty()) {
    TARN_RETURN_IF_ERROR(runtime::save_snapshot(options.out, session, restored.sampler));
  }
  Json json = tokens_json(session, tokens);
  json.set("evaluated_inputs", session.position() - position_before);
  if (!options.out.empty()) json.set("out", options.out);
  context.console.document(json);
  return {};
}

std::string shape_text(const runtime::SnapshotInfo::Tensor& tensor) {
  return fmt::format("[{}]{}", fmt::join(tensor.shape, ", "),
                     tensor.per_token ? fmt::format(" x {}", tensor.entries) : "");
}

Json info_json(const runtime::SnapshotInfo& info) {
  Json::Array tensors;
  for (const auto& tensor : info.tensors) {
    Json json;
    json.set("layer", tensor.layer);
    json.set("name", tensor.name);
    json.set("dtype", tensor.dtype);
    json.set("shape", Json::Array(tensor.shape.begin(), tensor.shape.end()));
    json.set("per_token", tensor.per_token);
    json.set("entries", tensor.entries);
    json.set("bytes", tensor.bytes);
    tensors.push_back(std::move(json));
  }
  Json json;
  json.set("version", info.version);
  json.set("model_fingerprint", fmt::format("{:016x}", info.model_fingerprint));
  json.set("position", info.position);
  json.set("token_count", info.token_count);
  json.set("has_output", info.has_output);
  json.set("seed", fmt::format("{}", info.seed));
  json.set("stream", fmt::format("{}", info.stream));
  json.set("random_words", fmt::format("{}", info.random_words));
  json.set("file_bytes", info.file_bytes);
  json.set("state_bytes", info.state_bytes);
  json.set("tensors", std::move(tensors));
  return json;
}

Status show(const Options& options, Context& context) {
  TARN_ASSIGN(const runtime::SnapshotInfo info, runtime::inspect_snapshot_file(options.file));
  context.console.document(info_json(info));
  context.console.table({{"snapshot", options.file},
                         {"format version", std::to_string(info.version)},
                         {"model fingerprint", fmt::format("{:016x}", info.model_fingerprint)},
                         {"tokens", std::to_string(info.token_count)},
                         {"inputs evaluated", std::to_string(info.position)},
                         {"next token ready", info.has_output ? "yes" : "no"},
                         {"random numbers used", std::to_string(info.random_words)},
                         {"state", bytes_text(info.state_bytes)},
                         {"file", bytes_text(info.file_bytes)}});
  context.console.text("");
  std::vector<std::vector<std::string>> rows = {{"tensor", "type", "shape", "bytes"}};
  for (const auto& tensor : info.tensors) {
    rows.push_back({fmt::format("layer {} {}", tensor.layer, tensor.name), tensor.dtype,
                    shape_text(tensor), std::to_string(tensor.bytes)});
  }
  context.console.table(rows);
  return {};
}

void add_file(Command& command, Options& options) {
  command.positional("file", options.file, "FILE", "snapshot");
}

}  // namespace

void add_state(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command state = program.group("state", "Save, look at and resume a running sequence");

  Command saver = state.add(selection, "save", "Generate tokens, then save the session",
                            [options](Context& context) { return save(*options, context); });
  options->model.add_to(saver);
  options->prompt.add_to(saver);
  options->sampler.add_to(saver);
  saver.integer("-n,--count", options->count, 0, kMaxTokens, "tokens to draw (default: 0)");
  saver.integer("--seed", options->seed, 0, INT64_MAX, "of the random numbers (default: 0)");
  saver.required_text("--out", options->out, "FILE", "the snapshot");

  Command shower = state.add(selection, "show", "Describe a snapshot",
                             [options](Context& context) { return show(*options, context); });
  add_file(shower, *options);

  Command resumer = state.add(selection, "resume", "Continue from a snapshot",
                              [options](Context& context) { return resume(*options, context); });
  options->model.add_to(resumer);
  add_file(resumer, *options);
  resumer.integer("-n,--count", options->count, 0, kMaxTokens, "tokens to draw (default: 0)");
  resumer.text("--out", options->out, "FILE", "save again afterwards");
}

}  // namespace tarn::cli
