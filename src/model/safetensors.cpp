#include "model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "base/checked.h"
#include "base/json.h"

namespace tarn::model {
namespace {

static_assert(std::endian::native == std::endian::little, "the file format is little-endian");

constexpr int64_t kLengthBytes = 8;  // of the header's length field
constexpr int64_t kMaxSize = (int64_t{1} << 48) - 1;
constexpr int kMaxDepth = 4;
constexpr int64_t kBlock = int64_t{1} << 16;  // elements converted at a time

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr std::array<DTypeName, 7> kDTypes = {{{"F32", DType::kF32},
                                               {"BF16", DType::kBF16},
                                               {"F16", DType::kF16},
                                               {"F64", DType::kF64},
                                               {"I64", DType::kI64},
                                               {"I32", DType::kI32},
                                               {"U8", DType::kU8}}};

const char* file_name_of(DType dtype) {
  for (const DTypeName& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

std::optional<DType> dtype_of(const std::string& name) {
  for (const DTypeName& entry : kDTypes) {
    if (name == entry.name) return entry.dtype;
  }
  return std::nullopt;
}

std::string tensor_text(std::string_view name) { return "tensor " + json_quote(name); }

/// An integer in [0, 2^48 − 1], or nothing.
std::optional<int64_t> size_value(const Json& json) {
  const int64_t* value = json.as_int();
  if (value == nullptr || *value < 0 || *value > kMaxSize) return std::nullopt;
  return *value;
}

Status read_shape(const Json& json, const SafetensorsLimits& limits, TensorEntry& entry,
                  const std::string& where) {
  const Json::Array* extents = json.as_array();
  if (extents == nullptr) return corrupt(tensor_text(entry.name) + " has no list as shape", where);
  if (static_cast<int64_t>(extents->size()) > limits.max_rank) {
    return corrupt(fmt::format("{} has {} dimensions, at most {} are allowed",
                               tensor_text(entry.name), extents->size(), limits.max_rank),
                   where);
  }
  for (const Json& extent : *extents) {
    const auto value = size_value(extent);
    if (!value) {
      return corrupt(tensor_text(entry.name) + " has a dimension that is no integer in [0, 2^48)",
                     where);
    }
    entry.shape.push_back(*value);
  }
  return {};
}

Status read_offsets(const Json& json, TensorEntry& entry, const std::string& where) {
  const Json::Array* pair = json.as_array();
  const auto begin = pair != nullptr && pair->size() == 2 ? size_value((*pair)[0]) : std::nullopt;
  const auto end = pair != nullptr && pair->size() == 2 ? size_value((*pair)[1]) : std::nullopt;
  if (!begin || !end || *end < *begin) {
    return corrupt(
        tensor_text(entry.name) + " needs data_offsets [begin, end] with 0 <= begin <= end < 2^48",
        where);
  }
  entry.begin = *begin;
  entry.end = *end;
  return {};
}

Result<TensorEntry> read_entry(const Json::Member& member, const SafetensorsLimits& limits,
                               const std::string& where) {
  TensorEntry entry;
  entry.name = member.first;
  const std::string text = tensor_text(entry.name);
  if (static_cast<int64_t>(entry.name.size()) > limits.max_name_bytes) {
    return corrupt(fmt::format("{} has a name of {} bytes, at most {} are allowed", text,
                               entry.name.size(), limits.max_name_bytes),
                   where);
  }
  const Json* dtype = member.second.find("dtype");
  const Json* shape = member.second.find("shape");
  const Json* offsets = member.second.find("data_offsets");
  const Json::Object* object = member.second.as_object();
  if (object == nullptr || object->size() != 3 || dtype == nullptr || shape == nullptr ||
      offsets == nullptr) {
    return corrupt(text + " must have exactly the keys dtype, shape and data_offsets", where);
  }
  const std::string* dtype_text = dtype->as_string();
  const auto known = dtype_text != nullptr ? dtype_of(*dtype_text) : std::nullopt;
  if (!known) {
    return corrupt(text + " has dtype " + json_quote(dtype->dump(), 20) +
                       "; known are F32, BF16, F16, F64, I64, I32, U8",
                   where);
  }
  entry.dtype = *known;
  TARN_RETURN_IF_ERROR(read_shape(*shape, limits, entry, where));
  TARN_RETURN_IF_ERROR(read_offsets(*offsets, entry, where));
  const auto elements = checked_product<int64_t>(entry.shape);
  const auto bytes = elements ? checked_mul(*elements, dtype_bytes(entry.dtype)) : std::nullopt;
  if (!bytes || *bytes != entry.end - entry.begin) {
    return corrupt(
        fmt::format("{} claims {} bytes, but its shape needs {}", text, entry.end - entry.begin,
                    bytes ? std::to_string(*bytes) : "more than 2^63"),
        where);
  }
  return entry;
}

Status read_metadata(const Json& json, SafetensorsHeader& header, const std::string& where) {
  const Json::Object* object = json.as_object();
  if (object == nullptr) return corrupt("__metadata__ must be an object", where);
  for (const Json::Member& member : *object) {
    const std::string* value = member.second.as_string();
    if (value == nullptr) {
      return corrupt("__metadata__ " + json_quote(member.first) + " must be a string", where);
    }
    header.metadata.emplace_back(member.first, *value);
  }
  return {};
}

/// The data section must be covered exactly once, in order, to its last byte.
Status check_layout(const SafetensorsHeader& header, int64_t file_bytes, const std::string& where) {
  int64_t end = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin != end) {
      return corrupt(fmt::format("{} begins at byte {} of the data, but the one before ends at {}",
                                 tensor_text(entry.name), entry.begin, end),
                     where);
    }
    end = entry.end;
  }
  if (header.data_offset + end != file_bytes) {
    return corrupt(fmt::format("has {} bytes, but its header describes {}", file_bytes,
                               header.data_offset + end),
                   where);
  }
  return {};
}

/// Length of the JSON header, checked against the file and the cap.
Result<int64_t> header_length(std::string_view prefix, int64_t file_bytes,
                              const SafetensorsLimits& limits, const std::string& where) {
  if (file_bytes < kLengthBytes || prefix.size() < static_cast<size_t>(kLengthBytes)) {
    return corrupt(fmt::format("has {} bytes, too few for a safetensors file", file_bytes), where);
  }
  uint64_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof length);
  if (length > static_cast<uint64_t>(limits.max_header_bytes)) {
    return corrupt(fmt::format("claims a header of {} bytes, at most {} are allowed", length,
                               limits.max_header_bytes),
                   where);
  }
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes) {
    return corrupt(fmt::format("claims a header of {} bytes, but has only {} after the length",
                               length, file_bytes - kLengthBytes),
                   where);
  }
  return static_cast<int64_t>(length);
}

Status check_finite(const float* values, int64_t count, int64_t first, std::string_view name,
                    const std::string& where) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) {
      return corrupt(fmt::format("{} has the value {} at index {}; all must be finite",
                                 tensor_text(name), values[i], first + i),
                     where);
    }
  }
  return {};
}

/// `count` stored elements to f32. An f64 beyond f32's range becomes infinite, which is refused.
void convert(DType dtype, const char* stored, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kF64) {
      double value;
      std::memcpy(&value, stored + i * 8, sizeof value);
      out[i] = static_cast<float>(value);
    } else {
      uint16_t bits;
      std::memcpy(&bits, stored + i * 2, sizeof bits);
      out[i] = dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
    }
  }
}

Result<std::string> header_text(const std::vector<TensorToWrite>& tensors,
                                const std::vector<std::pair<std::string, std::string>>& metadata,
                                const std::string& where) {
  Json::Object object;
  std::unordered_set<std::string_view> names;
  if (!metadata.empty()) {
    Json::Object members;
    for (const auto& [key, value] : metadata) members.emplace_back(key, value);
    object.emplace_back("__metadata__", std::move(members));
  }
  int64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kBF16) {
      return invalid_argument(tensor_text(tensor.name) + " can be written as f32 or bf16 only",
                              where);
    }
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      return invalid_argument(tensor_text(tensor.name) + " has a reserved or repeated name", where);
    }
    const auto elements = checked_product<int64_t>(tensor.shape);
    TARN_CHECK(elements.has_value());
    const int64_t end = offset + *elements * dtype_bytes(tensor.dtype);
    Json::Array shape(tensor.shape.begin(), tensor.shape.end());
    object.emplace_back(tensor.name, Json::Object{{"dtype", file_name_of(tensor.dtype)},
                                                  {"shape", std::move(shape)},
                                                  {"data_offsets", Json::Array{offset, end}}});
    offset = end;
  }
  std::string text = Json(std::move(object)).dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

Status write_values(AtomicFile& file, const TensorToWrite& tensor) {
  const int64_t count = *checked_product<int64_t>(tensor.shape);
  if (tensor.dtype == DType::kF32) {
    return file.append(tensor.values, count * static_cast<int64_t>(sizeof(float)));
  }
  std::vector<uint16_t> rounded(static_cast<size_t>(std::min(count, kBlock)));
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t block = std::min(kBlock, count - first);
    for (int64_t i = 0; i < block; ++i) {
      rounded[static_cast<size_t>(i)] = f32_to_bf16(tensor.values[first + i]);
    }
    TARN_RETURN_IF_ERROR(
        file.append(rounded.data(), block * static_cast<int64_t>(sizeof(uint16_t))));
  }
  return {};
}

}  // namespace

const TensorEntry* SafetensorsHeader::find(std::string_view name) const {
  for (const TensorEntry& entry : tensors) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view prefix, int64_t file_bytes,
                                                   const std::string& where,
                                                   const SafetensorsLimits& limits) {
  TARN_ASSIGN(const int64_t length, header_length(prefix, file_bytes, limits, where));
  if (static_cast<int64_t>(prefix.size()) < kLengthBytes + length) {
    return corrupt("ends inside its header", where);
  }
  const std::string_view text =
      prefix.substr(static_cast<size_t>(kLengthBytes), static_cast<size_t>(length));
  if (text.empty() || text[0] != '{') {
    return corrupt("is no safetensors file: its header does not begin with {", where);
  }
  TARN_ASSIGN(const Json json,
              parse_json(text, where + ": header",
                         {.max_bytes = limits.max_header_bytes, .max_depth = kMaxDepth}));
  const Json::Object* object = json.as_object();
  if (object == nullptr) return corrupt("header is no JSON object", where);
  const int64_t count = static_cast<int64_t>(object->size());
  if (count > limits.max_tensors + 1) {
    return corrupt(fmt::format("has {} tensors, at most {} are allowed", count, limits.max_tensors),
                   where);
  }
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + length;
  for (const Json::Member& member : *object) {
    if (member.first == "__metadata__") {
      TARN_RETURN_IF_ERROR(read_metadata(member.second, header, where));
      continue;
    }
    TARN_ASSIGN(TensorEntry entry, read_entry(member, limits, where));
    header.tensors.push_back(std::move(entry));
  }
  if (static_cast<int64_t>(header.tensors.size()) > limits.max_tensors) {
    return corrupt(fmt::format("has {} tensors, at most {} are allowed", header.tensors.size(),
                               limits.max_tensors),
                   where);
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  TARN_RETURN_IF_ERROR(check_layout(header, file_bytes, where));
  return header;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path,
                                              const SafetensorsLimits& limits) {
  TARN_ASSIGN(InputFile file, InputFile::open(path, limits.follow_links));
  return read(std::move(file), limits);
}

Result<SafetensorsFile> SafetensorsFile::read(InputFile file, const SafetensorsLimits& limits) {
  const std::string& path = file.path();
  std::string prefix(static_cast<size_t>(std::min(file.size(), kLengthBytes)), '\0');
  TARN_RETURN_IF_ERROR(file.read_at(0, static_cast<int64_t>(prefix.size()), prefix.data()));
  TARN_ASSIGN(const int64_t length, header_length(prefix, file.size(), limits, path));
  prefix.resize(static_cast<size_t>(kLengthBytes + length));
  TARN_RETURN_IF_ERROR(file.read_at(0, kLengthBytes + length, prefix.data()));
  TARN_ASSIGN(SafetensorsHeader header,
              parse_safetensors_header(prefix, file.size(), path, limits));
  return SafetensorsFile{std::move(file), std::move(header)};
}

Status SafetensorsFile::read_f32(const TensorEntry& entry, float* destination) const {
  const DType dtype = entry.dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16 &&
      dtype != DType::kF64) {
    return corrupt(fmt::format("{} has dtype {}, wanted F32, BF16, F16 or F64",
                               tensor_text(entry.name), file_name_of(dtype)),
                   file.path());
  }
  const int64_t size = dtype_bytes(dtype);
  const int64_t count = (entry.end - entry.begin) / size;
  std::vector<char> stored;
  if (dtype != DType::kF32) stored.resize(static_cast<size_t>(std::min(count, kBlock) * size));
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t block = std::min(kBlock, count - first);
    const int64_t offset = header.data_offset + entry.begin + first * size;
    void* target = dtype == DType::kF32 ? static_cast<void*>(destination + first) : stored.data();
    TARN_RETURN_IF_ERROR(file.read_at(offset, block * size, target));
    if (dtype != DType::kF32) convert(dtype, stored.data(), block, destination + first);
    TARN_RETURN_IF_ERROR(check_finite(destination + first, block, first, entry.name, file.path()));
  }
  return {};
}

Status write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                         const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
  });
  TARN_ASSIGN(const std::string text, header_text(tensors, metadata, path));
  TARN_ASSIGN(AtomicFile file, AtomicFile::create(path));
  const uint64_t length = text.size();
  TARN_RETURN_IF_ERROR(file.append(&length, sizeof length));
  TARN_RETURN_IF_ERROR(file.append(text.data(), static_cast<int64_t>(text.size())));
  for (const TensorToWrite& tensor : tensors) TARN_RETURN_IF_ERROR(write_values(file, tensor));
  return file.commit();
}

}  // namespace tarn::model
