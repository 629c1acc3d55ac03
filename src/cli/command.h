#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/console.h"

namespace CLI {
class App;
}

namespace tarn::cli {

/// What a command runs with.
struct Context {
  Console& console;
  const std::atomic<bool>& cancel;  ///< raised by Ctrl-C
  /// What a check found wrong, as a sentence: its results are printed in full, and the exit is 1.
  std::string finding;
};

using Action = std::function<Status(Context&)>;

/// What the command line asked for, filled while it is parsed.
struct Selection {
  Action action;
  bool json = false;
};

/// Whether a word of the command line turns --json on: "--json", or "--json=" with any value but the
/// parser's words for off. For where the parser has no answer: failed parses, other programs' words.
bool asks_json(std::string_view word);

/// A command or subcommand and its options: the one place where the option parser is named, in
/// command.cpp. Values are bound by reference and must live as long as the command's action.
/// Numbers out of range and unknown choices are usage errors that say what was wanted.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  /// A subcommand that runs `action`; it gets a --json flag.
  Command add(Selection& selection, const std::string& name, const std::string& help,
              Action action);
  /// A subcommand that only has subcommands, one of which is required.
  Command group(const std::string& name, const std::string& help);
  /// A subcommand that leaves every argument behind its name, --help included, to `action`.
  void pass_through(Selection& selection, const std::string& name, const std::string& help,
                    std::function<Status(const std::vector<std::string>&)> action);

  /// A required word without a flag, shown as `shown`.
  void positional(const std::string& name, std::string& value, const std::string& shown,
                  const std::string& help);
  /// The same, but it may be left out.
  void optional_positional(const std::string& name, std::string& value, const std::string& shown,
                           const std::string& help);
  /// One or more words without a flag; the last of the positionals.
  void positionals(const std::string& name, std::vector<std::string>& values,
                   const std::string& shown, const std::string& help);
  /// --help lists the options that follow under this heading.
  void section(const std::string& heading);
  void flag(const std::string& flags, bool& value, const std::string& help);
  void text(const std::string& flags, std::string& value, const std::string& shown,
            const std::string& help);
  void required_text(const std::string& flags, std::string& value, const std::string& shown,
                     const std::string& help);
  /// Several words behind one flag, or separated by commas.
  void texts(const std::string& flags, std::vector<std::string>& values, const std::string& shown,
             const std::string& help);
  void required_texts(const std::string& flags, std::vector<std::string>& values,
                      const std::string& shown, const std::string& help);
  void choice(const std::string& flags, std::string& value, const std::vector<std::string>& choices,
              const std::string& help);
  void choices(const std::string& flags, std::vector<std::string>& values,
               const std::vector<std::string>& choices, const std::string& help);
  void integer(const std::string& flags, int64_t& value, int64_t min, int64_t max,
               const std::string& help);
  void number(const std::string& flags, double& value, double min, double max,
              const std::string& help);
  /// Integers separated by commas, each in the range.
  void integers(const std::string& flags, std::vector<int64_t>& values, int64_t min, int64_t max,
                const std::string& help);
  /// --threads: the default is what the process may use.
  void threads(int64_t& value);

  /// At most one of these options may be given.
  void exclusive(const std::vector<std::string>& flags);
  /// Both options or none.
  void together(const std::string& one, const std::string& other);

 private:
  CLI::App* app_;
};

/// One per file; `tarn --help` lists them in the order of main.cpp.
void add_train(Command& program, Selection& selection);
void add_eval(Command& program, Selection& selection);
void add_transcribe(Command& program, Selection& selection);
void add_generate(Command& program, Selection& selection);
void add_state(Command& program, Selection& selection);
void add_init(Command& program, Selection& selection);
void add_info(Command& program, Selection& selection);
void add_mixers(Command& program, Selection& selection);
void add_check(Command& program, Selection& selection);
void add_bench(Command& program, Selection& selection);
void add_report(Command& program, Selection& selection);
void add_serve(Command& program, Selection& selection);
void add_doctor(Command& program, Selection& selection);

}  // namespace tarn::cli
