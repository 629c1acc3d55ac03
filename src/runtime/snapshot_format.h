#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/frame.h"
#include "base/result.h"
#include "runtime/snapshot.h"

namespace tarn::runtime::snapshot_format {

// The layout is specified in docs/formats/snapshot.md; offsets here are those of its tables.
inline constexpr FrameKind kSnapshot{"TARNSNAP", 1, "snapshot"};
inline constexpr uint8_t kFlagKeepTokens = 1;
inline constexpr uint8_t kFlagGreedy = 2;
inline constexpr uint8_t kTensorPerToken = 1;
inline constexpr size_t kMaxRank = 8;
inline constexpr size_t kPendingBytes = 3;

/// A checked snapshot; views point into its bytes.
struct ParsedSnapshot {
  SnapshotInfo info;
  bool keep_tokens = true;
  uint32_t output_values = 0;
  std::string_view output;
  std::string_view tokens;
  std::vector<std::string_view> tensors;
};

/// Checks everything that can be checked without the model. Errors: kCorrupt, kUnsupported.
Result<ParsedSnapshot> parse_snapshot(std::string_view bytes, const std::string& where);

}  // namespace tarn::runtime::snapshot_format
