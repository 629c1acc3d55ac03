#include "report/png.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/file.h"

namespace tarn::report {
namespace {

/// A picture whose every byte is different from its neighbours'.
Image pattern(int64_t width, int64_t height, int64_t channels) {
  Image image = Image::filled(width, height, channels, 0);
  for (size_t i = 0; i < image.pixels.size(); ++i) {
    image.pixels[i] = static_cast<uint8_t>(i * 37 + i / 251);
  }
  return image;
}

std::string temporary(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) /
          ("tarn_png_" + std::to_string(getpid()) + "_" + name))
      .string();
}

TEST(Png, EveryNumberOfChannelsFillsExactlyItsPixels) {
  for (int64_t channels : {1, 2, 3, 4}) {
    Image image = pattern(33, 21, channels);
    for (size_t i = 0; i < image.pixels.size(); ++i) {  // opaque: alpha must not change colours
      if (channels % 2 == 0 && (i + 1) % static_cast<size_t>(channels) == 0) image.pixels[i] = 255;
    }
    const Result<std::string> bytes = encode_png(image);
    ASSERT_TRUE(bytes.ok());
    const Result<Image> back = decode_png(*bytes, channels, "test");
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(back.value().pixels, image.pixels) << channels;
  }
}

TEST(Png, GreyAndColourSurviveTheRoundTripAtAwkwardSizes) {
  for (int64_t channels : {1, 3}) {
    for (auto [width, height] : {std::pair{1, 1}, {28, 28}, {7, 13}, {255, 2}, {1, 300}}) {
      const Image image = pattern(width, height, channels);
      const std::string path = temporary("round.png");
      ASSERT_TRUE(write_png(path, image).ok());
      const Result<Image> back = read_png(path, width, height, channels);
      ASSERT_TRUE(back.ok()) << back.error().to_string();
      EXPECT_EQ(back.value().pixels, image.pixels) << width << "x" << height << "x" << channels;
    }
  }
}

TEST(Png, GreyReadAsColourRepeatsTheValue) {
  const Image grey = pattern(5, 4, 1);
  const Result<std::string> bytes = encode_png(grey);
  ASSERT_TRUE(bytes.ok());
  const Result<Image> colour = decode_png(bytes.value(), 3, "test");
  ASSERT_TRUE(colour.ok());
  for (size_t i = 0; i < grey.pixels.size(); ++i) {
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(colour.value().pixels[3 * i + c], grey.pixels[i]);
  }
}

TEST(Png, WrongSizeSaysGotAndWanted) {
  const std::string path = temporary("size.png");
  ASSERT_TRUE(write_png(path, pattern(9, 8, 1)).ok());
  const Result<Image> image = read_png(path, 28, 28, 1);
  ASSERT_FALSE(image.ok());
  EXPECT_EQ(image.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(image.error().message.find("9x8"), std::string::npos);
  EXPECT_NE(image.error().message.find("28x28"), std::string::npos);
}

TEST(Png, EveryTruncationInsideThePixelsIsAnError) {
  const std::string bytes = encode_png(pattern(28, 28, 1)).value();
  // The last 12 bytes are the IEND chunk, which carries nothing; pixels are complete before it.
  for (size_t size = 0; size + 12 < bytes.size(); ++size) {
    EXPECT_FALSE(decode_png(std::string_view(bytes).substr(0, size), 1, "test").ok()) << size;
  }
}

TEST(Png, FlippedPixelBytesAreAnErrorAndNoOtherFlipCrashes) {
  const std::string bytes = encode_png(pattern(28, 28, 1)).value();
  const size_t data = bytes.find("IDAT");
  ASSERT_NE(data, std::string::npos);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
    const Result<Image> image = decode_png(damaged, 1, "test");
    const bool is_pixels = i >= data + 4 && i + 16 < bytes.size();
    if (is_pixels) {
      EXPECT_FALSE(image.ok()) << i;
    }
  }
}

TEST(Png, ClaimedSizesAreCheckedBeforePixelsAreAllocated) {
  PngLimits limits;
  limits.max_width = 27;
  const std::string bytes = encode_png(pattern(28, 28, 1)).value();
  const Result<Image> image = decode_png(bytes, 1, "test", limits);
  ASSERT_FALSE(image.ok());
  EXPECT_EQ(image.error().code, ErrorCode::kResource);
}

TEST(Png, NoPngAtAll) {
  EXPECT_FALSE(decode_png("", 1, "test").ok());
  EXPECT_FALSE(decode_png("P5 1 1 255 x", 1, "test").ok());
  EXPECT_FALSE(read_png(temporary("missing.png"), 1, 1, 1).ok());
  EXPECT_FALSE(encode_png(Image{}).ok());
}

TEST(Sheet, PlacesEveryPictureWithGapsAndScale) {
  std::vector<Image> images;
  for (uint8_t i = 0; i < 5; ++i) images.push_back(Image::filled(2, 3, 1, i));
  SheetLayout layout;
  layout.columns = 3;
  layout.scale = 2;
  layout.gap = 1;
  layout.background = 200;
  const Image sheet = make_sheet(images, layout).value();
  EXPECT_EQ(sheet.width, 3 * (4 + 1) + 1);
  EXPECT_EQ(sheet.height, 2 * (6 + 1) + 1);
  for (int64_t row = 0; row < sheet.height; ++row) {
    for (int64_t column = 0; column < sheet.width; ++column) {
      const int64_t index = row / 7 * 3 + column / 5;
      const bool gap = row % 7 == 0 || column % 5 == 0 || index >= 5;
      EXPECT_EQ(*sheet.at(row, column), gap ? 200 : index) << row << "," << column;
    }
  }
}

TEST(Sheet, IsNearlySquareAndRefusesMixturesAndGiants) {
  const std::vector<Image> images(64, Image::filled(28, 28, 1, 0));
  const Image sheet = make_sheet(images, {}).value();
  EXPECT_EQ(sheet.width, sheet.height);
  EXPECT_EQ(sheet.width, 8 * (56 + 2) + 2);
  EXPECT_FALSE(make_sheet({}, {}).ok());
  const std::vector<Image> mixed = {Image::filled(2, 2, 1, 0), Image::filled(2, 2, 3, 0)};
  EXPECT_FALSE(make_sheet(mixed, {}).ok());
  SheetLayout huge;
  huge.scale = int64_t{1} << 20;
  EXPECT_FALSE(make_sheet(images, huge).ok());
}

TEST(Levels, SpanBlackToWhiteForAnyNumberOfThem) {
  for (int level = 0; level < 256; ++level) {
    ASSERT_EQ(pixel_of_level(level, 256), level);
    ASSERT_EQ(level_of_pixel(static_cast<uint8_t>(level), 256), level);
  }
  for (const int64_t levels : {2, 3, 16, 255, 257, 512, 65'536}) {
    EXPECT_EQ(pixel_of_level(0, levels), 0);
    EXPECT_EQ(pixel_of_level(levels - 1, levels), 255);
    EXPECT_EQ(pixel_of_level(levels, levels), 255) << "a start token does not wrap";
    EXPECT_EQ(level_of_pixel(0, levels), 0);
    EXPECT_EQ(level_of_pixel(255, levels), levels - 1);
    const double step = 255.0 / static_cast<double>(levels - 1);
    for (int64_t level = 0; level < levels; ++level) {
      const double exact = step * static_cast<double>(level);
      ASSERT_LE(std::abs(pixel_of_level(level, levels) - exact), 0.5) << level << " " << levels;
      if (levels > 256) continue;
      ASSERT_EQ(level_of_pixel(pixel_of_level(level, levels), levels), level) << levels;
    }
  }
  EXPECT_EQ(pixel_of_level(300, 512), 150);
  EXPECT_EQ(pixel_of_level(0, 1), 0);
}

}  // namespace
}  // namespace tarn::report
