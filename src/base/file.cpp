#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace tarn {
namespace {

std::string system_message(int code) { return std::generic_category().message(code); }

Error io_error(const std::string& action, int code, const std::string& path) {
  return {ErrorCode::kIo, action + " failed: " + system_message(code), path};
}

/// A close that forgets its descriptor even when it fails; `errno` of the failure, or 0.
int close_descriptor(int& fd) {
  const int result = ::close(std::exchange(fd, -1));
  return result == 0 ? 0 : errno;
}

/// Where a write to `path` ends up: behind links, so that a link stays one. Only regular files and
/// new names are replaced: a rename over a device or a pipe would remove it.
Result<std::string> replaceable_target(const std::string& path) {
  std::error_code code;
  std::string target = path;
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(path, code))) {
    target = std::filesystem::canonical(path, code).string();
    if (code) return invalid_argument("is a symbolic link that leads to no file", path);
  }
  const std::filesystem::file_status status = std::filesystem::status(target, code);
  if (std::filesystem::is_directory(status)) {
    return invalid_argument("is a folder, wanted a file", path);
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return invalid_argument("is not a regular file and cannot be replaced by one", path);
  }
  return target;
}

struct Inflater {
  z_stream stream{};
  bool ready = false;
  Inflater() { ready = inflateInit2(&stream, 15 + 16) == Z_OK; }  // 16: gzip framing only
  ~Inflater() {
    if (ready) inflateEnd(&stream);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

}  // namespace

Result<InputFile> InputFile::open(const std::string& path, bool follow_links) {
  return open_at(AT_FDCWD, path, follow_links);
}

Result<InputFile> InputFile::open_at(int folder, const std::string& name) {
  return open_at(folder, name, false);
}

Result<InputFile> InputFile::open_at(int folder, const std::string& path, bool follow_links) {
  InputFile file;
  // O_NONBLOCK: opening a named pipe must not wait for a writer; regular files ignore it.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow_links ? 0 : O_NOFOLLOW);
  file.fd_ = ::openat(folder, path.c_str(), flags);
  if (file.fd_ < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return Error{ErrorCode::kNotFound, "no such file", path};
    }
    if (errno == ELOOP && !follow_links) return invalid_argument("is a symbolic link", path);
    return io_error("opening", errno, path);
  }
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0) return io_error("reading its size", errno, path);
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument(
        S_ISDIR(info.st_mode) ? "is a folder, wanted a file" : "is not a regular file", path);
  }
  file.size_ = info.st_size;
  file.path_ = path;
  return file;
}

InputFile InputFile::of_bytes(std::string_view bytes, const std::string& path) {
  InputFile file;
  file.bytes_ = bytes.data();
  file.size_ = static_cast<int64_t>(bytes.size());
  file.path_ = path;
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_),
      size_(other.size_),
      path_(std::move(other.path_)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close_descriptor(fd_);
}

Status InputFile::read_at(int64_t offset, int64_t bytes, void* destination) const {
  TARN_CHECK(offset >= 0 && bytes >= 0);
  char* out = static_cast<char*>(destination);
  while (bytes > 0) {
    const size_t piece = static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 30));
    ssize_t got = 0;
    if (bytes_ != nullptr) {
      got = std::clamp<int64_t>(size_ - offset, 0, static_cast<int64_t>(piece));
      std::copy_n(bytes_ + std::min(offset, size_), got, out);
    } else {
      got = ::pread(fd_, out, piece, offset);
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("reading", errno, path_);
    if (got == 0) {
      return corrupt("ends at byte " + std::to_string(offset) + ", " + std::to_string(bytes) +
                         " more were expected",
                     path_);
    }
    out += got;
    offset += got;
    bytes -= got;
  }
  return {};
}

Result<std::string> read_file(const std::string& path, int64_t max_bytes) {
  TARN_ASSIGN(const InputFile file, InputFile::open(path));
  if (file.size() > max_bytes) {
    return Error{ErrorCode::kResource,
                 "has " + std::to_string(file.size()) + " bytes, at most " +
                     std::to_string(max_bytes) + " are allowed",
                 path};
  }
  std::string content(static_cast<size_t>(file.size()), '\0');
  TARN_RETURN_IF_ERROR(file.read_at(0, file.size(), content.data()));
  return content;
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  AtomicFile file;
  TARN_ASSIGN(file.path_, replaceable_target(path));
  // A leftover of a crashed process with our id would block O_EXCL: try further names.
  for (int attempt = 0; attempt < 100; ++attempt) {
    file.temporary_ = file.path_ + ".tmp-" + std::to_string(::getpid()) + "-" +
                      std::to_string(counter.fetch_add(1));
    file.fd_ = ::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.fd_ >= 0) return file;
    if (errno != EEXIST) break;
  }
  if (errno == ENOENT || errno == ENOTDIR) {
    return Error{ErrorCode::kNotFound, "its folder does not exist", path};
  }
  return io_error("creating a temporary beside it", errno, path);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  return *this;
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (fd_ < 0) return;
  close_descriptor(fd_);
  ::unlink(temporary_.c_str());
}

Status AtomicFile::append(const void* data, int64_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t piece = static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 30));
    const ssize_t written = ::write(fd_, next, piece);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return io_error("writing", errno, path_);
    next += written;
    bytes -= written;
  }
  return {};
}

Status AtomicFile::commit() {
  TARN_CHECK(fd_ >= 0);
  if (::fsync(fd_) != 0) {
    const int failure = errno;
    discard();
    return io_error("fsync", failure, path_);
  }
  int failure = close_descriptor(fd_);
  if (failure == 0 && ::rename(temporary_.c_str(), path_.c_str()) != 0) failure = errno;
  if (failure != 0) {
    ::unlink(temporary_.c_str());
    return io_error("replacing the file", failure, path_);
  }
  return sync_folder_of(path_);
}

Status write_file_atomic(const std::string& path, std::string_view content) {
  TARN_ASSIGN(AtomicFile file, AtomicFile::create(path));
  TARN_RETURN_IF_ERROR(file.append(content.data(), static_cast<int64_t>(content.size())));
  return file.commit();
}

Status sync_folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? std::string(".") : parent.string();
  int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error("opening the folder", errno, folder);
  const int failure = ::fsync(fd) == 0 ? 0 : errno;
  close_descriptor(fd);
  // Some file systems cannot sync folders and say so with EINVAL: nothing more can be done there.
  if (failure != 0 && failure != EINVAL) return io_error("fsync of the folder", failure, folder);
  return {};
}

Status make_directories(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (!code && !std::filesystem::is_directory(path, code)) {
    return Error{ErrorCode::kIo, "exists and is not a folder", path};
  }
  if (code) return io_error("creating the folder", code.value(), path);
  return {};
}

bool path_exists(const std::string& path) {
  std::error_code code;
  return std::filesystem::exists(path, code);
}

Result<std::string> read_gzip_file(const std::string& path, int64_t max_bytes) {
  TARN_ASSIGN(const InputFile file, InputFile::open(path));
  Inflater inflater;
  if (!inflater.ready) return Error{ErrorCode::kResource, "zlib could not start", path};
  z_stream& stream = inflater.stream;
  std::vector<unsigned char> input(size_t{1} << 16), output(size_t{1} << 16);
  std::string content;
  int64_t offset = 0;
  bool member_done = false;
  while (offset < file.size() || stream.avail_in > 0) {
    if (stream.avail_in == 0) {
      const int64_t bytes = std::min(file.size() - offset, static_cast<int64_t>(input.size()));
      TARN_RETURN_IF_ERROR(file.read_at(offset, bytes, input.data()));
      offset += bytes;
      stream.next_in = input.data();
      stream.avail_in = static_cast<uInt>(bytes);
    }
    if (std::exchange(member_done, false)) inflateReset(&stream);
    do {  // until the output buffer is not filled: zlib then holds back nothing
      stream.next_out = output.data();
      stream.avail_out = static_cast<uInt>(output.size());
      const int code = inflate(&stream, Z_NO_FLUSH);
      if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
        return corrupt(std::string("is no valid gzip data: ") +
                           (stream.msg != nullptr ? stream.msg : "damaged stream"),
                       path);
      }
      const size_t produced = output.size() - stream.avail_out;
      if (static_cast<int64_t>(content.size() + produced) > max_bytes) {
        return Error{ErrorCode::kResource,
                     "inflates to more than the " + std::to_string(max_bytes) + " bytes allowed",
                     path};
      }
      content.append(reinterpret_cast<const char*>(output.data()), produced);
      member_done = code == Z_STREAM_END;
    } while (stream.avail_out == 0 && !member_done);
  }
  if (!member_done) return corrupt("is no complete gzip file: it ends too early", path);
  return content;
}

}  // namespace tarn
