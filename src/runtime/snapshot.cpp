#include "runtime/snapshot.h"

#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/dtype.h"
#include "base/file.h"
#include "runtime/snapshot_format.h"

namespace tarn::runtime {

namespace {

using namespace snapshot_format;  // NOLINT: its constants, in this file alone

/// Whether the parsed snapshot is one of `model`.
Status check_model(const ParsedSnapshot& parsed, const model::Model& model,
                   const std::string& where) {
  const SnapshotInfo& info = parsed.info;
  if (info.model_fingerprint != model.fingerprint()) {
    return invalid_argument("belongs to the model with fingerprint " + hex(info.model_fingerprint) +
                                ", the loaded model has " + hex(model.fingerprint()),
                            where);
  }
  size_t next = 0;
  bool same = true;
  for (size_t layer = 0; layer < model.state_specs().size(); ++layer) {
    for (const mixers::StateSpec& spec : model.state_specs()[layer]) {
      if (next == info.tensors.size()) return corrupt("has too few state tensors", where);
      const SnapshotInfo::Tensor& tensor = info.tensors[next++];
      same = same && tensor.layer == static_cast<int64_t>(layer) && tensor.name == spec.name &&
             tensor.shape == spec.shape && tensor.per_token == spec.per_token;
    }
  }
  if (!same || next != info.tensors.size()) {
    return corrupt("has state tensors that are not those of the model", where);
  }
  const model::ModelConfig& config = model.config();
  const int64_t wanted = info.has_output ? config.head.output_dim() : 0;
  if (int64_t{parsed.output_values} != wanted) {
    return corrupt("has " + std::to_string(parsed.output_values) + " head outputs, wanted " +
                       std::to_string(wanted),
                   where);
  }
  if (config.max_tokens > 0 &&
      (info.token_count > config.max_tokens || info.position > config.max_tokens)) {
    return corrupt("has " + std::to_string(info.token_count) + " tokens, the model takes at most " +
                       std::to_string(config.max_tokens),
                   where);
  }
  return {};
}

/// Elements that index a table must be whole numbers within it.
Status check_symbols(const SequenceState& state, size_t tensor, const std::string& where) {
  const mixers::StateSpec& spec = *state.tensors()[tensor].spec;
  if (spec.symbols == 0) return {};
  const auto limit = static_cast<float>(spec.symbols);
  for (int64_t i = 0; i < state.used_elements(tensor); ++i) {
    const float value = state.data(tensor)[i];
    if (value >= 0.0f && value < limit && value == std::floor(value)) continue;
    return corrupt("has state \"" + spec.name + "\" with a value that is no whole number in [0, " +
                       std::to_string(spec.symbols) + ")",
                   where);
  }
  return {};
}

}  // namespace

/// What snapshots need of a session beyond its public face.
struct SessionAccess {
  static Result<Session> build(const ParsedSnapshot& parsed,
                               std::shared_ptr<const model::Model> model,
                               const std::string& where) {
    const SnapshotInfo& info = parsed.info;
    Session session(std::move(model), {info.seed, info.stream, parsed.keep_tokens});
    session.rng_.index = info.random_words;
    session.dropped_ = info.token_count - info.tokens_kept;
    session.tokens_.resize(static_cast<size_t>(info.tokens_kept));
    copy(parsed.tokens, session.tokens_.data());
    for (const int32_t token : session.tokens_) {
      if (token >= 0 && token < session.model().config().vocabulary) continue;
      return corrupt("has token " + std::to_string(token) + ", wanted one in [0, " +
                         std::to_string(session.model().config().vocabulary) + ")",
                     where);
    }
    TARN_CHECK(session.text_.set_pending(info.pending_utf8));
    copy(parsed.output, session.output_.data());
    TARN_RETURN_IF_ERROR(session.state_.reserve(info.position));
    session.state_.set_position(info.position);
    for (size_t i = 0; i < parsed.tensors.size(); ++i) {
      copy(parsed.tensors[i], session.state_.data(i));
      TARN_RETURN_IF_ERROR(check_symbols(session.state_, i, where));
    }
    return session;
  }

 private:
  template <class T>
  static void copy(std::string_view bytes, T* destination) {
    if (!bytes.empty()) std::memcpy(destination, bytes.data(), bytes.size());
  }
};

std::string encode_snapshot(const Session& session, const SamplerOptions& sampler) {
  std::string out = begin_frame(kSnapshot);
  const SequenceState& state = session.state();
  const auto tokens = session.tokens();
  out.reserve(static_cast<size_t>(state.used_bytes()) + 4 * tokens.size() + (size_t{1} << 16));

  put(&out, session.model().fingerprint());
  put(&out, session.position());
  put(&out, session.token_count());
  put(&out, static_cast<int64_t>(tokens.size()));
  put(&out, session.rng().seed);
  put(&out, session.rng().stream);
  put(&out, session.rng().index);
  put(&out, sampler.top_k);
  put(&out, sampler.temperature);
  put(&out, sampler.top_p);
  put(&out, static_cast<uint8_t>((session.keeps_tokens() ? kFlagKeepTokens : 0) |
                                 (sampler.greedy ? kFlagGreedy : 0)));
  std::string pending(session.text().pending());
  put(&out, static_cast<uint8_t>(pending.size()));
  pending.resize(kPendingBytes + 3, '\0');  // with the reserved bytes
  out.append(pending);
  const auto output = session.has_output() ? session.output() : std::span<const float>();
  put(&out, static_cast<uint32_t>(output.size()));
  put(&out, static_cast<uint32_t>(state.tensors().size()));
  for (const SequenceState::Tensor& tensor : state.tensors()) {
    const mixers::StateSpec& spec = *tensor.spec;
    TARN_CHECK(spec.shape.size() <= kMaxRank && spec.name.size() <= UINT8_MAX);
    put(&out, static_cast<uint32_t>(tensor.layer));
    put(&out, static_cast<uint8_t>(DType::kF32));
    put(&out, spec.per_token ? kTensorPerToken : uint8_t{0});
    put(&out, static_cast<uint8_t>(spec.shape.size()));
    put(&out, static_cast<uint8_t>(spec.name.size()));
    put(&out, spec.per_token ? state.position() : int64_t{1});
    for (const int64_t extent : spec.shape) put(&out, extent);
    out.append(spec.name);
  }
  const size_t payload_start = out.size();
  out.append(reinterpret_cast<const char*>(output.data()), output.size_bytes());
  out.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  for (size_t i = 0; i < state.tensors().size(); ++i) {
    out.append(reinterpret_cast<const char*>(state.data(i)),
               static_cast<size_t>(state.used_elements(i)) * sizeof(float));
  }
  finish_frame(&out, payload_start);
  return out;
}

Result<SnapshotInfo> inspect_snapshot(std::string_view bytes, const std::string& where) {
  TARN_ASSIGN(ParsedSnapshot parsed, parse_snapshot(bytes, where));
  return std::move(parsed.info);
}

Result<RestoredSession> decode_snapshot(std::string_view bytes,
                                        std::shared_ptr<const model::Model> model,
                                        const std::string& where) {
  TARN_ASSIGN(const ParsedSnapshot parsed, parse_snapshot(bytes, where));
  TARN_RETURN_IF_ERROR(check_model(parsed, *model, where));
  TARN_ASSIGN(Session session, SessionAccess::build(parsed, std::move(model), where));
  return RestoredSession{std::move(session), parsed.info.sampler};
}

Status save_snapshot(const std::string& path, const Session& session,
                     const SamplerOptions& sampler) {
  return write_file_atomic(path, encode_snapshot(session, sampler));
}

Result<SnapshotInfo> inspect_snapshot_file(const std::string& path) {
  TARN_ASSIGN(const std::string bytes, read_file(path, kMaxSnapshotBytes));
  return inspect_snapshot(bytes, path);
}

Result<RestoredSession> load_snapshot(const std::string& path,
                                      std::shared_ptr<const model::Model> model) {
  TARN_ASSIGN(const std::string bytes, read_file(path, kMaxSnapshotBytes));
  return decode_snapshot(bytes, std::move(model), path);
}

Status restore_snapshot(const std::string& path, Session* session, SamplerOptions* sampler) {
  TARN_ASSIGN(RestoredSession restored, load_snapshot(path, session->shared_model()));
  *session = std::move(restored.session);
  *sampler = restored.sampler;
  return {};
}

}  // namespace tarn::runtime
