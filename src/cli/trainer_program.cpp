#include "cli/trainer_program.h"

#include <unistd.h>

#include <cstdlib>
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

}  // namespace tarn::cli
