#include "cli/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/threads.h"

namespace tarn::cli {
namespace {

template <class T>
bool parse_all(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

CLI::Validator integer_between(int64_t min, int64_t max) {
  return CLI::Validator(
      [min, max](std::string& text) {
        int64_t value = 0;
        if (parse_all(text, value) && value >= min && value <= max) return std::string();
        return fmt::format("got \"{}\", wanted an integer from {} to {}", text, min, max);
      },
      "");
}

CLI::Validator number_between(double min, double max) {
  return CLI::Validator(
      [min, max](std::string& text) {
        double value = 0;
        if (parse_all(text, value) && value >= min && value <= max) return std::string();
        return fmt::format("got \"{}\", wanted a number from {:g} to {:g}", text, min, max);
      },
      "");
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) { return text.empty() ? "got \"\", wanted some text" : std::string(); },
      "");
}

CLI::Validator one_of(std::vector<std::string> choices) {
  return CLI::Validator(
      [choices = std::move(choices)](std::string& text) {
        for (const std::string& choice : choices) {
          if (text == choice) return std::string();
        }
        return fmt::format("got \"{}\", wanted {}", text, fmt::join(choices, ", "));
      },
      "");
}

void parse_element(const std::string& text, std::string& value) { value = text; }
void parse_element(const std::string& text, int64_t& value) { parse_all(text, value); }

/// An option of elements separated by commas, each checked. The parser's own delimiter would drop
/// empty elements, so the words are split here.
template <class T>
CLI::Option* add_list(CLI::App* app, const std::string& flags, std::vector<T>& values,
                      const CLI::Validator& check, const std::string& help) {
  const std::string name = flags.substr(flags.rfind(',') + 1);
  auto read = [&values, check, name](const CLI::results_t& words) {
    values.clear();
    for (const std::string& word : words) {
      for (size_t begin = 0; begin <= word.size();) {
        const size_t end = std::min(word.find(',', begin), word.size());
        std::string element = word.substr(begin, end - begin);
        const std::string wrong = check(element);
        if (!wrong.empty()) throw CLI::ValidationError(name, wrong);
        parse_element(element, values.emplace_back());
        begin = end + 1;
      }
    }
    return true;
  };
  return app->add_option(flags, CLI::callback_t(read), help)
      ->type_size(1)
      ->expected(CLI::detail::expected_max_vector_size);
}

}  // namespace

bool asks_json(std::string_view word) {
  constexpr std::string_view kFlag = "--json";
  if (word.substr(0, kFlag.size()) != kFlag) return false;
  word.remove_prefix(kFlag.size());
  if (word.empty()) return true;
  return word.front() == '=' && word != "=false" && word != "=off" && word != "=no" && word != "=0";
}

Command Command::add(Selection& selection, const std::string& name, const std::string& help,
                     Action action) {
  CLI::App* command = app_->add_subcommand(name, help);
  command->add_flag("--json", selection.json, "machine-readable output on stdout");
  command->callback([&selection, action = std::move(action)] { selection.action = action; });
  return Command(command);
}

Command Command::group(const std::string& name, const std::string& help) {
  CLI::App* command = app_->add_subcommand(name, help);
  command->require_subcommand(1);
  return Command(command);
}

void Command::pass_through(Selection& selection, const std::string& name, const std::string& help,
                           std::function<Status(const std::vector<std::string>&)> action) {
  CLI::App* command = app_->add_subcommand(name, help);
  command->prefix_command();
  command->set_help_flag();
  command->callback([command, &selection, action = std::move(action)] {
    const std::vector<std::string> words = command->remaining();
    selection.json = std::any_of(words.begin(), words.end(), asks_json);
    selection.action = [action, arguments = words](Context&) { return action(arguments); };
  });
}

void Command::positional(const std::string& name, std::string& value, const std::string& shown,
                         const std::string& help) {
  app_->add_option(name, value, help)->required()->check(not_empty())->type_name(shown);
}

void Command::optional_positional(const std::string& name, std::string& value,
                                  const std::string& shown, const std::string& help) {
  app_->add_option(name, value, help)->check(not_empty())->type_name(shown);
}

void Command::positionals(const std::string& name, std::vector<std::string>& values,
                          const std::string& shown, const std::string& help) {
  app_->add_option(name, values, help)->required()->check(not_empty())->type_name(shown);
}

void Command::section(const std::string& heading) { app_->option_defaults()->group(heading); }

void Command::flag(const std::string& flags, bool& value, const std::string& help) {
  app_->add_flag(flags, value, help);
}

void Command::text(const std::string& flags, std::string& value, const std::string& shown,
                   const std::string& help) {
  app_->add_option(flags, value, help)->check(not_empty())->type_name(shown);
}

void Command::required_text(const std::string& flags, std::string& value, const std::string& shown,
                            const std::string& help) {
  app_->add_option(flags, value, help)->required()->check(not_empty())->type_name(shown);
}

void Command::texts(const std::string& flags, std::vector<std::string>& values,
                    const std::string& shown, const std::string& help) {
  add_list(app_, flags, values, not_empty(), help)->type_name(shown);
}

void Command::required_texts(const std::string& flags, std::vector<std::string>& values,
                             const std::string& shown, const std::string& help) {
  add_list(app_, flags, values, not_empty(), help)->required()->type_name(shown);
}

void Command::choice(const std::string& flags, std::string& value,
                     const std::vector<std::string>& choices, const std::string& help) {
  app_->add_option(flags, value, help)->check(one_of(choices))->type_name("NAME");
}

void Command::choices(const std::string& flags, std::vector<std::string>& values,
                      const std::vector<std::string>& choices, const std::string& help) {
  add_list(app_, flags, values, one_of(choices), help)->type_name("NAME");
}

void Command::integer(const std::string& flags, int64_t& value, int64_t min, int64_t max,
                      const std::string& help) {
  app_->add_option(flags, value, help)->check(integer_between(min, max))->type_name("N");
}

void Command::number(const std::string& flags, double& value, double min, double max,
                     const std::string& help) {
  app_->add_option(flags, value, help)->check(number_between(min, max))->type_name("X");
}

void Command::integers(const std::string& flags, std::vector<int64_t>& values, int64_t min,
                       int64_t max, const std::string& help) {
  add_list(app_, flags, values, integer_between(min, max), help)->type_name("N,N");
}

void Command::threads(int64_t& value) {
  value = available_threads();
  integer("--threads", value, 1, 1024, fmt::format("threads that compute (default: {})", value));
}

void Command::exclusive(const std::vector<std::string>& flags) {
  for (const std::string& one : flags) {
    for (const std::string& other : flags) {
      if (one != other) app_->get_option(one)->excludes(app_->get_option(other));
    }
  }
}

void Command::together(const std::string& one, const std::string& other) {
  app_->get_option(one)->needs(app_->get_option(other));
  app_->get_option(other)->needs(app_->get_option(one));
}

}  // namespace tarn::cli
