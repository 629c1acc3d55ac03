// tarn-train: what of Tarn needs libtorch. `tarn train …` and `tarn bench train …` start it with the
// same words.

#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json_override.h"
#include "train/config.h"
#include "train/step_bench.h"
#include "train/torch_threads.h"
#include "train/trainer.h"

namespace {

using tarn::Error;
using tarn::ErrorCode;
using tarn::Json;
using tarn::Result;
using tarn::train::StepBenchResult;
using tarn::train::TrainConfig;

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitSignal = 128;  // plus the signal's number

std::atomic<int> stop_signal{0};

void on_signal(int signal) { stop_signal.store(signal); }

/// The first SIGINT or SIGTERM asks for a checkpoint and an end; the second one kills.
void handle_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool json_errors = false;

/// Ends the program when memory is exhausted, wherever that is: kernels and threads cannot throw.
/// Allocates nothing. What torch allocates comes as an exception instead.
[[noreturn]] void on_memory_exhausted() {
  std::fflush(stdout);
  constexpr std::string_view kSentence = "tarn-train: not enough memory\n";
  constexpr std::string_view kJson =
      "{\"error\":{\"code\":\"resource\",\"message\":\"not enough memory\",\"where\":\"\"}}\n";
  // With nothing left to say it, the exit status alone remains.
  if (write(STDERR_FILENO, kSentence.data(), kSentence.size()) < 0) _exit(kExitFailed);
  if (json_errors && write(STDOUT_FILENO, kJson.data(), kJson.size()) < 0) _exit(kExitFailed);
  _exit(kExitFailed);
}

/// Starts the program once more with settings that libraries read when they are loaded, before
/// main(); what the user has set is kept. OpenMP's threads sleep while they wait instead of spinning:
/// on a machine that has other work, spinning costs ten times the work itself. The allocator asks for
/// huge pages: rows of activations lie far apart.
void start_with_settings(char** argv) {
  if (std::getenv("TARN_TRAIN_SETTINGS") != nullptr) return;
  setenv("TARN_TRAIN_SETTINGS", "1", 1);
  if (std::getenv("GOMP_SPINCOUNT") == nullptr) setenv("OMP_WAIT_POLICY", "passive", 0);
  setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 0);
  execv("/proc/self/exe", argv);  // returns only when it fails: then without them
}

struct Arguments {
  std::string config;
  std::string device = "cpu";
  std::vector<std::string> overrides;
  int threads = 0;
  tarn::train::TrainOptions options;
  int64_t profile = 0;  ///< updates to profile instead of training; 0: train
  // Of `bench`:
  int64_t batch = 0;
  int64_t tokens = 0;
  int64_t steps = 10;
  std::string precision;
};

Result<TrainConfig> read_config(const Arguments& arguments) {
  constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
  TARN_ASSIGN(const std::string text, tarn::read_file(arguments.config, kMaxConfigBytes));
  TARN_ASSIGN(Json json, tarn::parse_json(text, arguments.config));
  for (const std::string& assignment : arguments.overrides) {
    TARN_RETURN_IF_ERROR(tarn::apply_override(json, assignment));
  }
  return tarn::train::parse_train_config(json, arguments.config);
}

Result<std::unique_ptr<tarn::ThreadPool>> make_pool(const Arguments& arguments) {
  if (arguments.device != "cpu") {
    return Error{ErrorCode::kUnsupported,
                 "\"" + arguments.device + "\" is not available: this build has CPU kernels only",
                 "--device"};
  }
  return tarn::train::torch_thread_pool(arguments.threads > 0 ? arguments.threads
                                                              : tarn::available_threads());
}

void print(const StepBenchResult& result, bool json) {
  fmt::print("{}", json ? to_json(result).dump() + "\n" : to_text(result));
}

/// `train`: exit status, or the error.
Result<int> train(const Arguments& arguments) {
  TARN_ASSIGN(const auto pool, make_pool(arguments));
  TARN_ASSIGN(const TrainConfig config, read_config(arguments));
  const tarn::train::TrainOptions& options = arguments.options;
  if (arguments.profile > 0) {
    if (options.resume || !options.out_directory.empty()) {
      return tarn::invalid_argument("writes nothing: --out and --resume do not go with it",
                                    "--profile");
    }
    tarn::train::StepBenchOptions bench;
    bench.steps = arguments.profile;
    bench.stop = &stop_signal;
    TARN_ASSIGN(const StepBenchResult result,
                tarn::train::profile_training(config, options.data_directory, bench, pool.get()));
    print(result, options.json);
    return 0;
  }
  if (options.out_directory.empty()) {
    return tarn::invalid_argument("is required, unless --profile is given", "--out");
  }
  TARN_ASSIGN(const tarn::train::TrainResult result,
              tarn::train::train(config, options, pool.get()));
  return result.stopped ? kExitSignal + stop_signal.load() : 0;
}

/// `bench`: updates on random symbols.
Result<int> bench(const Arguments& arguments) {
  TARN_ASSIGN(const auto pool, make_pool(arguments));
  TARN_ASSIGN(TrainConfig config, read_config(arguments));
  if (!arguments.precision.empty()) {
    config.training.precision = *tarn::dtype_from_name(arguments.precision);
  }
  if (config.model.modality == tarn::model::Modality::kFrames) {
    return Error{
        ErrorCode::kUnsupported,
        "the model is over frames, wanted one over symbols; train --profile times updates on "
        "its own data",
        arguments.config};
  }
  const int64_t count = arguments.batch > 0 ? arguments.batch : config.training.batch_size;
  const int64_t tokens = arguments.tokens > 0 ? arguments.tokens : config.model.max_tokens;
  if (tokens == 0 || (config.model.max_tokens > 0 && tokens > config.model.max_tokens)) {
    return tarn::invalid_argument(
        fmt::format("got {}, and model.max_tokens is {}", tokens, config.model.max_tokens),
        "--tokens");
  }
  const tarn::train::Batch batch =
      tarn::train::random_batch(config.model, count, tokens, config.training.seed);
  tarn::train::StepBenchOptions options;
  options.steps = arguments.steps;
  options.stop = &stop_signal;
  TARN_ASSIGN(const StepBenchResult result,
              bench_steps(
                  config, [&](int64_t) -> const tarn::train::Batch& { return batch; }, options,
                  pool.get()));
  print(result, arguments.options.json);
  return 0;
}

int report(const Error& error, bool json) {
  fmt::print(stderr, "tarn-train: {}\n", error.to_string());
  if (json) {
    const Json document =
        Json::Object{{"error", Json::Object{{"code", tarn::error_code_name(error.code)},
                                            {"message", error.message},
                                            {"where", error.where}}}};
    fmt::print("{}\n", document.dump());
  }
  const bool failed = error.code == ErrorCode::kIo || error.code == ErrorCode::kResource ||
                      error.code == ErrorCode::kCancelled;
  return failed ? kExitFailed : kExitUsage;
}

/// An exception as an error. What torch throws goes on with pages of stack frames; its allocator has no
/// type of exception of its own.
Error error_of(const std::exception& exception) {
  const std::string_view text = exception.what();
  if (text.find("can't allocate memory") != std::string_view::npos) {
    return {ErrorCode::kResource, "not enough memory", {}};
  }
  return {ErrorCode::kResource, std::string(text.substr(0, text.find('\n'))), {}};
}

/// Runs a subcommand; Ctrl-C has it end early.
int run(Result<int> (*command)(const Arguments&), const Arguments& arguments) {
  handle_signals();
  json_errors = arguments.options.json;
  const Result<int> status = [&]() -> Result<int> {
    try {
      return command(arguments);
    } catch (const std::exception& exception) {
      return error_of(exception);
    }
  }();
  const int code = status.ok() ? *status : report(status.error(), arguments.options.json);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return report({ErrorCode::kIo, "cannot write the output", "stdout"}, false);
}

void add_common(CLI::App& command, Arguments& arguments) {
  command.add_option("--set", arguments.overrides, "Override, e.g. training.updates=100")
      ->take_all();
  command.add_option("--device", arguments.device, "cpu (default), the only one of this build")
      ->type_name("NAME");
  command.add_option("--threads", arguments.threads, "Threads (default: all that are available)")
      ->check(CLI::Range(1, 1024));
}

void add_train(CLI::App& command, Arguments& arguments) {
  command.add_option("config", arguments.config, "Training config (JSON)")->required();
  command.add_option("--data", arguments.options.data_directory, "Folder of the data set");
  command.add_option("--out", arguments.options.out_directory,
                     "Folder for model, log, checkpoint; required, unless --profile is given");
  command.add_flag("--resume", arguments.options.resume, "Continue the checkpoint in --out");
  command.add_flag("--json", arguments.options.json, "Events as JSON lines on stdout");
  command
      .add_option("--profile", arguments.profile,
                  "Time N updates part by part and print where the time goes; nothing is written")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N");
  add_common(command, arguments);
}

void add_bench(CLI::App& command, Arguments& arguments) {
  command.add_option("--config", arguments.config, "Training config (JSON)")->required();
  command.add_option("--batch", arguments.batch, "Sequences per step (default: the config's)")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--tokens", arguments.tokens, "Tokens per sequence (default: max_tokens)")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--steps", arguments.steps, "Timed steps, after two that are not (default: 10)")
      ->check(CLI::Range(1, 1'000'000));
  command.add_option("--precision", arguments.precision, "f32 or bf16 (default: the config's)")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->type_name("NAME");
  command.add_flag("--json", arguments.options.json, "One JSON document on stdout");
  add_common(command, arguments);
}

}  // namespace

int main(int argc, char** argv) {
  start_with_settings(argv);
  // Torch allocates every activation afresh; keeping the pages saves the faults on each of them.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);  // never

  std::set_new_handler(on_memory_exhausted);

  Arguments arguments;
  arguments.options.stop = &stop_signal;
  CLI::App app(
      "Trains Tarn models and times it. Exit codes: 0 done, 1 failed or stopped, 2 bad usage or "
      "input, 130 training stopped by Ctrl-C with a checkpoint.",
      "tarn-train");
  app.require_subcommand(1);
  CLI::App* train_command = app.add_subcommand("train", "Train the model of a config");
  CLI::App* bench_command = app.add_subcommand("bench", "Time updates on random symbols");
  add_train(*train_command, arguments);
  add_bench(*bench_command, arguments);
  try {
    app.parse(argc, argv);
    return run(train_command->parsed() ? train : bench, arguments);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    const bool json = std::any_of(argv + 1, argv + argc, [](const char* word) {
      return std::string_view(word).starts_with("--json");
    });
    return report(tarn::invalid_argument(error.what(), "command line"), json);
  } catch (const std::exception& exception) {
    return report(error_of(exception), false);
  }
}
