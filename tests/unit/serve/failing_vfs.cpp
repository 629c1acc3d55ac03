#include "unit/serve/failing_vfs.h"

#include <new>

namespace tarn::serve {
namespace {

/// When to fail; one at a time, as tests use it.
struct Plan {
  int operations_left = -1;  // of any kind; -1: no limit
  bool syncs = false, writes = false, failed = false;
};
Plan plan;                    // NOLINT: state of the registered file system
sqlite3_vfs* real = nullptr;  // NOLINT: the same
sqlite3_vfs failing;          // NOLINT: the same

/// Our part of an open file; the real file's part follows it.
struct File {
  sqlite3_file base;
  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};
sqlite3_file* real_file(sqlite3_file* file) { return reinterpret_cast<File*>(file)->real(); }
const sqlite3_io_methods& real_methods(sqlite3_file* file) { return *real_file(file)->pMethods; }

bool fails(bool kind) {
  bool now = kind;
  if (plan.operations_left == 0) now = true;
  if (plan.operations_left > 0) --plan.operations_left;
  plan.failed = plan.failed || now;
  return now;
}

int close(sqlite3_file* f) { return real_methods(f).xClose(real_file(f)); }
int read(sqlite3_file* f, void* to, int bytes, sqlite3_int64 at) {
  return real_methods(f).xRead(real_file(f), to, bytes, at);
}
int write(sqlite3_file* f, const void* from, int bytes, sqlite3_int64 at) {
  if (!fails(plan.writes)) return real_methods(f).xWrite(real_file(f), from, bytes, at);
  // Half of it arrives: a write that fails need not be one that did nothing.
  real_methods(f).xWrite(real_file(f), from, bytes / 2, at);
  return SQLITE_IOERR_WRITE;
}
int truncate(sqlite3_file* f, sqlite3_int64 size) {
  if (fails(false)) return SQLITE_IOERR_TRUNCATE;
  return real_methods(f).xTruncate(real_file(f), size);
}
int sync(sqlite3_file* f, int flags) {
  if (fails(plan.syncs)) return SQLITE_IOERR_FSYNC;
  return real_methods(f).xSync(real_file(f), flags);
}
int file_size(sqlite3_file* f, sqlite3_int64* size) {
  return real_methods(f).xFileSize(real_file(f), size);
}
int lock(sqlite3_file* f, int level) { return real_methods(f).xLock(real_file(f), level); }
int unlock(sqlite3_file* f, int level) { return real_methods(f).xUnlock(real_file(f), level); }
int check_lock(sqlite3_file* f, int* result) {
  return real_methods(f).xCheckReservedLock(real_file(f), result);
}
int control(sqlite3_file* f, int op, void* argument) {
  return real_methods(f).xFileControl(real_file(f), op, argument);
}
int sector_size(sqlite3_file* f) { return real_methods(f).xSectorSize(real_file(f)); }
int traits(sqlite3_file* f) { return real_methods(f).xDeviceCharacteristics(real_file(f)); }
int shm_map(sqlite3_file* f, int page, int bytes, int extend, void volatile** at) {
  return real_methods(f).xShmMap(real_file(f), page, bytes, extend, at);
}
int shm_lock(sqlite3_file* f, int offset, int count, int flags) {
  return real_methods(f).xShmLock(real_file(f), offset, count, flags);
}
void shm_barrier(sqlite3_file* f) { real_methods(f).xShmBarrier(real_file(f)); }
int shm_unmap(sqlite3_file* f, int remove) {
  return real_methods(f).xShmUnmap(real_file(f), remove);
}

constexpr sqlite3_io_methods kMethods = {2,           close,       read,    write,   truncate,
                                         sync,        file_size,   lock,    unlock,  check_lock,
                                         control,     sector_size, traits,  shm_map, shm_lock,
                                         shm_barrier, shm_unmap,   nullptr, nullptr};

int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  File* mine = new (file) File{};
  const int code = real->xOpen(real, name, mine->real(), flags, out_flags);
  mine->base.pMethods = mine->real()->pMethods != nullptr ? &kMethods : nullptr;
  return code;
}

}  // namespace

FailingVfs::FailingVfs() {
  plan = {};
  real = sqlite3_vfs_find(nullptr);
  failing = *real;
  failing.zName = "failing";
  failing.szOsFile = static_cast<int>(sizeof(File)) + real->szOsFile;
  failing.xOpen = open;
  sqlite3_vfs_register(&failing, 1);
}

FailingVfs::~FailingVfs() {
  sqlite3_vfs_unregister(&failing);
  sqlite3_vfs_register(real, 1);
}

void FailingVfs::fail_next(What what) {
  plan = {};
  plan.syncs = what == What::kSync;
  plan.writes = what == What::kWrite;
}
void FailingVfs::fail_after(int operations) {
  plan = {};
  plan.operations_left = operations;
}
void FailingVfs::stop_failing() { plan = {}; }
bool FailingVfs::has_failed() const { return plan.failed; }

}  // namespace tarn::serve
