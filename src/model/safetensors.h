#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/result.h"

namespace tarn::model {

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< byte offset in the data section
  int64_t end = 0;
};

/// Caps on what a file may claim, checked before anything is allocated.
struct SafetensorsLimits {
  int64_t max_header_bytes = int64_t{16} << 20;
  int64_t max_tensors = 100'000;
  int64_t max_name_bytes = 1024;
  int64_t max_rank = 8;
  bool follow_links = false;  ///< the file itself may be a symbolic link
};

/// Header of a .safetensors file: tensors sorted by offset, without gaps, overlaps or trailing
/// bytes; duplicate keys, unknown dtypes and overflowing sizes are errors (docs/formats/model.md).
struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
  int64_t data_offset = 0;  ///< of the data section in the file
  const TensorEntry* find(std::string_view name) const;
};

/// Parses the header from the first bytes of a file of `file_bytes` bytes. `prefix` must hold at
/// least 8 bytes and the whole header. Pure: what the fuzzer drives.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view prefix, int64_t file_bytes,
                                                   const std::string& where,
                                                   const SafetensorsLimits& limits = {});

/// Opens a file and reads its header.
struct SafetensorsFile {
  InputFile file;
  SafetensorsHeader header;
  static Result<SafetensorsFile> open(const std::string& path,
                                      const SafetensorsLimits& limits = {});
  /// The same of an open file.
  static Result<SafetensorsFile> read(InputFile file, const SafetensorsLimits& limits = {});
  /// Reads a tensor converted to f32. NaN and infinity are errors that name tensor and index.
  Status read_f32(const TensorEntry& entry, float* destination) const;
};

/// A tensor to write: f32 values stored as f32 or bf16 (rounded to nearest even).
struct TensorToWrite {
  std::string name;
  std::vector<int64_t> shape;
  const float* values = nullptr;
  DType dtype = DType::kF32;
};

/// Writes a file atomically: all f32 tensors, then all bf16 ones, each in the given order, so that
/// every element is aligned to its size. Names must be unique and dtypes f32 or bf16; the header
/// is padded with spaces to a multiple of 8 bytes.
Status write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                         const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace tarn::model
