#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tarn::serve::http {

/// Why the server itself refused a connection or a request.
enum class Refused {
  kConnections,  ///< too many connections
  kAddress,      ///< too many connections of one address
  kKey,          ///< too many requests of one key
  kQueue,        ///< too many requests wait for a worker
  kDraining,
  kMalformed,
  kHeader,  ///< too long or too many fields
  kBody,    ///< too long
  kHeaderTime,
  kBodyTime,
};
inline constexpr size_t kRefusedReasons = 10;
/// As metrics name it, e.g. "header_time".
const char* refused_name(Refused reason);

/// Why an exchange lost its client.
enum class Gone {
  kClosed,    ///< by the client, or by the network
  kStalled,   ///< it did not read for Limits::write_stall_seconds
  kOverflow,  ///< it read slower than its stream was written
  kCut,       ///< by drain(), or by a failure of the server's own
};
inline constexpr size_t kGoneReasons = 4;
const char* gone_name(Gone reason);

/// What a server counts since it was made; gauges are marked. Threads: any.
struct Counters {
  std::atomic<int64_t> accepted{0};                   ///< connections
  std::atomic<int64_t> open{0};                       ///< gauge: connections
  std::atomic<int64_t> active{0};                     ///< gauge: requests not yet answered
  std::atomic<int64_t> streams{0};                    ///< gauge: of these, streams
  std::array<std::atomic<int64_t>, 600> by_status{};  ///< answers; 499: gone without one
  std::array<std::atomic<int64_t>, kRefusedReasons> refused{};  ///< by Refused
  std::array<std::atomic<int64_t>, kGoneReasons> gone{};        ///< by Gone
  std::atomic<int64_t> bytes_in{0};
  std::atomic<int64_t> bytes_out{0};
};

}  // namespace tarn::serve::http
