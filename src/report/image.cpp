#include "report/image.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"

namespace tarn::report {
namespace {

constexpr int64_t kMaxSheetBytes = int64_t{1} << 28;
constexpr int64_t kWhite = 255;
constexpr int64_t kReadableSize = 56;  // pixels: a 28-pixel digit doubled

int64_t automatic_columns(int64_t count) {
  int64_t columns = 1;
  while (columns * columns < count) ++columns;
  return columns;
}

int64_t automatic_scale(const Image& image) {
  const int64_t size = std::max(image.width, image.height);
  return std::max<int64_t>(1, (kReadableSize + size - 1) / size);
}

void draw_scaled(const Image& image, int64_t scale, int64_t top, int64_t left, Image& sheet) {
  for (int64_t row = 0; row < image.height * scale; ++row) {
    for (int64_t column = 0; column < image.width * scale; ++column) {
      const uint8_t* from = image.at(row / scale, column / scale);
      std::copy_n(from, image.channels, sheet.at(top + row, left + column));
    }
  }
}

}  // namespace

Image Image::filled(int64_t width, int64_t height, int64_t channels, uint8_t value) {
  return {width, height, channels,
          std::vector<uint8_t>(static_cast<size_t>(width * height * channels), value)};
}

uint8_t pixel_of_level(int64_t level, int64_t levels) {
  const int64_t last = std::max<int64_t>(1, levels - 1);
  return static_cast<uint8_t>((2 * kWhite * std::clamp<int64_t>(level, 0, last) + last) /
                              (2 * last));
}

int32_t level_of_pixel(uint8_t pixel, int64_t levels) {
  const int64_t last = std::max<int64_t>(0, levels - 1);
  return static_cast<int32_t>((2 * last * pixel + kWhite) / (2 * kWhite));
}

Result<Image> make_sheet(std::span<const Image> images, const SheetLayout& layout) {
  if (images.empty()) return invalid_argument("a sheet needs at least one picture");
  const Image& first = images.front();
  for (const Image& image : images) {
    if (image.width != first.width || image.height != first.height ||
        image.channels != first.channels) {
      return invalid_argument(fmt::format(
          "pictures of a sheet must have one size, got {}x{}x{} beside {}x{}x{}", image.width,
          image.height, image.channels, first.width, first.height, first.channels));
    }
  }
  const int64_t count = static_cast<int64_t>(images.size());
  const int64_t columns = layout.columns > 0 ? layout.columns : automatic_columns(count);
  const int64_t rows = (count + columns - 1) / columns;
  const int64_t scale = layout.scale > 0 ? layout.scale : automatic_scale(first);
  const auto width = checked_mul(columns, first.width * scale + layout.gap);
  const auto height = checked_mul(rows, first.height * scale + layout.gap);
  if (!width || !height || *width > kMaxSheetBytes || *height > kMaxSheetBytes ||
      *width * *height > kMaxSheetBytes / first.channels) {
    return invalid_argument(fmt::format("a sheet of {} pictures of {}x{} pixels is too large",
                                        count, first.width * scale, first.height * scale));
  }
  Image sheet =
      Image::filled(*width + layout.gap, *height + layout.gap, first.channels, layout.background);
  for (int64_t i = 0; i < count; ++i) {
    draw_scaled(images[static_cast<size_t>(i)], scale,
                layout.gap + i / columns * (first.height * scale + layout.gap),
                layout.gap + i % columns * (first.width * scale + layout.gap), sheet);
  }
  return sheet;
}

}  // namespace tarn::report
