#include "serve/service/saved_session.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <type_traits>

#include "base/checksum.h"
#include "base/frame.h"
#include "runtime/utf8.h"
#include "serve/store.h"

namespace tarn::serve {
namespace {

constexpr FrameKind kSavedSession{"TARNTURN", 1, "saved session"};
constexpr int64_t kMaxNumber = int64_t{1} << 60;
constexpr uint8_t kHasLogProbs = 0x80;  // beside a finish reason

bool is_number(int64_t value) { return value >= 0 && value <= kMaxNumber; }

/// Whether every piece is whole characters.
bool is_text(std::string_view text, const std::vector<uint32_t>& pieces) {
  for (const uint32_t piece : pieces) {
    runtime::Utf8Stream stream;
    std::string out;
    for (const char c : text.substr(0, piece)) stream.push(static_cast<uint8_t>(c), &out);
    if (!stream.pending().empty() || out != text.substr(0, piece)) return false;
    text.remove_prefix(piece);
  }
  return true;
}

uint64_t sum_of(const std::vector<uint32_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

const char* log_probs_fault(const KeyedResult& result) {
  if (sum_of(result.log_prob_counts) != result.log_probs.size()) {
    return "has more log probabilities than tokens";
  }
  auto next = result.log_probs.begin();
  for (size_t i = 0; i < result.log_prob_counts.size(); ++i) {
    for (uint32_t told = 0; told < result.log_prob_counts[i]; ++told, ++next) {
      if (next->text_at > result.text_bytes[i]) return "has a log probability behind its text";
      const auto& tokens = next->of.likeliest;
      if (std::any_of(tokens.begin(), tokens.end(), [](const auto& t) { return t.token < 0; })) {
        return "has a negative token";
      }
    }
  }
  return nullptr;
}

const char* result_fault(const KeyedResult& result) {
  if (!is_idempotency_key(result.key)) return "has an idempotency key that cannot be one";
  if (result.reason != FinishReason::kStop && result.reason != FinishReason::kLength) {
    return "has a result that no turn can have";
  }
  if (result.stop_string < -1 || result.stop_string >= static_cast<int64_t>(kMaxStopStrings) ||
      (result.stop_string >= 0) != (result.reason == FinishReason::kStop)) {
    return "has a stop string out of range";
  }
  if (!is_number(result.ended_ms) || !is_number(result.seq) || result.seq == 0 ||
      !is_number(result.tokens_evaluated) || !is_number(result.token_count) ||
      result.token_count < static_cast<int64_t>(result.tokens.size())) {
    return "has a result with a number out of range";
  }
  if (std::any_of(result.tokens.begin(), result.tokens.end(), [](int32_t t) { return t < 0; })) {
    return "has a negative token";
  }
  if (sum_of(result.text_bytes) != result.text.size()) {
    return "has text of another length than its tokens say";
  }
  if (!is_text(result.text, result.text_bytes)) return "has text that is no UTF-8";
  return log_probs_fault(result);
}

template <class T>
void put_all(std::string* out, const std::vector<T>& values) {
  out->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <class T>
std::vector<T> take_all(ByteReader& reader, uint32_t count) {
  static_assert(std::is_arithmetic_v<T>);
  const std::string_view bytes = reader.bytes(uint64_t{count} * sizeof(T));
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void put_log_probs(std::string* out, const KeyedResult& result) {
  put_all(out, result.log_prob_counts);
  for (const ToldLogProbs& told : result.log_probs) {
    put(out, told.text_at);
    put(out, static_cast<uint32_t>(told.of.likeliest.size()));
    put(out, told.of.drawn.log_prob);
    for (const auto& [token, log_prob] : told.of.likeliest) {
      put(out, token);
      put(out, log_prob);
    }
  }
}

/// The tokens and their texts have been taken.
void take_log_probs(ByteReader& reader, KeyedResult* result) {
  const auto tokens = static_cast<uint32_t>(result->tokens.size());
  result->log_prob_counts = take_all<uint32_t>(reader, tokens);
  const uint64_t told = sum_of(result->log_prob_counts);
  for (uint64_t i = 0; told <= tokens && i < told && !reader.overrun(); ++i) {
    ToldLogProbs next;
    next.text_at = reader.take<uint32_t>();
    const auto likeliest = reader.take<uint32_t>();
    next.of.drawn = {result->tokens[i], reader.take<double>()};
    for (uint32_t k = 0; k < likeliest && !reader.overrun(); ++k) {
      const auto token = reader.take<int32_t>();
      next.of.likeliest.push_back({token, reader.take<double>()});
    }
    result->log_probs.push_back(std::move(next));
  }
}

void put_result(std::string* out, const KeyedResult& result) {
  const bool has_log_probs = !result.log_prob_counts.empty();
  put(out, static_cast<uint8_t>(result.key.size()));
  put(out, static_cast<uint8_t>(static_cast<uint8_t>(result.reason) |
                                (has_log_probs ? kHasLogProbs : 0)));
  put(out, static_cast<uint16_t>(result.stop_string + 1));
  put(out, static_cast<uint32_t>(result.tokens.size()));
  out->append(reinterpret_cast<const char*>(result.request.data()), result.request.size());
  put(out, result.ended_ms);
  put(out, result.seq);
  put(out, result.tokens_evaluated);
  put(out, result.token_count);
  put(out, static_cast<uint64_t>(result.text.size()));
  out->append(result.key);
  put_all(out, result.tokens);
  put_all(out, result.text_bytes);
  out->append(result.text);
  if (has_log_probs) put_log_probs(out, result);
}

KeyedResult take_result(ByteReader& reader) {
  KeyedResult result;
  const auto key_bytes = reader.take<uint8_t>();
  auto reason = reader.take<uint8_t>();
  result.stop_string = int64_t{reader.take<uint16_t>()} - 1;
  const auto tokens = reader.take<uint32_t>();
  // Without tokens there are none, and the flag stays: a reason that nothing has.
  const bool has_log_probs = tokens > 0 && (reason & kHasLogProbs) != 0;
  if (has_log_probs) reason ^= kHasLogProbs;
  result.reason = static_cast<FinishReason>(reason);
  const std::string_view hash = reader.bytes(result.request.size());
  std::copy(hash.begin(), hash.end(), result.request.begin());
  result.ended_ms = reader.take<int64_t>();
  result.seq = reader.take<int64_t>();
  result.tokens_evaluated = reader.take<int64_t>();
  result.token_count = reader.take<int64_t>();
  const auto text_bytes = reader.take<uint64_t>();
  result.key = reader.bytes(key_bytes);
  result.tokens = take_all<int32_t>(reader, tokens);
  result.text_bytes = take_all<uint32_t>(reader, tokens);
  result.text = reader.bytes(text_bytes);
  if (has_log_probs) take_log_probs(reader, &result);
  return result;
}

}  // namespace

RequestHash hash_request(const Request& request) {
  std::string bytes;
  put(&bytes, static_cast<uint64_t>(request.prompt.size()));
  put_all(&bytes, request.prompt);
  put(&bytes, static_cast<uint8_t>(request.sampler.greedy));
  put(&bytes, request.sampler.temperature);
  put(&bytes, request.sampler.top_k);
  put(&bytes, request.sampler.top_p);
  put(&bytes, request.max_tokens);
  put(&bytes, static_cast<uint8_t>(request.seed.has_value()));
  put(&bytes, request.seed.value_or(0));
  for (const std::string& stop : request.stop) {
    put(&bytes, static_cast<uint64_t>(stop.size()));
    bytes += stop;
  }
  if (request.log_probs) put(&bytes, static_cast<uint8_t>(*request.log_probs));
  return xxh3_128(bytes.data(), static_cast<int64_t>(bytes.size()));
}

bool is_idempotency_key(std::string_view key) {
  return !key.empty() && key.size() <= kMaxKeyBytes &&
         std::all_of(key.begin(), key.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

std::string encode_saved_session(const SavedSession& session) {
  std::string out = begin_frame(kSavedSession);
  size_t bytes = out.size() + 8 + session.id.size() + session.snapshot.size();
  for (const KeyedResult& result : session.results) {
    bytes += 64 + result.key.size() + 8 * result.tokens.size() + result.text.size();
  }
  out.reserve(bytes);
  put(&out, static_cast<uint8_t>(session.policy));
  put(&out, static_cast<uint8_t>(session.id.size()));
  put(&out, static_cast<uint16_t>(session.missing_breaks));
  put(&out, static_cast<uint32_t>(session.results.size()));
  out += session.id;
  for (const KeyedResult& result : session.results) put_result(&out, result);
  const size_t payload_start = out.size();
  out += session.snapshot;
  finish_frame(&out, payload_start);
  return out;
}

Result<SavedSession> parse_saved_session(std::string_view bytes, const std::string& where) {
  TARN_ASSIGN(const Frame frame, open_frame(bytes, kSavedSession, where));
  ByteReader reader(frame.header);
  SavedSession session;
  const auto policy = reader.take<uint8_t>();
  const auto id_bytes = reader.take<uint8_t>();
  session.missing_breaks = reader.take<uint16_t>();
  const auto results = reader.take<uint32_t>();
  session.id = reader.bytes(id_bytes);
  if (policy > static_cast<uint8_t>(SavePolicy::kManual) ||
      session.missing_breaks > kBlankLineBreaks) {
    return corrupt("has a flag that means nothing", where);
  }
  session.policy = static_cast<SavePolicy>(policy);
  if (!reader.overrun() && !is_session_id(session.id)) {
    return corrupt("has a session id that cannot be one", where);
  }
  std::set<std::string> keys;
  for (uint32_t i = 0; i < results && !reader.overrun(); ++i) {
    session.results.push_back(take_result(reader));
    if (reader.overrun()) break;
    if (const char* fault = result_fault(session.results.back())) return corrupt(fault, where);
    if (!keys.insert(session.results.back().key).second) {
      return corrupt("has one idempotency key twice", where);
    }
  }
  if (!reader.at_end()) return corrupt("has a header of another length than its fields", where);
  session.snapshot = frame.payload;
  return session;
}

}  // namespace tarn::serve
