#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/threads.h"
#include "cli/command.h"
#include "onednn/onednn.h"

namespace tarn::cli {
namespace {

std::atomic<bool> cancel_requested{false};

/// The first Ctrl-C, SIGTERM or SIGHUP asks the command to stop, a second of any kills the program.
void on_signal(int) {
  cancel_requested.store(true);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGHUP, SIG_DFL);
}

void install_signal_handlers() {
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Under nohup(1) the end of the terminal is no reason to stop.
  struct sigaction hangup;
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaction(SIGHUP, &action, nullptr);
  }
  std::signal(SIGXFSZ, SIG_IGN);  // a file over the allowed size is then a failed write
}

/// Gives closed standard streams a place, so that no file gets their numbers and their text.
/// Writing to such a stdin or stdout still fails.
void fill_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    if (open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

bool json_errors = false;

/// Ends the program when memory is exhausted, wherever that is: kernels and threads cannot throw.
/// Allocates nothing.
[[noreturn]] void on_memory_exhausted() {
  std::fflush(stdout);
  constexpr std::string_view kSentence = "tarn: not enough memory\n";
  constexpr std::string_view kJson =
      "{\"error\":{\"code\":\"resource\",\"message\":\"not enough memory\",\"where\":\"\"}}\n";
  // With nothing left to say it, the exit status alone remains.
  if (write(STDERR_FILENO, kSentence.data(), kSentence.size()) < 0) _exit(1);
  if (json_errors && write(STDOUT_FILENO, kJson.data(), kJson.size()) < 0) _exit(1);
  _exit(1);
}

/// The one place where kinds of failure become exit statuses: 1 failed, 2 bad usage or input.
int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return 2;
    case ErrorCode::kNotFound: return 2;
    case ErrorCode::kCorrupt: return 2;
    case ErrorCode::kResource: return 2;
    case ErrorCode::kUnsupported: return 2;
    case ErrorCode::kIo: return 1;
    case ErrorCode::kCancelled: return 1;
    case ErrorCode::kConflict: return 1;
    case ErrorCode::kReadOnly: return 1;
  }
  return 1;
}

void add_commands(Command program, Selection& selection) {
  add_train(program, selection);
  add_eval(program, selection);
  add_transcribe(program, selection);
  add_generate(program, selection);
  add_state(program, selection);
  add_init(program, selection);
  add_info(program, selection);
  add_mixers(program, selection);
  add_check(program, selection);
  add_bench(program, selection);
  add_report(program, selection);
  add_serve(program, selection);
  add_doctor(program, selection);
}

const Error kStdoutFailed{ErrorCode::kIo, "cannot write the output", "stdout"};

/// Runs what was selected; an exception becomes the failure that is reported.
Status attempt(const Selection& selection, Context& context) {
  try {
    return selection.action(context);
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kIo, exception.what(), {}};
  }
}

/// What a parse error says. The parser only says that a subcommand is missing, whatever word stands
/// in its place.
std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* deepest = &app;
  while (!deepest->get_subcommands().empty()) deepest = deepest->get_subcommands().back();
  std::vector<std::string> names;
  for (const CLI::App* command : deepest->get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  const std::vector<std::string> rest = deepest->remaining();
  if (names.empty() || rest.empty()) return error.what();
  return fmt::format("got \"{}\", wanted one of the commands {}", rest.front(),
                     fmt::join(names, ", "));
}

/// Parses the command line; the exit status when there is nothing left to do, else -1.
int parse(CLI::App& app, int argc, char** argv) {
  const bool json = std::any_of(argv + 1, argv + argc, [](const char* w) { return asks_json(w); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    const int status = app.exit(success);
    Console console(json);
    if (console.flush()) return status;
    console.error(kStdoutFailed);
    return 1;
  } catch (const CLI::ParseError& error) {
    Console(json).error(invalid_argument(usage_sentence(app, error), "command line"));
    return 2;
  }
  return -1;
}

int run(int argc, char** argv) {
  fill_standard_descriptors();
  onednn::install();
  set_log_sink([](LogLevel level, std::string_view message) {
    if (level >= LogLevel::kWarning) Console(false).sentence(std::string(message));
  });
  install_signal_handlers();
  std::set_new_handler(on_memory_exhausted);
  flush_denormals();
  CLI::App app{"Linear-attention transformers: train in parallel, run as an RNN.", "tarn"};
  app.set_version_flag("--version", TARN_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  Selection selection;
  add_commands(Command(&app), selection);
  if (const int status = parse(app, argc, argv); status >= 0) return status;

  json_errors = selection.json;
  Console console(selection.json);
  Context context{console, cancel_requested, {}};
  const Status status = attempt(selection, context);
  console.end_progress();
  if (!status.ok()) {
    console.error(status.error());
    return exit_status(status.error().code);
  }
  if (!console.flush()) {
    console.error(kStdoutFailed);
    return 1;
  }
  if (context.finding.empty()) return 0;
  console.sentence(context.finding);
  return 1;
}

}  // namespace
}  // namespace tarn::cli

int main(int argc, char** argv) {
  try {
    return tarn::cli::run(argc, argv);
  } catch (const std::exception& exception) {
    tarn::cli::Console(false).error({tarn::ErrorCode::kIo, exception.what(), {}});
  }
  return 1;
}
