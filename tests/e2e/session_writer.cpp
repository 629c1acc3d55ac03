// The victim of test_kill.py: saves sessions for ever, or checks what is left of them, or takes the time.
//   session_writer write STORE SESSION   prints "started SEQ", then "saved SEQ" for each acknowledged
//                                        save, until it is killed
//   session_writer check STORE SESSION   prints "found SEQ" if every kept version is whole
//   session_writer measure STORE SESSION prints saves and loads per second of 264 KiB records
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "serve/store.h"

namespace {

using namespace tarn;         // NOLINT: one program
using namespace tarn::serve;  // NOLINT: one program

constexpr uint64_t kModel = 42;

/// What version `seq` holds: its length and every byte follow from the number. Every third one is
/// large enough for chunks.
std::string payload_of(int64_t seq) {
  std::string payload(seq % 3 == 0 ? (1 << 20) + 4321 : 50'000 + 97 * (seq % 100), '\0');
  uint64_t state = static_cast<uint64_t>(seq) * 0x9e3779b97f4a7c15u + 1;
  for (char& c : payload) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>(state >> 56);
  }
  return payload;
}

/// One write call, so that a line is there whole before the process can die.
void say(const char* word, int64_t seq) {
  const std::string line = std::string(word) + " " + std::to_string(seq) + "\n";
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(3);
}

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.to_string().c_str());
  return 1;
}

/// The number of the newest version, 0 if there is none.
Result<int64_t> newest(SessionStore& store, const std::string& id) {
  const auto record = store.load(id, kModel);
  if (record.ok()) return record->seq;
  if (record.error().code == ErrorCode::kNotFound) return int64_t{0};
  return record.error();
}

int write_for_ever(SessionStore& store, const std::string& id) {
  Result<int64_t> start = newest(store, id);
  if (!start.ok()) return fail(start.error());
  say("started", *start);
  for (int64_t seq = *start + 1;; ++seq) {
    const std::string payload = payload_of(seq);
    SaveRequest request;
    request.id = id;
    request.expected_seq = seq - 1;
    request.token_count = seq;
    request.model_fingerprint = kModel;
    request.payload = payload;
    const auto saved = store.save(request);
    if (!saved.ok() && saved.error().where == kSeqConflict) {
      // A database may still be ending what the writer before this one asked for when it died.
      start = newest(store, id);
      if (start.ok() && *start >= seq) {
        seq = *start;
        continue;
      }
    }
    if (!saved.ok()) return fail(saved.error());
    say("saved", saved->seq);
  }
}

int check(SessionStore& store, const std::string& id) {
  const Result<int64_t> last = newest(store, id);
  if (!last.ok()) return fail(last.error());
  const auto page = store.list("", 10);
  if (!page.ok()) return fail(page.error());
  for (const StoredInfo& info : page->sessions) {
    for (const KeptVersion& kept : info.kept) {
      const int64_t seq = kept.seq;
      const auto record = store.load(info.id, kModel, seq);
      if (!record.ok()) return fail(record.error());
      if (record->payload != payload_of(seq) || record->token_count != seq) {
        std::fprintf(stderr, "version %lld holds something else\n", static_cast<long long>(seq));
        return 1;
      }
    }
  }
  say("found", *last);
  return 0;
}

/// Calls per second of `call(i)`, repeated for about two seconds.
template <class Call>
double rate(Call call) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  int64_t calls = 0;
  double seconds = 0;
  while (seconds < 2) {
    if (!call(calls++)) _exit(1);
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return static_cast<double>(calls) / seconds;
}

int measure(SessionStore& store, const std::string& id) {
  std::string payload = payload_of(3).substr(0, 264 << 10);
  const Result<int64_t> start = newest(store, id);
  if (!start.ok()) return fail(start.error());
  const double saves = rate([&](int64_t i) {
    SaveRequest request;
    request.id = id;
    request.expected_seq = *start + i;
    request.model_fingerprint = kModel;
    payload[0] = static_cast<char>(i);
    request.payload = payload;
    return store.save(request).ok();
  });
  const double loads = rate([&](int64_t) { return store.load(id, kModel).ok(); });
  std::printf("%.0f saves/s, %.0f loads/s of 264 KiB, durability %s\n", saves, loads,
              durability_name(store.durability()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s write|check|measure STORE SESSION\n", argv[0]);
    return 2;
  }
  auto store = open_store(argv[2]);
  if (!store.ok()) return fail(store.error());
  if (std::strcmp(argv[1], "measure") == 0) return measure(**store, argv[3]);
  return std::strcmp(argv[1], "write") == 0 ? write_for_ever(**store, argv[3])
                                            : check(**store, argv[3]);
}
