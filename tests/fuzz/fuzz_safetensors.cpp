#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/safetensors.h"

/// Any bytes as a whole file: an error, or tensors that tile the data section exactly.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto header =
      tarn::model::parse_safetensors_header(file, static_cast<int64_t>(size), "input");
  if (!header.ok()) return 0;
  int64_t end = 0;
  for (const tarn::model::TensorEntry& tensor : header->tensors) {
    TARN_CHECK(tensor.begin == end && tensor.end >= tensor.begin);
    end = tensor.end;
  }
  TARN_CHECK(header->data_offset + end == static_cast<int64_t>(size));
  return 0;
}
