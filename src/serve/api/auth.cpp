#include "serve/api/auth.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/checksum.h"

namespace tarn::serve::api {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

bool is_printable(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

/// As long for any two texts of these lengths.
bool same_bytes(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

/// What follows "Bearer " in the Authorization header, or nothing.
std::string_view bearer(const http::Request& request) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string* header = request.header("Authorization");
  if (header == nullptr || header->size() <= kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = (*header)[i];
    if ((c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c) != kScheme[i]) return {};
  }
  return trim(std::string_view(*header).substr(kScheme.size()));
}

}  // namespace

Result<std::vector<ApiKey>> parse_api_keys(std::string_view text, const std::string& where) {
  std::vector<ApiKey> keys;
  for (size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = trim(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
    if (line.empty() || line.front() == '#') continue;
    const std::string place = where + ": line " + std::to_string(number);
    const size_t colon = line.find(':');
    ApiKey key{"key" + std::to_string(number), std::string(line)};
    if (colon != std::string_view::npos) {
      key = {std::string(trim(line.substr(0, colon))), std::string(trim(line.substr(colon + 1)))};
    }
    if (!is_printable(key.name) || !is_printable(key.key)) {
      return invalid_argument(
          "wanted \"name:key\" or \"key\", of printable characters without blanks", place);
    }
    for (const ApiKey& other : keys) {
      if (other.name == key.name) return invalid_argument("this name occurs twice", place);
      if (other.key == key.key) return invalid_argument("this key occurs twice", place);
    }
    keys.push_back(std::move(key));
  }
  if (keys.empty()) return invalid_argument("holds no key", where);
  return keys;
}

ApiKeys::ApiKeys(std::vector<ApiKey> keys) : keys_(std::move(keys)) {
  std::random_device chance;
  secret_ = uint64_t{chance()} << 32 | chance();
  for (const ApiKey& key : keys_) hashes_.push_back(hash(key.key));
}

ApiKeys::Hash ApiKeys::hash(std::string_view key) const {
  return xxh3_128(key.data(), static_cast<int64_t>(key.size()), secret_);
}

const std::string* ApiKeys::find(const http::Request& request) const {
  const std::string_view given = bearer(request);
  const Hash wanted = hash(given);
  const ApiKey* found = nullptr;
  for (size_t i = 0; i < keys_.size(); ++i) {
    unsigned difference = 0;
    for (size_t byte = 0; byte < wanted.size(); ++byte) {
      difference |= static_cast<unsigned>(wanted[byte]) ^ hashes_[i][byte];
    }
    if (difference == 0) found = &keys_[i];
  }
  if (found == nullptr || !same_bytes(found->key, given)) return nullptr;
  return &found->name;
}

}  // namespace tarn::serve::api
