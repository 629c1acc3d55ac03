#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/trainer_program.h"

namespace tarn::cli {
namespace {

/// Becomes tarn-train with the same arguments; returns only when that is impossible.
Status run(const std::vector<std::string>& arguments) {
  const std::string program = find_trainer();
  if (program.empty()) {
    return Error{
        ErrorCode::kIo,
        fmt::format("cannot start tarn-train, which is neither beside {} nor on "
                    "PATH; build it with: cd {} && ./scripts/setup && cmake --preset release && "
                    "cmake --build --preset release --target tarn-train",
                    own_path(), TARN_SOURCE_DIR),
        {}};
  }
  std::vector<std::string> all = {program, "train"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(all.size() + 1);
  for (std::string& argument : all) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  return Error{ErrorCode::kIo, fmt::format("cannot start it: {}", std::strerror(errno)), program};
}

}  // namespace

void add_train(Command& program, Selection& selection) {
  program.pass_through(selection, "train", "Train a model (tarn train --help; needs tarn-train)",
                       run);
}

}  // namespace tarn::cli
