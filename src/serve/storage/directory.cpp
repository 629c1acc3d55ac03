#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/file.h"
#include "base/log.h"
#include "serve/storage/deadline.h"
#include "serve/storage/objects.h"

namespace tarn::serve {
namespace {

constexpr std::string_view kFormat = "tarn-store 1\n";
constexpr std::array<const char*, 4> kKinds = {"s", "r", "c", "n"};
constexpr const char* kFormatFile = "format";
constexpr const char* kLockFile = "lock";
constexpr const char* kMarkFile = "writing";  // there while a plan is applied
constexpr const char* kTemporary = "temporary";
constexpr int64_t kMaxFileBytes = int64_t{64} << 30;

/// An open descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

/// Disk space, quota and file size limits are one kind of failure: the place is full.
bool is_full(int code) { return code == ENOSPC || code == EDQUOT || code == EFBIG; }

Error system_error(const std::string& action, int code, const std::string& where) {
  return {is_full(code) ? ErrorCode::kResource : ErrorCode::kIo,
          action + " failed: " + std::generic_category().message(code), where};
}

Error locked_error(const std::string& by, const Deadline& deadline, const std::string& where) {
  return {ErrorCode::kIo,
          "is locked by another " + by + " for more than " + std::to_string(deadline.limit_ms()) +
              " ms",
          where};
}

/// Makes the name of a folder durable and those of the folders above it, which may be as new.
Status sync_way_to(const std::string& path) {
  std::error_code code;
  std::filesystem::path at = std::filesystem::absolute(path, code);
  for (; at.has_relative_path(); at = at.parent_path()) {
    if (::access(at.parent_path().c_str(), R_OK) != 0) break;  // then we made nothing in it either
    TARN_RETURN_IF_ERROR(sync_folder_of(at.string()));
  }
  return {};
}

/// flock on an open file for a scope; waits for other processes up to a deadline.
class FileLock {
 public:
  FileLock() = default;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (fd_ >= 0) ::flock(fd_, LOCK_UN);
  }
  Status lock(int fd, const Deadline& deadline, const std::string& where) {
    while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return system_error("locking", errno, where);
      if (deadline.passed()) return locked_error("process", deadline, where);
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    fd_ = fd;
    return {};
  }

 private:
  int fd_ = -1;
};

/// One file per object in a folder per kind. A write holds the store's lock, so one temporary is
/// enough; readers hold nothing, because files are only ever replaced whole.
class DirectoryObjects final : public Objects {
 public:
  DirectoryObjects(std::string path, const StoreOptions& options)
      : path_(std::move(path)), options_(options) {}

  Status open();

  Result<MaybeValue> get(const std::string& name) override;
  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit) override;
  Status update(const Planner& planner) override;
  StoreState state() const override;
  Durability durability() const override {
    return options_.sync ? Durability::kPower : Durability::kProcess;
  }
  bool left_over() const override { return dirty_; }

 private:
  class Reader final : public PlanReader {
   public:
    explicit Reader(DirectoryObjects& objects) : objects_(&objects) {}
    Result<MaybeValue> get(const std::string& name) override { return objects_->get(name); }
    Result<std::vector<std::string>> names(const std::string& prefix) override {
      return objects_->names(prefix);
    }

   private:
    DirectoryObjects* objects_;
  };

  Status check_folder() const;
  /// Whether the store still is the folder of its name: in another one nothing is found, or kept.
  Status check_there() const;
  Result<Descriptor> open_folder(int parent, const char* name, const std::string& where) const;
  int folder(const std::string& name) const;
  std::string where(const std::string& name) const { return path_ + "/" + name; }
  Result<std::vector<std::string>> names(const std::string& prefix) const;
  Status apply(const Plan& plan);
  /// Takes back what a plan wrote before the commit that failed.
  void undo(const Plan& plan);
  /// Applies changes of the same rank, then makes their names durable.
  Status apply_group(const std::vector<Change>& changes);
  Status write(const Change& change);
  Status sync(int fd, const std::string& what);
  /// Remembers a failure after which the disk's content is not known.
  Error stop(Error error);

  std::string path_;
  StoreOptions options_;
  Descriptor root_, lock_;
  std::array<Descriptor, kKinds.size()> folders_;
  Turn writer_;  // flock does not hold threads apart that share a descriptor
  std::atomic<bool> dirty_{false};
  mutable std::mutex state_mutex_;
  StoreState state_;
};

Result<Descriptor> DirectoryObjects::open_folder(int parent, const char* name,
                                                 const std::string& where) const {
  Descriptor folder(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.ok()) return system_error("opening the folder", errno, where);
  return folder;
}

/// A folder with anything but a store in it is refused before the first file is made.
Status DirectoryObjects::check_folder() const {
  if (path_exists(where(kFormatFile))) {
    TARN_ASSIGN(const std::string format, read_file(where(kFormatFile), 4096));
    if (format == kFormat) return {};
    return Error{ErrorCode::kUnsupported, "is the store of another version of this program",
                 where(kFormatFile)};
  }
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(path_, code)) {
    const std::string name = entry.path().filename().string();
    // Two programs may make the store at once: what the other one makes first is no obstacle.
    const bool ours = name == kLockFile || name.starts_with(kFormatFile) ||
                      std::find(kKinds.begin(), kKinds.end(), name) != kKinds.end();
    if (!ours) return invalid_argument("is no store and not empty: has " + name, path_);
  }
  if (code) return system_error("listing", code.value(), path_);
  return {};
}

Status DirectoryObjects::check_there() const {
  struct stat ours {
  }, named{};
  bool there = ::fstat(root_.get(), &ours) == 0 && ::stat(path_.c_str(), &named) == 0 &&
               ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
  for (const Descriptor& folder : folders_) {
    there = there && ::fstat(folder.get(), &ours) == 0 && ours.st_nlink > 0;
  }
  if (there) return {};
  return Error{ErrorCode::kIo,
               "the folder was removed, moved or replaced while it was open: put it back, or start "
               "the program anew",
               path_};
}

Status DirectoryObjects::open() {
  TARN_RETURN_IF_ERROR(make_directories(path_));
  TARN_RETURN_IF_ERROR(check_folder());
  TARN_ASSIGN(root_, open_folder(AT_FDCWD, path_.c_str(), path_));
  lock_ = Descriptor(::openat(root_.get(), kLockFile,
                              O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!lock_.ok()) return system_error("opening", errno, where(kLockFile));
  FileLock lock;
  TARN_RETURN_IF_ERROR(lock.lock(lock_.get(), Deadline(options_), path_));
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (::mkdirat(root_.get(), kKinds[i], 0700) != 0 && errno != EEXIST) {
      return system_error("making the folder", errno, where(kKinds[i]));
    }
    TARN_ASSIGN(folders_[i], open_folder(root_.get(), kKinds[i], where(kKinds[i])));
  }
  if (!path_exists(where(kFormatFile))) {
    // Before the format, so that no store is found whose own name may yet be lost.
    TARN_RETURN_IF_ERROR(sync_way_to(path_));
    TARN_RETURN_IF_ERROR(write_file_atomic(where(kFormatFile), kFormat));
  } else if (options_.sync) {
    // Whoever made the store may have died before this.
    TARN_RETURN_IF_ERROR(sync_folder_of(where(kFormatFile)));
  }
  dirty_ = ::faccessat(root_.get(), kMarkFile, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
  return {};
}

int DirectoryObjects::folder(const std::string& name) const {
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (name[0] == kKinds[i][0]) return folders_[i].get();
  }
  TARN_CHECK(false);
}

Result<MaybeValue> DirectoryObjects::get(const std::string& name) {
  Result<InputFile> file = InputFile::open_at(folder(name), name.substr(2));
  if (!file.ok()) {
    if (file.error().code == ErrorCode::kNotFound) {
      TARN_RETURN_IF_ERROR(check_there());
      return MaybeValue();
    }
    return Error{file.error().code, file.error().message, where(name)};
  }
  if (file->size() > kMaxFileBytes) {
    return Error{ErrorCode::kResource, "has " + std::to_string(file->size()) + " bytes",
                 where(name)};
  }
  std::string value(static_cast<size_t>(file->size()), '\0');
  TARN_RETURN_IF_ERROR(file->read_at(0, file->size(), value.data()));
  return MaybeValue(std::move(value));
}

Result<std::vector<std::string>> DirectoryObjects::names(const std::string& prefix) const {
  // A descriptor of its own: reading a folder moves the position of the one it reads.
  const int fd = ::openat(folder(prefix), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = fd < 0 ? nullptr : ::fdopendir(fd);
  if (stream == nullptr) {
    const int code = errno;
    if (fd >= 0) ::close(fd);
    return system_error("listing", code, where(prefix));
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string name = entry->d_name;
    if (name[0] != '.') names.push_back(prefix.substr(0, 2) + name);
  }
  const int code = errno;
  ::closedir(stream);
  if (code != 0) return system_error("listing", code, where(prefix));
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::vector<NamedValue>> DirectoryObjects::scan(const std::string& prefix,
                                                       const std::string& after, int limit) {
  TARN_RETURN_IF_ERROR(check_there());
  TARN_ASSIGN(const std::vector<std::string> all, names(prefix));
  std::vector<NamedValue> rows;
  for (auto at = std::upper_bound(all.begin(), all.end(), after);
       at != all.end() && rows.size() < static_cast<size_t>(limit); ++at) {
    TARN_ASSIGN(MaybeValue value, get(*at));
    if (value) rows.emplace_back(*at, std::move(*value));
  }
  return rows;
}

StoreState DirectoryObjects::state() const {
  const std::lock_guard lock(state_mutex_);
  return state_;
}

Error DirectoryObjects::stop(Error error) {
  const std::lock_guard lock(state_mutex_);
  if (!state_.read_only) state_ = {.read_only = true, .reason = error.to_string()};
  return error;
}

Status DirectoryObjects::sync(int fd, const std::string& what) {
  if (!options_.sync) return {};
  const int result = options_.sync_file ? options_.sync_file(fd) : ::fsync(fd);
  // After a failed flush the kernel may have dropped the pages: a second one would lie.
  if (result != 0) return stop(system_error("fsync", errno, where(what)));
  return {};
}

Status DirectoryObjects::write(const Change& change) {
  const std::string base = change.name.substr(2);
  if (!change.value) {
    if (::unlinkat(folder(change.name), base.c_str(), 0) == 0 || errno == ENOENT) return {};
    return stop(system_error("removing", errno, where(change.name)));
  }
  ::unlinkat(root_.get(), kTemporary, 0);
  const Descriptor file(::openat(root_.get(), kTemporary,
                                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.ok()) return system_error("creating", errno, where(change.name));
  const std::string& value = *change.value;
  for (size_t done = 0; done < value.size();) {
    const ssize_t written = ::write(file.get(), value.data() + done, value.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      Error error = system_error("writing", errno, where(change.name));
      ::unlinkat(root_.get(), kTemporary, 0);
      return error.code == ErrorCode::kResource ? error : stop(std::move(error));
    }
    done += static_cast<size_t>(written);
  }
  TARN_RETURN_IF_ERROR(sync(file.get(), change.name));
  if (::renameat(root_.get(), kTemporary, folder(change.name), base.c_str()) != 0) {
    Error error = system_error("naming", errno, where(change.name));
    return error.code == ErrorCode::kResource ? error : stop(std::move(error));
  }
  return {};
}

Status DirectoryObjects::apply_group(const std::vector<Change>& changes) {
  for (const Change& change : changes) TARN_RETURN_IF_ERROR(write(change));
  for (size_t i = 0; i < kKinds.size(); ++i) {
    const bool touched = std::any_of(changes.begin(), changes.end(), [&](const Change& change) {
      return change.name[0] == kKinds[i][0];
    });
    if (touched) TARN_RETURN_IF_ERROR(sync(folders_[i].get(), kKinds[i]));
  }
  return {};
}

void DirectoryObjects::undo(const Plan& plan) {
  // Nothing refers to these yet, and a full disk needs the room. Counts that rose stay too high.
  for (const Change& change : plan.before) {
    if (change.name[0] == 'n') {
      dirty_ = true;
    } else {
      ::unlinkat(folder(change.name), change.name.c_str() + 2, 0);
    }
  }
}

Status DirectoryObjects::apply(const Plan& plan) {
  Status prepared = apply_group(plan.before);
  if (prepared.ok() && plan.commit) prepared = write(*plan.commit);
  if (!prepared.ok()) {
    undo(plan);
    return prepared;
  }
  if (plan.commit) TARN_RETURN_IF_ERROR(sync(folder(plan.commit->name), plan.commit->name));
  // Committed: what goes wrong from here on leaves objects without a reference, no more.
  for (const Change& change : plan.after) {
    const Status status = write(change);
    if (!status.ok()) {
      dirty_ = true;
      log_message(LogLevel::kWarning, "left over: " + status.error().to_string());
    }
  }
  return {};
}

Status DirectoryObjects::update(const Planner& planner) {
  // One for both locks: threads that wait in turn do not add up their times.
  const Deadline deadline(options_);
  if (!writer_.take(deadline)) return locked_error("thread", deadline, path_);
  const TurnGuard one_thread(writer_);
  if (const StoreState now = state(); now.read_only) {
    return Error{ErrorCode::kReadOnly, "takes no writes since this failed: " + now.reason, path_};
  }
  TARN_RETURN_IF_ERROR(check_there());
  FileLock one_process;
  TARN_RETURN_IF_ERROR(one_process.lock(lock_.get(), deadline, path_));
  Reader reader(*this);
  TARN_ASSIGN(const Plan plan, planner(reader));
  if (plan.empty() && !plan.collects) return {};
  const Descriptor mark(
      ::openat(root_.get(), kMarkFile, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!mark.ok() && errno != EEXIST) {
    return system_error("creating", errno, where(kMarkFile));
  }
  // A mark that was there means that a writer died: it stays until the leftovers are collected.
  if (!mark.ok()) {
    dirty_ = true;
    // What it named is seen but perhaps not durable, and this plan may build on it.
    for (size_t i = 0; i < kKinds.size(); ++i) {
      TARN_RETURN_IF_ERROR(sync(folders_[i].get(), kKinds[i]));
    }
  }
  const Status status = apply(plan);
  if (status.ok() && plan.collects) dirty_ = false;
  if (!dirty_) ::unlinkat(root_.get(), kMarkFile, 0);
  return status;
}

}  // namespace

Result<std::unique_ptr<Objects>> open_directory_objects(const std::string& path,
                                                        const StoreOptions& options) {
  if (path.empty()) return invalid_argument("wanted dir:/path", "store");
  auto objects = std::make_unique<DirectoryObjects>(path, options);
  TARN_RETURN_IF_ERROR(objects->open());
  return std::unique_ptr<Objects>(std::move(objects));
}

}  // namespace tarn::serve
