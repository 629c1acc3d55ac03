#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/file.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/own_model.h"
#include "cli/prompt_stop.h"
#include "runtime/process_memory.h"
#include "serve/api/api.h"
#include "serve/api/cors.h"
#include "serve/http/server.h"
#include "serve/service/session_service.h"

namespace tarn::cli {
namespace {

using serve::http::Server;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kMaxKeyFileBytes = kMiB;
constexpr const char* kKeyVariable = "TARN_API_KEY";
/// What is left of an answer after the drain is sent within this time.
constexpr std::chrono::seconds kLastBytes{1};

struct Options {
  ModelOptions model;
  std::string host = "127.0.0.1";
  int64_t port = 8080;
  std::string name;
  std::string store;
  bool no_flush = false;
  int64_t keep_versions = 4;
  std::string save = "turn";
  int64_t ttl = 0;
  std::string owner;
  int64_t lease_seconds = 30;
  std::string key_file;
  std::string cors;
  int64_t drain_seconds = 30;
  int64_t turn_seconds = 600;
  int64_t max_tokens = 4096;
  int64_t max_running = 256;
  int64_t prompt_budget = serve::EngineOptions().prompt_budget;
  int64_t queue = 1024;
  int64_t queue_tokens = 1'000'000;
  int64_t memory_mib = 0;
  int64_t body_kib = 2048;
  int64_t connections = 10'000;
  int64_t per_client = 64;
  int64_t workers = 16;
  bool access_log = false;
};

/// The name by which clients call the model: --name, or the folder's, or the own model's.
std::string model_name(const Options& options) {
  if (!options.name.empty()) return options.name;
  if (options.model.folder.empty()) return kOwnModelName;
  const auto path = std::filesystem::path(options.model.folder).lexically_normal();
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  return name.empty() || name == "." || name == ".." ? "model" : name;
}

/// A name that clients use as that of a file: letters, digits and "._-", no dot in front.
std::string file_name(const std::string& name) {
  std::string file;
  for (const char c : name) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || (c == '.' && !file.empty());
    file += is_plain ? c : '_';
  }
  return file;
}

/// --store, or a database of the model's name where this user's programs keep their state: systemd's
/// folder for the service, or that of the XDG base directory specification.
Result<std::string> store_url(const Options& options) {
  if (!options.store.empty()) return options.store;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  std::filesystem::path folder = variable("STATE_DIRECTORY");
  if (folder.empty() && !variable("XDG_STATE_HOME").empty()) {
    folder = variable("XDG_STATE_HOME") / "tarn";
  }
  if (folder.empty() && !variable("HOME").empty()) {
    folder = variable("HOME") / ".local/state/tarn";
  }
  if (!folder.is_absolute()) {
    return invalid_argument(
        "got none, and neither STATE_DIRECTORY, XDG_STATE_HOME nor HOME names a folder for it",
        "--store");
  }
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    return Error{ErrorCode::kIo, "cannot be made: " + failed.message(), folder.string()};
  }
  return "sqlite:" + (folder / (file_name(model_name(options)) + ".db")).string();
}

/// A store as messages name it: without what an address may hold of users and passwords.
std::string shown_store(const std::string& url) {
  const bool is_file = url.starts_with("sqlite:") || url.starts_with("dir:");
  return is_file ? url : url.substr(0, url.find(':') + 1);
}

Result<std::vector<serve::api::ApiKey>> read_keys(const Options& options) {
  const char* variable = std::getenv(kKeyVariable);
  const bool in_variable = variable != nullptr && *variable != '\0';
  if (options.key_file.empty()) {
    if (!in_variable) return std::vector<serve::api::ApiKey>();
    return serve::api::parse_api_keys(variable, kKeyVariable);
  }
  if (in_variable) {
    return invalid_argument(fmt::format("got keys in {} too, wanted one of both", kKeyVariable),
                            "--api-key-file");
  }
  TARN_ASSIGN(const std::string text, read_file(options.key_file, kMaxKeyFileBytes));
  return serve::api::parse_api_keys(text, options.key_file);
}

serve::ServiceOptions service_options(const Options& options) {
  serve::ServiceOptions service;
  service.engine.threads = static_cast<int>(options.model.threads);
  service.engine.max_running = options.max_running;
  service.engine.prompt_budget = options.prompt_budget;
  service.engine.max_queued_requests = options.queue;
  service.engine.max_queued_tokens = options.queue_tokens;
  service.engine.memory_limit_bytes = options.memory_mib * kMiB;
  service.owner = options.owner;
  service.lease_seconds = options.lease_seconds;
  return service;
}

serve::http::ServerOptions server_options(const Options& options) {
  serve::http::ServerOptions server;
  server.address = options.host;
  server.port = static_cast<int>(options.port);
  server.workers = static_cast<int>(options.workers);
  server.limits.body_bytes = options.body_kib << 10;
  server.limits.connections = options.connections;
  server.limits.connections_per_address = options.per_client;
  server.limits.requests_per_key = options.per_client;
  server.limits.queued_requests = options.queue;
  server.access_log = options.access_log;
  // Who watches the server must hear from it while its workers wait for the store.
  server.urgent = [](const serve::http::Request& request) {
    return request.path == "/livez" || request.path == "/readyz" || request.path == "/metrics";
  };
  return server;
}

/// A folder of model folders is taken for one of them easily.
Status check_model_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::is_directory(folder, failed) || fs::exists(fs::path(folder) / "config.json", failed)) {
    return {};
  }
  std::string hint;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::error_code unreadable;
    const std::string path = entry->path().string();
    if (!fs::exists(entry->path() / "config.json", unreadable)) continue;
    if (hint.empty() || path < hint) hint = path;
  }
  if (!hint.empty()) hint = ", wanted one such as " + hint;
  return Error{ErrorCode::kNotFound, "is no model folder: it has no config.json" + hint, folder};
}

/// Every connection is a descriptor, and the usual limit is far below what is allowed.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  // Refused connections are all that a failure costs.
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
}

std::string url_of(const Options& options, int port) {
  const bool is_v6 = options.host.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + options.host + "]" : options.host;
  return fmt::format("http://{}:{}", host, port);
}

void announce(const Options& options, const std::string& store,
              const serve::SessionService& service, int port, bool keys, Context& context) {
  const std::string url = url_of(options, port);
  const char* durability = serve::durability_name(service.durability());
  context.console.line(Json::Object{{"event", "listening"},
                                    {"url", url},
                                    {"host", options.host},
                                    {"port", port},
                                    {"model", model_name(options)},
                                    {"store", shown_store(store)},
                                    {"durability", durability},
                                    {"owner", service.owner()},
                                    {"keys", keys}});
  context.console.sentence(fmt::format("serving {} at {}; sessions are in {} at level \"{}\"",
                                       model_name(options), url, shown_store(store), durability));
  const bool is_local = options.host == "127.0.0.1" || options.host == "::1";
  if (!is_local && !keys) {
    context.console.sentence("everybody who reaches this address may use it: no API keys are set");
  }
}

/// Ends everything by the deadline, saved. The second signal ends the program at once.
void drain(const Options& options, serve::SessionService& service, Server& server,
           Context& context) {
  context.console.sentence(fmt::format(
      "stopping: running turns have {} s; once more to end at once", options.drain_seconds));
  const auto drained =
      service.drain(serve::Clock::now() + std::chrono::seconds(options.drain_seconds));
  server.drain(Server::Clock::now() + kLastBytes);
  context.console.line(Json::Object{{"event", "stopped"},
                                    {"cancelled", drained.cancelled},
                                    {"saved", drained.saved},
                                    {"failed", drained.failed}});
  context.console.sentence(
      fmt::format("stopped; turns that were cut: {}, sessions that were saved: {}",
                  drained.cancelled, drained.saved));
  if (drained.failed > 0) {
    context.finding = fmt::format("{} sessions could not be saved", drained.failed);
  }
}

Status run(const Options& options, Context& context) {
  if (!options.cors.empty() && !serve::api::is_origin(options.cors)) {
    return invalid_argument("got " + json_quote(options.cors) +
                                ", wanted an origin as browsers send it, such as "
                                "https://example.org or http://localhost:3000",
                            "--cors");
  }
  TARN_ASSIGN(auto keys, read_keys(options));
  const bool has_keys = !keys.empty();
  TARN_ASSIGN(const std::string url, store_url(options));
  std::unique_ptr<serve::SessionService> service;
  {
    const PromptStop stop(context);
    if (!options.model.folder.empty()) {
      TARN_RETURN_IF_ERROR(check_model_folder(options.model.folder));
    }
    TARN_ASSIGN(const auto model, options.model.load());
    serve::StoreOptions store_options;
    store_options.sync = !options.no_flush;
    store_options.keep_versions = static_cast<int>(options.keep_versions);
    TARN_ASSIGN(auto store, serve::open_store(url, store_options));
    TARN_ASSIGN(service,
                serve::SessionService::create(model, service_options(options), std::move(store)));
  }
  serve::api::ApiOptions api_options;
  api_options.model_name = model_name(options);
  api_options.version = TARN_VERSION;
  api_options.keys = std::move(keys);
  api_options.cors_origin = options.cors;
  api_options.limits.max_tokens = options.max_tokens;
  api_options.default_ttl_ms = options.ttl * 1000;
  api_options.default_save =
      options.save == "manual" ? serve::SavePolicy::kManual : serve::SavePolicy::kTurn;
  api_options.turn_seconds = options.turn_seconds;
  serve::api::Api api(*service, std::move(api_options));

  if (options.access_log) {
    set_log_sink([](LogLevel level, std::string_view message) {
      if (level == LogLevel::kInfo) {
        std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
      } else if (level > LogLevel::kInfo) {
        Console(false).sentence(std::string(message));
      }
    });
  }
  raise_descriptor_limit();
  serve::http::ServerOptions http_options = server_options(options);
  http_options.headers = serve::api::cors_headers(options.cors);
  http_options.key = [&api](const serve::http::Request& request) { return api.client(request); };
  auto started = Server::start(
      std::move(http_options),
      [&api](const serve::http::Request& request, std::shared_ptr<serve::http::Exchange> exchange) {
        api.handle(request, exchange);
      });
  if (!started.ok()) {
    Error error = std::move(started).error();
    if (error.where == "address") error.where = "--host";
    return error;
  }
  const auto server = std::move(*started);
  api.watch(server->counters());
  announce(options, url, *service, server->port(), has_keys, context);
  while (!context.cancel.load()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  drain(options, *service, *server, context);
  return {};
}

void add_limits(Command& command, Options& options) {
  command.integer("--max-tokens", options.max_tokens, 1, 1'000'000'000,
                  "most tokens that one turn may draw (default: 4096)");
  command.integer("--turn-seconds", options.turn_seconds, 0, 86'400,
                  "time of a whole turn, waiting included; 0: no limit (default: 600)");
  command.integer("--max-running", options.max_running, 1, 65'536,
                  "turns that compute together (default: 256)");
  command.integer("--prompt-budget", options.prompt_budget, 1, 1'000'000,
                  "prompt tokens read between two steps of running turns (default: 32)");
  command.integer("--queue", options.queue, 1, 1'000'000, "turns that may wait (default: 1024)");
  command.integer("--queue-tokens", options.queue_tokens, 1, 1'000'000'000,
                  "tokens of their prompts, and of any one prompt (default: 1000000)");
  command.integer("--memory-mib", options.memory_mib, 0, int64_t{1} << 30,
                  fmt::format("memory of states; 0: no limit (default: half of the machine's, {})",
                              options.memory_mib));
  command.integer("--body-kib", options.body_kib, 1, int64_t{1} << 20,
                  "largest body of a request (default: 2048)");
  command.integer("--connections", options.connections, 1, 1'000'000,
                  "connections at once (default: 10000)");
  command.integer("--per-client", options.per_client, 0, 1'000'000,
                  "connections of an address, requests of a key; 0: no limit (default: 64)");
  command.integer("--workers", options.workers, 1, 1024,
                  "threads that wait for the store (default: 16)");
}

}  // namespace

void add_serve(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  options->memory_mib = std::min(runtime::machine_memory_bytes() / 2 / kMiB, int64_t{1} << 30);
  Command command =
      program.add(selection, "serve", "Answer requests over HTTP as OpenAI's clients make them",
                  [options](Context& context) { return run(*options, context); });
  options->model.add_to(command, "the program's own, " + std::string(kOwnModelName));
  command.section("Address");
  command.text("--host", options->host, "ADDRESS", "numeric address (default: 127.0.0.1)");
  command.integer("--port", options->port, 0, 65'535, "0: any free one (default: 8080)");
  command.text("--name", options->name, "NAME", "of the model (default: its folder's)");
  command.section("Sessions");
  command.text("--store", options->store, "URL",
               "where sessions are kept: memory:, dir:/path, sqlite:/path/file.db, postgresql://…, "
               "redis://… (default: sqlite: in the user's folder for state)");
  command.flag("--no-flush", options->no_flush, "dir and sqlite do not wait for the disk");
  command.integer("--keep-versions", options->keep_versions, 1, 1000,
                  "versions of a session that can be rolled back to (default: 4)");
  command.choice("--save", options->save, {"turn", "manual"},
                 "sessions that do not say are saved with every turn (default) or when asked");
  command.integer(
      "--ttl", options->ttl, 0, serve::StoreOptions().max_ttl_ms / 1000,
      "seconds without use after which sessions that do not say go; 0: never (default)");
  command.text(
      "--owner", options->owner, "NAME",
      "of this server, UNIQUE among those that run on a store: two servers of one name lose "
      "turns (default: made up)");
  command.integer("--lease-seconds", options->lease_seconds, 3, 3600,
                  "how long others wait for the sessions of a server that died (default: 30)");
  command.section("Access");
  command.text("--api-key-file", options->key_file, "FILE",
               "one \"name:key\" or \"key\" per line; or TARN_API_KEY in the environment");
  command.text("--cors", options->cors, "ORIGIN", "whose pages may call (default: none)");
  command.flag("--access-log", options->access_log, "one JSON line per request on stderr");
  command.section("Limits");
  command.integer("--drain-seconds", options->drain_seconds, 0, 86'400,
                  "for running turns after SIGTERM or Ctrl-C (default: 30)");
  add_limits(command, *options);
}

}  // namespace tarn::cli
