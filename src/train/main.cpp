// tarn-train: what of Tarn needs libtorch. `tarn train …` starts it with the same words.

#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "train/config.h"
#include "train/torch_threads.h"
#include "train/trainer.h"

namespace {

using tarn::Error;
using tarn::ErrorCode;
using tarn::Json;
using tarn::Result;

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

/// Makes OpenMP's threads sleep while they wait instead of spinning: on a machine that has other
/// work, spinning costs ten times the work itself. libgomp reads the setting when it is loaded,
/// before main(), so the program starts once more with it; a setting of the user's is kept.
void wait_without_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // returns only when it fails: then spin
}

struct Arguments {
  std::string config;
  std::string device = "cpu";
  std::vector<std::string> overrides;
  int threads = 0;
  tarn::train::TrainOptions options;
};

Result<tarn::train::TrainConfig> read_config(const Arguments& arguments) {
  constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
  TARN_ASSIGN(const std::string text, tarn::read_file(arguments.config, kMaxConfigBytes));
  TARN_ASSIGN(Json json, tarn::parse_json(text, arguments.config));
  for (const std::string& assignment : arguments.overrides) {
    TARN_RETURN_IF_ERROR(tarn::train::apply_override(json, assignment));
  }
  return tarn::train::parse_train_config(json, arguments.config);
}

Result<tarn::train::TrainResult> run(const Arguments& arguments) {
  if (arguments.device != "cpu") {
    return Error{ErrorCode::kUnsupported,
                 "\"" + arguments.device + "\" is not available: this build has CPU kernels only",
                 "--device"};
  }
  TARN_ASSIGN(const tarn::train::TrainConfig config, read_config(arguments));
  const auto pool = tarn::train::torch_thread_pool(
      arguments.threads > 0 ? arguments.threads : tarn::available_threads());
  return tarn::train::train(config, arguments.options, pool.get());
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
  return error.code == ErrorCode::kIo || error.code == ErrorCode::kResource ? kExitFailed
                                                                            : kExitUsage;
}

int train(const Arguments& arguments) {
  handle_signals();
  const Result<tarn::train::TrainResult> result = run(arguments);
  if (!result.ok()) return report(result.error(), arguments.options.json);
  return result->stopped ? kExitSignal + stop_signal.load() : 0;
}

}  // namespace

int main(int argc, char** argv) {
  wait_without_spinning(argv);
  // Torch allocates every activation afresh; keeping the pages saves the faults on each of them.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);

  Arguments arguments;
  arguments.options.stop = &stop_signal;
  CLI::App app(
      "Trains Tarn models. Exit codes: 0 done, 1 failed, 2 bad usage or input, "
      "130 stopped by Ctrl-C with a checkpoint.",
      "tarn-train");
  app.require_subcommand(1);
  CLI::App* command = app.add_subcommand("train", "Train the model of a config");
  command->add_option("config", arguments.config, "Training config (JSON)")->required();
  command->add_option("--data", arguments.options.data_directory, "Folder of the data set");
  command->add_option("--out", arguments.options.out_directory, "Folder for model, log, checkpoint")
      ->required();
  command->add_flag("--resume", arguments.options.resume, "Continue the checkpoint in --out");
  command->add_option("--device", arguments.device, "cpu (default), the only one of this build")
      ->type_name("NAME");
  command->add_option("--set", arguments.overrides, "Override, e.g. training.updates=100")
      ->take_all();
  command->add_flag("--json", arguments.options.json, "Events as JSON lines on stdout");
  command->add_option("--threads", arguments.threads, "Threads (default: all that are available)")
      ->check(CLI::Range(1, 1024));
  try {
    app.parse(argc, argv);
    return train(arguments);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    const bool json = std::any_of(argv + 1, argv + argc, [](const char* word) {
      return std::string_view(word).starts_with("--json");
    });
    return report(tarn::invalid_argument(error.what(), "command line"), json);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tarn-train: {}\n", error.what());
    return kExitFailed;
  }
}
