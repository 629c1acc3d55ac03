#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "runtime/sampler.h"
#include "runtime/session.h"

namespace tarn::runtime {

/// What a snapshot says about itself: readable without its model. Format: docs/formats/snapshot.md.
struct SnapshotInfo {
  struct Tensor {
    int64_t layer = 0;
    std::string name;
    std::string dtype;
    std::vector<int64_t> shape;  ///< of the tensor, or of one entry when per_token
    bool per_token = false;
    int64_t entries = 0;  ///< used: 1, or one per evaluated input
    int64_t bytes = 0;
  };
  int64_t version = 0;
  uint64_t model_fingerprint = 0;
  int64_t position = 0;     ///< inputs evaluated, the start token included
  int64_t token_count = 0;  ///< tokens so far
  int64_t tokens_kept = 0;  ///< of them in the snapshot
  bool has_output = false;  ///< the next token can be drawn without evaluating anything
  uint64_t seed = 0, stream = 0, random_words = 0;
  SamplerOptions sampler;
  std::string pending_utf8;
  int64_t file_bytes = 0;
  int64_t state_bytes = 0;
  std::vector<Tensor> tensors;
};

/// The snapshot of a session as bytes. Pure. Cost: a copy of the used state.
std::string encode_snapshot(const Session& session, const SamplerOptions& sampler);

/// Checks a whole snapshot, checksums included, and describes it. Pure; allocates no more than a
/// small multiple of bytes.size(), whatever the bytes claim. `where` names the source in errors.
Result<SnapshotInfo> inspect_snapshot(std::string_view bytes, const std::string& where);

struct RestoredSession {
  Session session;
  SamplerOptions sampler;
};

/// The session of a snapshot, ready to continue as if it had never stopped: same bits, nothing
/// evaluated again. Everything is checked and built aside first, so a failure changes nothing.
/// Errors: kCorrupt for bytes that break the format; kInvalidArgument, with both fingerprints, for
/// the snapshot of another model.
Result<RestoredSession> decode_snapshot(std::string_view bytes,
                                        std::shared_ptr<const model::Model> model,
                                        const std::string& where);

/// Largest snapshot file that is read: 64 GiB.
inline constexpr int64_t kMaxSnapshotBytes = int64_t{64} << 30;

/// Replaces `path` atomically.
Status save_snapshot(const std::string& path, const Session& session,
                     const SamplerOptions& sampler);
Result<SnapshotInfo> inspect_snapshot_file(const std::string& path);
Result<RestoredSession> load_snapshot(const std::string& path,
                                      std::shared_ptr<const model::Model> model);
/// Replaces `session` and `sampler` by those of a snapshot; both are untouched on an error.
Status restore_snapshot(const std::string& path, Session* session, SamplerOptions* sampler);

}  // namespace tarn::runtime
