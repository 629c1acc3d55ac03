#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/buffer.h"
#include "base/result.h"

namespace tarn {

/// An open regular file for bounded reads (never mapped: a file that shrinks gives an error, not a
/// signal). Opened read-only with O_CLOEXEC; links are followed only when `follow_links`.
class InputFile {
 public:
  static Result<InputFile> open(const std::string& path, bool follow_links = true);
  /// The file `name` in an open folder; never follows a link.
  static Result<InputFile> open_at(int folder, const std::string& name);
  /// Bytes that are part of the program, read like a file; `path` names them in messages. They
  /// must outlive it.
  static InputFile of_bytes(std::string_view bytes, const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  /// Reads exactly `bytes` at `offset`; a short file is an error.
  Status read_at(int64_t offset, int64_t bytes, void* destination) const;

 private:
  InputFile() = default;
  static Result<InputFile> open_at(int folder, const std::string& path, bool follow_links);
  int fd_ = -1;
  const char* bytes_ = nullptr;  ///< instead of a descriptor
  int64_t size_ = 0;
  std::string path_;
};

/// The whole file, or an error when it is missing, no regular file, or larger than `max_bytes`.
Result<std::string> read_file(const std::string& path, int64_t max_bytes);

/// Replaces `path` atomically: writes a temporary beside it, fsync, rename, fsync of the folder.
/// A crash at any moment leaves the old content or the new, never a mixture.
Status write_file_atomic(const std::string& path, std::string_view content);

/// The same for content that arrives in pieces: nothing shows at `path` before commit().
/// Destroyed without commit, it removes its temporary.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  Status append(const void* data, int64_t bytes);
  Status commit();

 private:
  AtomicFile() = default;
  void discard();
  int fd_ = -1;
  std::string path_;
  std::string temporary_;
};

/// Makes the name of a file or folder durable: fsync of the folder that it is in.
Status sync_folder_of(const std::string& path);

Status make_directories(const std::string& path);
bool path_exists(const std::string& path);

/// Inflates a gzip file (one or more members, checksums verified) into at most `max_bytes`.
Result<std::string> read_gzip_file(const std::string& path, int64_t max_bytes);

}  // namespace tarn
