#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "report/image.h"

namespace tarn::report {

/// The bytes of a PNG file with that picture, 8 bits per channel.
/// Errors: kInvalidArgument for an empty picture, kResource when libpng runs out of memory.
Result<std::string> encode_png(const Image& image);

/// Writes a PNG file atomically.
Status write_png(const std::string& path, const Image& image);

/// Caps on what a file may claim, checked before pixels are allocated.
struct PngLimits {
  int64_t max_file_bytes = int64_t{64} << 20;
  int64_t max_width = 16384;
  int64_t max_height = 16384;
  int64_t max_pixels = int64_t{1} << 26;
};

/// Decodes any PNG (palette, 1 to 16 bits, alpha over black, interlaced) to `channels` channels
/// of 8 bits. Errors: kCorrupt for bytes that are no complete PNG, kResource over a limit.
Result<Image> decode_png(std::string_view bytes, int64_t channels, const std::string& where,
                         const PngLimits& limits = {});

/// Reads a file that must be exactly width × height pixels.
Result<Image> read_png(const std::string& path, int64_t width, int64_t height, int64_t channels,
                       const PngLimits& limits = {});

}  // namespace tarn::report
