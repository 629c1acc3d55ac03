#include <array>
#include <span>
#include <utility>

#include "base/file.h"
#include "data/readers.h"

namespace tarn::data {
namespace {

constexpr int64_t kMnistPixels = 28 * 28;
constexpr int64_t kIdxHeaderBytes = 16;
constexpr int64_t kMaxMnistBytes = kIdxHeaderBytes + 60'000 * kMnistPixels;
constexpr int64_t kPlane = 32 * 32;
constexpr int64_t kCifarLevels = 3 * kPlane;
constexpr int64_t kCifarRecordBytes = 1 + kCifarLevels;
constexpr int64_t kMaxCifarBytes = 10'000 * kCifarRecordBytes;

uint32_t big_endian(std::string_view content, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(content[offset + i]);
  return value;
}

SequenceDataset image_dataset(const DataSpec& spec, Split split, std::vector<uint8_t> images,
                              int64_t image_bytes) {
  SequenceDataset dataset;
  dataset.spec = spec;
  dataset.split = split;
  dataset.count = static_cast<int64_t>(images.size()) / image_bytes;
  dataset.length = image_bytes;
  dataset.vocabulary = 256;
  dataset.bytes = std::move(images);
  return dataset;
}

}  // namespace

Result<std::vector<uint8_t>> parse_idx_images(std::string_view content, const std::string& where) {
  constexpr uint32_t kMagic = 0x00000803;  // unsigned bytes, three dimensions
  if (content.size() < static_cast<size_t>(kIdxHeaderBytes)) {
    return corrupt("an IDX image file has at least 16 bytes, got " + std::to_string(content.size()),
                   where);
  }
  if (const uint32_t magic = big_endian(content, 0); magic != kMagic) {
    return corrupt("no IDX image file: the magic number is " + std::to_string(magic) + ", wanted " +
                       std::to_string(kMagic),
                   where);
  }
  const uint32_t rows = big_endian(content, 8);
  const uint32_t columns = big_endian(content, 12);
  if (rows != 28 || columns != 28) {
    return corrupt(
        "images are " + std::to_string(rows) + " x " + std::to_string(columns) + ", wanted 28 x 28",
        where);
  }
  const int64_t wanted = kIdxHeaderBytes + int64_t{big_endian(content, 4)} * kMnistPixels;
  if (static_cast<int64_t>(content.size()) != wanted) {
    return corrupt("the header promises " + std::to_string(wanted) + " bytes, the file has " +
                       std::to_string(content.size()),
                   where);
  }
  return std::vector<uint8_t>(content.begin() + kIdxHeaderBytes, content.end());
}

Result<std::vector<uint8_t>> parse_cifar10_batch(std::string_view content,
                                                 const std::string& where) {
  const auto size = static_cast<int64_t>(content.size());
  if (size == 0 || size % kCifarRecordBytes != 0) {
    return corrupt("a CIFAR-10 batch is a multiple of 3073 bytes, got " + std::to_string(size),
                   where);
  }
  const int64_t count = size / kCifarRecordBytes;
  std::vector<uint8_t> images(static_cast<size_t>(count * kCifarLevels));
  for (int64_t i = 0; i < count; ++i) {
    const char* record = content.data() + i * kCifarRecordBytes;
    if (static_cast<uint8_t>(record[0]) > 9) {
      return corrupt("record " + std::to_string(i) + " has label " +
                         std::to_string(static_cast<uint8_t>(record[0])) + ", wanted 0 to 9",
                     where);
    }
    uint8_t* image = images.data() + i * kCifarLevels;
    for (int64_t channel = 0; channel < 3; ++channel) {
      for (int64_t pixel = 0; pixel < kPlane; ++pixel) {
        image[3 * pixel + channel] = static_cast<uint8_t>(record[1 + channel * kPlane + pixel]);
      }
    }
  }
  return images;
}

Status take_split(std::vector<uint8_t>& images, int64_t image_bytes, int64_t holdout, Split split,
                  const std::string& where) {
  const int64_t count = static_cast<int64_t>(images.size()) / image_bytes;
  if (holdout >= count) {
    return invalid_argument("cannot hold out " + std::to_string(holdout) + " of " +
                                std::to_string(count) + " training images",
                            where);
  }
  const auto border = images.begin() + (count - holdout) * image_bytes;
  if (split == Split::kTrain) {
    images.erase(border, images.end());
  } else {
    images.erase(images.begin(), border);
  }
  return {};
}

Result<SequenceDataset> load_mnist(const DataSpec& spec, const std::string& directory,
                                   Split split) {
  const char* const name =
      split == Split::kTest ? "t10k-images-idx3-ubyte" : "train-images-idx3-ubyte";
  const std::string plain = directory + "/" + name;
  const std::string packed = plain + ".gz";
  const bool is_plain = !path_exists(packed) && path_exists(plain);
  const std::string& path = is_plain ? plain : packed;
  TARN_ASSIGN(const std::string content,
              is_plain ? read_file(path, kMaxMnistBytes) : read_gzip_file(path, kMaxMnistBytes));
  TARN_ASSIGN(std::vector<uint8_t> images, parse_idx_images(content, path));
  if (split != Split::kTest) {
    TARN_RETURN_IF_ERROR(take_split(images, kMnistPixels, spec.holdout, split, path));
  }
  return image_dataset(spec, split, std::move(images), kMnistPixels);
}

Result<SequenceDataset> load_cifar10(const DataSpec& spec, const std::string& directory,
                                     Split split) {
  constexpr std::array kTrainFiles{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                   "data_batch_4.bin", "data_batch_5.bin"};
  constexpr std::array kTestFiles{"test_batch.bin"};
  const std::span<const char* const> files =
      split == Split::kTest ? std::span<const char* const>(kTestFiles) : kTrainFiles;
  std::vector<uint8_t> images;
  for (const char* file : files) {
    const std::string path = directory + "/" + file;
    TARN_ASSIGN(const std::string content, read_file(path, kMaxCifarBytes));
    TARN_ASSIGN(const std::vector<uint8_t> batch, parse_cifar10_batch(content, path));
    images.insert(images.end(), batch.begin(), batch.end());
  }
  if (split != Split::kTest) {
    TARN_RETURN_IF_ERROR(take_split(images, kCifarLevels, spec.holdout, split, directory));
  }
  return image_dataset(spec, split, std::move(images), kCifarLevels);
}

}  // namespace tarn::data
