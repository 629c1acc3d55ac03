#include "data/dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "data/readers.h"

namespace tarn::data {
namespace {

namespace fs = std::filesystem;

class DataTest : public testing::Test {
 protected:
  DataTest() : folder_(fs::temp_directory_path() / ("tarn_data_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~DataTest() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }
  void write_gzip(const std::string& name, const std::string& content) const {
    gzFile file = gzopen(path(name).c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
  }
  std::string folder() const { return folder_.string(); }

 private:
  fs::path folder_;
};

std::string idx_file(uint32_t count, uint32_t magic = 0x803, uint32_t side = 28) {
  std::string content;
  for (const uint32_t word : {magic, count, side, side}) {
    for (int shift = 24; shift >= 0; shift -= 8) content += static_cast<char>(word >> shift);
  }
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t pixel = 0; pixel < side * side; ++pixel) {
      content += static_cast<char>((i * 31 + pixel) % 251);
    }
  }
  return content;
}

TEST_F(DataTest, MnistSplitsHoldOutTheLastTrainingImages) {
  write_gzip("train-images-idx3-ubyte.gz", idx_file(7));
  write_gzip("t10k-images-idx3-ubyte.gz", idx_file(3));
  DataSpec spec;
  spec.holdout = 2;
  const auto train = load(spec, folder(), Split::kTrain);
  const auto valid = load(spec, folder(), Split::kValid);
  const auto test = load(spec, folder(), Split::kTest);
  ASSERT_TRUE(train.ok() && valid.ok() && test.ok());
  EXPECT_EQ(train->count, 5);
  EXPECT_EQ(valid->count, 2);
  EXPECT_EQ(test->count, 3);
  EXPECT_EQ(train->length, 784);
  std::vector<uint8_t> tokens(784), counted(784);
  valid->sequence(0, 1, tokens.data(), counted.data());
  EXPECT_EQ(tokens[5], (6 * 31 + 5) % 251);
  EXPECT_EQ(std::accumulate(counted.begin(), counted.end(), 0), 784);
}

TEST_F(DataTest, MnistReadsPlainFilesToo) {
  write("t10k-images-idx3-ubyte", idx_file(2));
  const auto test = load(DataSpec{}, folder(), Split::kTest);
  ASSERT_TRUE(test.ok());
  EXPECT_EQ(test->count, 2);
}

TEST_F(DataTest, MnistRefusesWrongFiles) {
  EXPECT_EQ(load(DataSpec{}, folder(), Split::kTest).error().code, ErrorCode::kNotFound);
  const std::string good = idx_file(2);
  for (const std::string& bad : {std::string(), good.substr(0, 15), good.substr(0, good.size() - 1),
                                 good + "x", idx_file(2, 0x801), idx_file(2, 0x803, 27)}) {
    EXPECT_FALSE(parse_idx_images(bad, "file").ok());
  }
  EXPECT_TRUE(parse_idx_images(good, "file").ok());
  write_gzip("train-images-idx3-ubyte.gz", good);
  DataSpec spec;
  spec.holdout = 2;
  EXPECT_FALSE(load(spec, folder(), Split::kTrain).ok());
}

TEST_F(DataTest, Cifar10InterleavesThePlanesOfAPixel) {
  std::string record(3073, '\0');
  record[0] = 9;
  record[1 + 5] = 10;         // red of pixel 5
  record[1 + 1024 + 5] = 20;  // green
  record[1 + 2048 + 5] = 30;  // blue
  const auto images = parse_cifar10_batch(record + record, "file");
  ASSERT_TRUE(images.ok());
  ASSERT_EQ(images->size(), 2u * 3072u);
  EXPECT_EQ((*images)[3072 + 15], 10);
  EXPECT_EQ((*images)[3072 + 16], 20);
  EXPECT_EQ((*images)[3072 + 17], 30);
  EXPECT_EQ(std::accumulate(images->begin(), images->end(), 0), 120);
  EXPECT_FALSE(parse_cifar10_batch("", "file").ok());
  EXPECT_FALSE(parse_cifar10_batch(record + "x", "file").ok());
  record[0] = 10;
  EXPECT_FALSE(parse_cifar10_batch(record, "file").ok());
}

TEST_F(DataTest, TextSplitsByPositionAndWindowsMoveWithTheEpoch) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i % 256);
  write("book.txt", text);
  DataSpec spec;
  spec.kind = DataKind::kTextBytes;
  spec.file = "book.txt";
  spec.length = 10;
  spec.valid_fraction = 0.1;
  spec.test_fraction = 0.2;
  const auto train = load(spec, folder(), Split::kTrain, 5);
  const auto valid = load(spec, folder(), Split::kValid, 5);
  const auto test = load(spec, folder(), Split::kTest, 5);
  ASSERT_TRUE(train.ok() && valid.ok() && test.ok());
  EXPECT_EQ(train->count, (700 - 9) / 10);
  EXPECT_EQ(valid->count, 10);
  EXPECT_EQ(test->count, 20);
  uint8_t tokens[10];
  valid->sequence(3, 0, tokens, nullptr);
  EXPECT_EQ(tokens[0], 700 % 256);
  test->sequence(3, 0, tokens, nullptr);
  EXPECT_EQ(tokens[0], 800 % 256);
  std::vector<int> starts;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    train->sequence(epoch, train->count - 1, tokens, nullptr);
    EXPECT_EQ(static_cast<uint8_t>(tokens[0] + 9), tokens[9]);
    starts.push_back(tokens[0]);
  }
  EXPECT_NE(std::adjacent_find(starts.begin(), starts.end(), std::not_equal_to<>()), starts.end());
  spec.length = 300;
  EXPECT_FALSE(load(spec, folder(), Split::kTest).ok());
}

TEST_F(DataTest, CopySequencesRepeatTheirSymbolsAndCountOnlyTheCopy) {
  DataSpec spec;
  spec.kind = DataKind::kCopy;
  spec.max_symbols = 9;
  spec.min_symbols = 2;
  const auto train = load(spec, "", Split::kTrain, 1);
  ASSERT_TRUE(train.ok());
  EXPECT_EQ(train->length, 19);
  EXPECT_EQ(train->vocabulary, 12);
  std::vector<int> lengths(10);
  for (int64_t index = 0; index < 200; ++index) {
    uint8_t tokens[19], counted[19];
    train->sequence(0, index, tokens, counted);
    const auto n = std::find(tokens, tokens + 19, 10) - tokens;
    ASSERT_GE(n, 2);
    ASSERT_LE(n, 9);
    ++lengths[static_cast<size_t>(n)];
    for (int64_t i = 0; i < 19; ++i) {
      EXPECT_EQ(counted[i], i > n && i <= 2 * n ? 1 : 0);
      if (i > n && i <= 2 * n) {
        EXPECT_EQ(tokens[i], tokens[i - n - 1]);
      } else if (i > 2 * n) {
        EXPECT_EQ(tokens[i], 11);
      }
    }
  }
  EXPECT_GT(*std::min_element(lengths.begin() + 2, lengths.end()), 0);
  uint8_t first[19], second[19];
  train->sequence(0, 0, first, nullptr);
  train->sequence(1, 0, second, nullptr);
  EXPECT_FALSE(std::equal(first, first + 19, second));
}

TEST(EpochOrder, IsAPermutationOfSeedAndEpochAlone) {
  const auto order = epoch_order(1000, 3, 4);
  EXPECT_EQ(order, epoch_order(1000, 3, 4));
  EXPECT_NE(order, epoch_order(1000, 3, 5));
  EXPECT_NE(order, epoch_order(1000, 4, 4));
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int32_t i = 0; i < 1000; ++i) ASSERT_EQ(sorted[static_cast<size_t>(i)], i);
  EXPECT_TRUE(epoch_order(0, 1, 1).empty());
}

TEST(DataSpec, RoundTripsAndNamesUnknownKeys) {
  for (const char* text :
       {R"({"kind":"mnist","holdout":7})", R"({"kind":"cifar10"})",
        R"({"kind":"text_bytes","file":"a.txt","length":64})", R"({"kind":"copy","symbols":4})"}) {
    const auto json = parse_json(text, "test");
    ASSERT_TRUE(json.ok());
    const auto spec = parse_data_spec(*json, "data");
    ASSERT_TRUE(spec.ok()) << spec.error().to_string();
    const auto again = parse_data_spec(to_json(*spec), "data");
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    EXPECT_EQ(to_json(*again), to_json(*spec));
  }
  for (const char* text :
       {R"({"kind":"mnist","length":7})", R"({"kind":"imagenet"})", R"({})",
        R"({"kind":"text_bytes","length":0})", R"({"kind":"text_bytes","length":9,"file":"../x"})",
        R"({"kind":"copy","max_symbols":4,"min_symbols":5})"}) {
    const auto json = parse_json(text, "test");
    ASSERT_TRUE(json.ok());
    EXPECT_FALSE(parse_data_spec(*json, "data").ok()) << text;
  }
}

}  // namespace
}  // namespace tarn::data
