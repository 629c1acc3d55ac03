#include "report/png.h"

#include <fmt/format.h>
#include <png.h>

#include <cstring>

#include "base/file.h"

namespace tarn::report {
namespace {

/// libpng's simplified interface: it catches its own errors inside C code, so that no longjmp ever
/// crosses a C++ frame. The guard frees what a half-read picture holds.
struct PngImage {
  png_image handle;
  PngImage() {
    std::memset(&handle, 0, sizeof handle);
    handle.version = PNG_IMAGE_VERSION;
  }
  ~PngImage() { png_image_free(&handle); }
  PngImage(const PngImage&) = delete;
  PngImage& operator=(const PngImage&) = delete;
};

/// The layout of an Image's pixels: one to four bytes, grey or colours, the even counts with alpha.
png_uint_32 format_of(int64_t channels) {
  switch (channels) {
    case 1: return PNG_FORMAT_GRAY;
    case 2: return PNG_FORMAT_GA;
    case 3: return PNG_FORMAT_RGB;
    default: return PNG_FORMAT_RGBA;
  }
}

}  // namespace

Result<std::string> encode_png(const Image& image) {
  if (image.width < 1 || image.height < 1) {
    return invalid_argument(
        fmt::format("cannot write a picture of {}x{} pixels as PNG", image.width, image.height));
  }
  PngImage png;
  png.handle.width = static_cast<png_uint_32>(image.width);
  png.handle.height = static_cast<png_uint_32>(image.height);
  png.handle.format = format_of(image.channels);
  // The bound for incompressible data: one pass instead of a dry run for the size.
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(png.handle);
  std::string encoded(bytes, '\0');
  if (png_image_write_to_memory(&png.handle, encoded.data(), &bytes, 0, image.pixels.data(), 0,
                                nullptr) == 0) {
    return Error{
        ErrorCode::kResource, fmt::format("cannot encode a PNG: {}", png.handle.message), {}};
  }
  encoded.resize(bytes);
  return encoded;
}

Status write_png(const std::string& path, const Image& image) {
  TARN_ASSIGN(const std::string encoded, encode_png(image));
  return write_file_atomic(path, encoded);
}

Result<Image> decode_png(std::string_view bytes, int64_t channels, const std::string& where,
                         const PngLimits& limits) {
  PngImage png;
  if (png_image_begin_read_from_memory(&png.handle, bytes.data(), bytes.size()) == 0) {
    return corrupt(fmt::format("not a PNG file ({})", png.handle.message), where);
  }
  const int64_t width = png.handle.width;
  const int64_t height = png.handle.height;
  if (width > limits.max_width || height > limits.max_height ||
      width * height > limits.max_pixels) {
    return Error{ErrorCode::kResource,
                 fmt::format("the picture is {}x{} pixels, over the limit of {}x{} and {} in all",
                             width, height, limits.max_width, limits.max_height, limits.max_pixels),
                 where};
  }
  png.handle.format = format_of(channels);
  png.handle.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  Image image = Image::filled(width, height, channels, 0);
  const png_color black = {0, 0, 0};
  if (png_image_finish_read(&png.handle, &black, image.pixels.data(), 0, nullptr) == 0) {
    return corrupt(fmt::format("damaged PNG file ({})", png.handle.message), where);
  }
  return image;
}

Result<Image> read_png(const std::string& path, int64_t width, int64_t height, int64_t channels,
                       const PngLimits& limits) {
  TARN_ASSIGN(const std::string bytes, read_file(path, limits.max_file_bytes));
  TARN_ASSIGN(Image image, decode_png(bytes, channels, path, limits));
  if (image.width != width || image.height != height) {
    return invalid_argument(fmt::format("the picture is {}x{} pixels, wanted {}x{}", image.width,
                                        image.height, width, height),
                            path);
  }
  return image;
}

}  // namespace tarn::report
