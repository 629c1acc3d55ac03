// The functions at the end take the place of the C library's in this program and the libraries that
// it loads. Each asks the kernel and then notes what was done.
#include "power/disk_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

namespace tarn::power {
namespace {

namespace fs = std::filesystem;

struct Place {
  int folder = -1;  // -1: not below the recorded folder
  std::string name{};
};

struct Recorder {
  std::string root{};
  bool on = false;
  int requests_left = -1;  // -1: no limit
  bool counts_flushes = false;
  bool refused = false;
  int nodes = 0;
  std::map<std::pair<int, std::string>, int> entries{};
  std::map<int, bool> is_folder{};  // by node
  std::map<int, int> open_files{};  // node by descriptor
  std::vector<Operation> log{};
};
Recorder recorder;  // NOLINT: the functions below have no other way to it

int add_node(int folder, const std::string& name, bool is_folder) {
  const int node = ++recorder.nodes;
  recorder.entries[{folder, name}] = node;
  recorder.is_folder[node] = is_folder;
  return node;
}

/// Where a path leads; the last part need not exist.
Place find(int at, const char* path) {
  std::string rest = path;
  int folder = 0;
  if (rest[0] == '/') {
    if (rest == recorder.root) return {0, "."};
    if (!rest.starts_with(recorder.root + "/")) return {};
    rest = rest.substr(recorder.root.size() + 1);
  } else {
    const auto known = recorder.open_files.find(at);
    if (known == recorder.open_files.end()) return {};
    folder = known->second;
  }
  for (size_t slash = 0; (slash = rest.find('/')) != std::string::npos;) {
    const auto entry = recorder.entries.find({folder, rest.substr(0, slash)});
    if (entry == recorder.entries.end()) return {};
    folder = entry->second;
    rest = rest.substr(slash + 1);
  }
  return {folder, rest.empty() ? "." : rest};
}

int node_at(const Place& place) {
  if (place.folder < 0) return -1;
  if (place.name == ".") return place.folder;
  const auto entry = recorder.entries.find({place.folder, place.name});
  return entry == recorder.entries.end() ? -1 : entry->second;
}

int node_of(int fd) {
  const auto known = recorder.open_files.find(fd);
  return recorder.on && known != recorder.open_files.end() ? known->second : -1;
}

/// Whether a request below the folder, for a change or a flush, is answered with EIO.
bool refused(bool is_flush = false) {
  if (recorder.requests_left < 0) return false;
  if (recorder.requests_left > 0) {
    if (is_flush || !recorder.counts_flushes) --recorder.requests_left;
    return false;
  }
  if (!is_flush && recorder.counts_flushes && !recorder.refused) return false;
  recorder.refused = true;
  errno = EIO;
  return true;
}

void note(Operation operation) { recorder.log.push_back(std::move(operation)); }

int recorded_open(int at, const char* path, int flags, mode_t mode) {
  const Place place = recorder.on ? find(at, path) : Place();
  const int before = node_at(place);
  const bool changes = before < 0 ? (flags & O_CREAT) != 0 : (flags & O_TRUNC) != 0;
  if (place.folder >= 0 && changes && refused()) return -1;
  const int fd = static_cast<int>(syscall(SYS_openat, at, path, flags, mode));
  if (fd < 0 || !recorder.on) return fd;
  recorder.open_files.erase(fd);
  if (place.folder < 0) return fd;
  if (before < 0 && !changes) {
    std::fprintf(stderr, "power: %s was made unseen\n", path);
    std::abort();
  }
  const int node = before < 0 ? add_node(place.folder, place.name, false) : before;
  recorder.open_files[fd] = node;
  if (!changes) return fd;
  note(before < 0 ? Operation{Operation::Kind::kCreate, node, place.folder, place.name}
                  : Operation{.kind = Operation::Kind::kResize, .node = node});
  return fd;
}

int recorded_mkdir(int at, const char* path, mode_t mode) {
  const Place place = recorder.on ? find(at, path) : Place();
  if (place.folder >= 0 && node_at(place) < 0 && refused()) return -1;
  const int result = static_cast<int>(syscall(SYS_mkdirat, at, path, mode));
  if (result == 0 && place.folder >= 0) {
    const int node = add_node(place.folder, place.name, true);
    note({Operation::Kind::kMakeFolder, node, place.folder, place.name});
  }
  return result;
}

void note_write(int node, int64_t offset, const void* data, ssize_t bytes) {
  if (bytes <= 0) return;
  note({.kind = Operation::Kind::kWrite,
        .node = node,
        .offset = offset,
        .data = std::string(static_cast<const char*>(data), static_cast<size_t>(bytes))});
}

ssize_t recorded_write(int fd, const void* data, size_t bytes) {
  const int node = node_of(fd);
  if (node >= 0 && refused()) return -1;
  const ssize_t written = syscall(SYS_write, fd, data, bytes);
  if (node >= 0 && written > 0) {
    note_write(node, syscall(SYS_lseek, fd, 0, SEEK_CUR) - written, data, written);
  }
  return written;
}

ssize_t recorded_pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  const int node = node_of(fd);
  if (node >= 0 && refused()) return -1;
  const ssize_t written = syscall(SYS_pwrite64, fd, data, bytes, offset);
  if (node >= 0) note_write(node, offset, data, written);
  return written;
}

int recorded_truncate(int fd, off_t size) {
  const int node = node_of(fd);
  if (node >= 0 && refused()) return -1;
  const int result = static_cast<int>(syscall(SYS_ftruncate, fd, size));
  if (node >= 0 && result == 0) {
    note({.kind = Operation::Kind::kResize, .node = node, .offset = size});
  }
  return result;
}

int recorded_sync(int fd) {
  const int node = node_of(fd);
  if (node < 0) return 0;
  if (refused(true)) return -1;
  const bool folder = recorder.is_folder[node];
  note({folder ? Operation::Kind::kSyncFolder : Operation::Kind::kSyncFile, node});
  return 0;
}

int recorded_rename(int from_at, const char* from, int to_at, const char* to) {
  const Place source = recorder.on ? find(from_at, from) : Place();
  const Place target = recorder.on ? find(to_at, to) : Place();
  if (source.folder >= 0 && refused()) return -1;
  const int result = static_cast<int>(syscall(SYS_renameat2, from_at, from, to_at, to, 0));
  if (result == 0 && source.folder >= 0) {
    const int node = node_at(source);
    recorder.entries.erase({source.folder, source.name});
    recorder.entries[{target.folder, target.name}] = node;
    note({Operation::Kind::kRename, node, source.folder, source.name, target.folder, target.name});
  }
  return result;
}

int recorded_unlink(int at, const char* path, int flags) {
  const Place place = recorder.on ? find(at, path) : Place();
  if (place.folder >= 0 && refused()) return -1;
  const int result = static_cast<int>(syscall(SYS_unlinkat, at, path, flags));
  if (result == 0 && place.folder >= 0) {
    note({Operation::Kind::kUnlink, node_at(place), place.folder, place.name});
    recorder.entries.erase({place.folder, place.name});
  }
  return result;
}

}  // namespace

void start_recording(const std::string& root, const Tree& start) {
  recorder = {.root = root, .on = true};
  recorder.is_folder[0] = true;
  for (const auto& [path, content] : start) {
    const Place place = find(-1, (root + "/" + path).c_str());
    add_node(place.folder, place.name, !content);
  }
}

std::vector<Operation> stop_recording() { return std::exchange(recorder, {}).log; }

void mark(int64_t number) { note({.offset = number}); }

void refuse_after(int requests, bool flushes) {
  recorder.requests_left = requests;
  recorder.counts_flushes = flushes;
  if (requests >= 0) recorder.refused = false;
}

bool has_refused() { return recorder.refused; }

Tree read_tree(const std::string& root) {
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string path = fs::relative(entry.path(), root).string();
    tree[path];
    if (entry.is_directory()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    tree[path] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  return tree;
}

void write_tree(const std::string& root, const Tree& tree) {
  fs::remove_all(root);
  fs::create_directories(root);
  for (const auto& [path, content] : tree) {
    if (!content) {
      fs::create_directory(root + "/" + path);
      continue;
    }
    std::ofstream file(root + "/" + path, std::ios::binary);
    file.write(content->data(), static_cast<std::streamsize>(content->size()));
    if (!file.flush()) {
      std::fprintf(stderr, "power: cannot write %s/%s\n", root.c_str(), path.c_str());
      std::abort();
    }
  }
}

}  // namespace tarn::power

// NOLINTBEGIN: names and signatures are the C library's
using namespace tarn::power;

namespace {
mode_t mode_argument(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}
}  // namespace

extern "C" {

#define TARN_OPEN(at)                                  \
  va_list arguments;                                   \
  va_start(arguments, flags);                          \
  const mode_t mode = mode_argument(flags, arguments); \
  va_end(arguments);                                   \
  return recorded_open(at, path, flags, mode)

int open(const char* path, int flags, ...) { TARN_OPEN(AT_FDCWD); }
int open64(const char* path, int flags, ...) { TARN_OPEN(AT_FDCWD); }
int openat(int at, const char* path, int flags, ...) { TARN_OPEN(at); }
int openat64(int at, const char* path, int flags, ...) { TARN_OPEN(at); }

int mkdir(const char* path, mode_t mode) noexcept { return recorded_mkdir(AT_FDCWD, path, mode); }
int mkdirat(int at, const char* path, mode_t mode) noexcept {
  return recorded_mkdir(at, path, mode);
}

ssize_t write(int fd, const void* data, size_t bytes) { return recorded_write(fd, data, bytes); }
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return recorded_pwrite(fd, data, bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  return recorded_pwrite(fd, data, bytes, offset);
}
int ftruncate(int fd, off_t size) noexcept { return recorded_truncate(fd, size); }
int ftruncate64(int fd, off64_t size) noexcept { return recorded_truncate(fd, size); }

int fsync(int fd) { return recorded_sync(fd); }
int fdatasync(int fd) { return recorded_sync(fd); }

int rename(const char* from, const char* to) noexcept {
  return recorded_rename(AT_FDCWD, from, AT_FDCWD, to);
}
int renameat(int from_at, const char* from, int to_at, const char* to) noexcept {
  return recorded_rename(from_at, from, to_at, to);
}
int unlink(const char* path) noexcept { return recorded_unlink(AT_FDCWD, path, 0); }
int unlinkat(int at, const char* path, int flags) noexcept {
  return recorded_unlink(at, path, flags);
}

}  // extern "C"
// NOLINTEND
