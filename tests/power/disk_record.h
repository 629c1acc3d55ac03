#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tarn::power {

/// The files below a folder by their paths in it; no content: a folder. The folder itself is node 0,
/// the others are numbered in this order.
using Tree = std::map<std::string, std::optional<std::string>>;

/// One request to the operating system that changes files or makes changes durable.
struct Operation {
  enum class Kind {
    kCreate,      ///< a file `node`, `name` in `folder`
    kMakeFolder,  ///< the same of a folder
    kWrite,       ///< `data` at `offset` of `node`
    kResize,      ///< `node` has `offset` bytes
    kSyncFile,    ///< fsync or fdatasync of file `node`
    kSyncFolder,  ///< fsync of folder `node`
    kRename,      ///< `name` in `folder`, which is `node`, becomes `to_name` in `to_folder`
    kUnlink,      ///< `name` in `folder` goes
    kMark,        ///< mark() was called with `offset`
  };
  Kind kind = Kind::kMark;
  int node = -1;
  int folder = -1;
  std::string name{};
  int to_folder = -1;
  std::string to_name{};
  int64_t offset = 0;
  std::string data{};
};

/// Records what this program, libraries included, asks of the operating system for files below
/// `root`, an absolute path without links that holds `start`. The program's own functions stand
/// before the C library's, see disk_record.cpp. No flush is ever carried out, recorded or not: what
/// it would have made durable is for the model of the disk to say. Threads: one.
void start_recording(const std::string& root, const Tree& start);
/// Everything since then. Writes through a memory map are not seen.
std::vector<Operation> stop_recording();
/// Adds a line of the caller's own to the record.
void mark(int64_t number);
/// After `requests` more, or so many flushes, all fail with EIO and do nothing, as if the process
/// had been killed; a negative number ends that.
void refuse_after(int requests, bool flushes = false);
bool has_refused();

/// What is below a folder.
Tree read_tree(const std::string& root);
/// Makes the folder hold that and nothing else.
void write_tree(const std::string& root, const Tree& tree);

}  // namespace tarn::power
