#include "cli/trainer_program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace tarn::cli {
namespace {

constexpr const char* kProgram = "tarn-train";

bool is_executable(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string own_path() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string() : path.string();
}

std::string find_trainer() {
  if (const std::string own = own_path(); !own.empty()) {
    const std::filesystem::path beside = std::filesystem::path(own).parent_path() / kProgram;
    if (is_executable(beside)) return beside.string();
  }
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    const std::string_view folder = rest.substr(0, colon);
    rest.remove_prefix(std::min(colon + 1, rest.size()));
    if (folder.empty()) continue;
    const std::filesystem::path candidate = std::filesystem::path(folder) / kProgram;
    if (is_executable(candidate)) return candidate.string();
  }
  return {};
}

Status become_trainer(const std::string& subcommand, const std::vector<std::string>& arguments) {
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
  std::vector<std::string> all = {program, subcommand};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(all.size() + 1);
  for (std::string& argument : all) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  return Error{ErrorCode::kIo, fmt::format("cannot start it: {}", std::strerror(errno)), program};
}

}  // namespace tarn::cli
