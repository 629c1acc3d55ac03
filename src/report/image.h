#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace tarn::report {

/// 8-bit picture, rows from top to bottom, channels interleaved: 1 (grey), 2 (grey and
/// alpha), 3 (RGB) or 4 (RGB and alpha).
struct Image {
  int64_t width = 0;
  int64_t height = 0;
  int64_t channels = 1;
  std::vector<uint8_t> pixels;  ///< [height, width, channels]

  static Image filled(int64_t width, int64_t height, int64_t channels, uint8_t value);
  uint8_t* at(int64_t row, int64_t column) {
    return pixels.data() + (row * width + column) * channels;
  }
  const uint8_t* at(int64_t row, int64_t column) const {
    return pixels.data() + (row * width + column) * channels;
  }
};

/// Levels 0 to levels − 1 of a model on black to white, rounded; a level of 256 is its own pixel.
/// Levels outside, such as a start token, take the nearest end. The inverse gives the nearest level.
uint8_t pixel_of_level(int64_t level, int64_t levels);
int32_t level_of_pixel(uint8_t pixel, int64_t levels);

struct SheetLayout {
  int64_t columns = 0;  ///< pictures per row; 0: as square as possible
  int64_t scale = 0;    ///< pixels become scale × scale blocks; 0: small pictures reach 56 pixels
  int64_t gap = 2;      ///< pixels between pictures and around them
  uint8_t background = 128;
};

/// One picture with all `images` in a grid, row by row.
/// Errors: kInvalidArgument when there is none, when sizes or channels differ, or when the sheet
/// would be larger than 2^28 bytes.
Result<Image> make_sheet(std::span<const Image> images, const SheetLayout& layout);

}  // namespace tarn::report
