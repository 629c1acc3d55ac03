// Feeds bytes to the snapshot parser and to a restore into a tiny model, as they are and with
// checksums and fingerprint put right, so that the rules behind them are reached too.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/checksum.h"
#include "base/json.h"
#include "model/model.h"
#include "runtime/snapshot.h"

namespace {

using namespace tarn;  // NOLINT: one program

constexpr std::string_view kConfig = R"({
  "format": "tarn-model", "format_version": 1, "modality": "bytes",
  "vocabulary": 257, "start_token": 256, "model_dim": 4, "max_tokens": 32,
  "position": {"kind": "sinusoidal"},
  "norm": {"kind": "layer_norm", "placement": "post"},
  "layers": [
    {"mixer": {"name": "linear_attention", "num_heads": 1, "key_dim": 2},
     "mlp": {"hidden_dim": 4, "activation": "relu"}},
    {"mixer": {"name": "softmax_attention", "num_heads": 1, "key_dim": 2},
     "mlp": {"hidden_dim": 4, "activation": "relu"}}],
  "head": {"kind": "categorical", "classes": 256}})";

std::shared_ptr<const model::Model> tiny_model() {
  const auto json = parse_json(kConfig, "fuzz");
  if (!json.ok()) std::abort();
  const auto config = model::parse_model_config(*json, "fuzz");
  if (!config.ok()) std::abort();
  return model::Model::random(*config, 1, {});
}

void put(std::string& bytes, size_t offset, uint64_t value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

/// The same bytes with magic, lengths, fingerprint and checksums made right where there is room.
std::string repaired(std::string bytes, uint64_t fingerprint) {
  if (bytes.size() < 56) return bytes;
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 16, sizeof header_bytes);
  const uint64_t rest = bytes.size() - 48;
  if (header_bytes > rest) header_bytes = rest;
  std::memcpy(bytes.data(), "TARNSNAP\1\0\0\0\4\3\2\1", 16);
  put(bytes, 16, header_bytes);
  put(bytes, 24, rest - header_bytes);
  if (header_bytes >= 8) put(bytes, 48, fingerprint);
  put(bytes, 32,
      xxh3_64(bytes.data() + 48 + header_bytes, static_cast<int64_t>(rest - header_bytes)));
  Xxh3 hash;
  hash.update(bytes.data(), 40);
  hash.update(bytes.data() + 48, static_cast<int64_t>(header_bytes));
  put(bytes, 40, hash.digest());
  return bytes;
}

/// A snapshot that is accepted must describe itself, come back the same and be able to go on.
void check(const std::string& bytes, const std::shared_ptr<const model::Model>& model) {
  const auto info = runtime::inspect_snapshot(bytes, "fuzz");
  auto restored = runtime::decode_snapshot(bytes, model, "fuzz");
  if (!restored.ok()) {
    if (restored.error().message.empty()) std::abort();
    return;
  }
  if (!info.ok()) std::abort();
  if (runtime::encode_snapshot(restored->session, restored->sampler) != bytes) std::abort();
  runtime::Generator generator(model, nullptr);
  runtime::Session* const sessions[] = {&restored->session};
  for (int i = 0; i < 2; ++i) {
    // Forged values may be NaN: then the draw is refused, which is fine.
    if (!generator.step(sessions, restored->sampler).ok()) break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const model::Model> model = tiny_model();
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  check(bytes, model);
  check(repaired(bytes, model->fingerprint()), model);
  return 0;
}
