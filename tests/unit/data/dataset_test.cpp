#include "data/dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

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

TEST(Generated, HeldOutSplitsHaveTheSequencesAskedForButNoMoreThanAnEpoch) {
  for (const DataKind kind : {DataKind::kCopy, DataKind::kRecall}) {
    DataSpec spec;
    spec.kind = kind;
    EXPECT_EQ(load(spec, "", Split::kTest)->count, 2'048);
    spec.held_out_sequences = 5'000;
    EXPECT_EQ(load(spec, "", Split::kTest)->count, 5'000);
    EXPECT_EQ(load(spec, "", Split::kValid)->count, 5'000);
    EXPECT_EQ(load(spec, "", Split::kTrain)->count, 65'536);
    spec.epoch_sequences = 7;
    EXPECT_EQ(load(spec, "", Split::kTest)->count, 7);
  }
}

TEST(Generated, AFolderIsRefused) {
  for (const DataKind kind : {DataKind::kCopy, DataKind::kRecall}) {
    DataSpec spec;
    spec.kind = kind;
    const auto result = load(spec, "some/folder", Split::kTrain);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().where, "--data");
    EXPECT_NE(result.error().message.find("some/folder"), std::string::npos);
  }
}

DataSpec recall_spec() {
  DataSpec spec;
  spec.kind = DataKind::kRecall;
  spec.keys = 6;
  spec.values = 5;
  spec.fillers = 2;
  spec.min_pairs = 2;
  spec.max_pairs = 6;
  spec.min_filler = 1;
  spec.max_filler = 4;
  return spec;
}

/// A recall sequence taken apart; fails where it is not of that form.
struct Recall {
  std::vector<int> keys, values;  ///< of the pairs, in order
  std::vector<int> filler_gaps;   ///< pairs before each filler
  std::vector<int> asked;         ///< index of each question's pair
};

void read_recall(const DataSpec& spec, const std::vector<uint8_t>& tokens,
                 const std::vector<uint8_t>& counted, Recall& recall) {
  const int first_value = static_cast<int>(spec.keys);
  const int first_filler = first_value + static_cast<int>(spec.values);
  const int padding = first_filler + static_cast<int>(spec.fillers);
  const int pairs = std::accumulate(counted.begin(), counted.end(), 0);
  size_t at = 0;
  while (tokens[at] >= first_filler || static_cast<int>(recall.keys.size()) < pairs) {
    ASSERT_EQ(counted[at], 0);
    if (tokens[at] >= first_filler) {
      ASSERT_LT(tokens[at++], padding);
      recall.filler_gaps.push_back(static_cast<int>(recall.keys.size()));
      continue;
    }
    ASSERT_LT(tokens[at], first_value) << "a pair begins with its key";
    recall.keys.push_back(tokens[at++]);
    ASSERT_EQ(counted[at], 0) << "the first value cannot be known";
    ASSERT_TRUE(tokens[at] >= first_value && tokens[at] < first_filler) << "its value follows";
    recall.values.push_back(tokens[at++]);
  }
  for (int i = 0; i < pairs; ++i) {
    const auto key = std::find(recall.keys.begin(), recall.keys.end(), tokens[at]);
    ASSERT_NE(key, recall.keys.end()) << "a key that was never given is asked";
    recall.asked.push_back(static_cast<int>(key - recall.keys.begin()));
    ASSERT_EQ(counted[at++], 0);
    ASSERT_EQ(tokens[at], recall.values[static_cast<size_t>(recall.asked.back())]);
    ASSERT_EQ(counted[at++], 1);
  }
  for (; at < tokens.size(); ++at) ASSERT_EQ(tokens[at], padding);
}

TEST_F(DataTest, RecallAsksEveryKeyOfItsPairsOnceAndCountsOnlyTheAnswers) {
  const DataSpec spec = recall_spec();
  const auto train = load(spec, "", Split::kTrain, 1);
  ASSERT_TRUE(train.ok());
  ASSERT_EQ(train->length, 28);
  ASSERT_EQ(train->vocabulary, 14);
  std::vector<int> pairs(7), fillers(5), gaps(7), keys(6), values(11), asked_first(6);
  for (int64_t index = 0; index < 600; ++index) {
    std::vector<uint8_t> tokens(28), counted(28);
    train->sequence(0, index, tokens.data(), counted.data());
    Recall recall;
    ASSERT_NO_FATAL_FAILURE(read_recall(spec, tokens, counted, recall)) << index;
    ++pairs.at(recall.keys.size());
    ++fillers.at(recall.filler_gaps.size());
    for (const int gap : recall.filler_gaps) ++gaps.at(static_cast<size_t>(gap));
    for (const int key : recall.keys) ++keys.at(static_cast<size_t>(key));
    for (const int value : recall.values) ++values.at(static_cast<size_t>(value));
    ++asked_first.at(static_cast<size_t>(recall.asked[0]));
    std::sort(recall.keys.begin(), recall.keys.end());
    std::sort(recall.asked.begin(), recall.asked.end());
    EXPECT_EQ(std::adjacent_find(recall.keys.begin(), recall.keys.end()), recall.keys.end());
    EXPECT_EQ(std::adjacent_find(recall.asked.begin(), recall.asked.end()), recall.asked.end());
  }
  EXPECT_EQ(pairs[0] + pairs[1] + fillers[0] + gaps[0], 0);
  // What may occur does: of 600 sequences each case gets 30 or more on average.
  for (const auto& [counts, first] :
       {std::pair{pairs, 2}, {fillers, 1}, {gaps, 1}, {keys, 0}, {values, 6}, {asked_first, 0}}) {
    EXPECT_GT(*std::min_element(counts.begin() + first, counts.end()), 5);
  }
}

TEST_F(DataTest, RecallIsAFunctionOfSeedAndPlace) {
  const auto tokens = [](Split split, uint64_t seed, int64_t epoch) {
    const auto dataset = load(recall_spec(), "", split, seed);
    std::vector<uint8_t> result(28);
    dataset->sequence(epoch, 3, result.data(), nullptr);
    return result;
  };
  EXPECT_EQ(tokens(Split::kTrain, 1, 2), tokens(Split::kTrain, 1, 2));
  EXPECT_NE(tokens(Split::kTrain, 1, 2), tokens(Split::kTrain, 1, 3));
  EXPECT_NE(tokens(Split::kTrain, 1, 2), tokens(Split::kTrain, 2, 2));
  EXPECT_EQ(tokens(Split::kValid, 1, 2), tokens(Split::kValid, 1, 3));
  EXPECT_NE(tokens(Split::kValid, 1, 2), tokens(Split::kTest, 1, 2));
}

TEST_F(DataTest, ANeedleIsOnePairAtAFixedDistance) {
  DataSpec spec;
  spec.kind = DataKind::kRecall;
  spec.min_pairs = spec.max_pairs = 1;
  spec.min_filler = spec.max_filler = 50;
  const auto test = load(spec, "", Split::kTest);
  ASSERT_TRUE(test.ok());
  std::vector<uint8_t> tokens(54), counted(54);
  ASSERT_EQ(test->length, 54);
  test->sequence(0, 7, tokens.data(), counted.data());
  EXPECT_EQ(std::count(tokens.begin() + 2, tokens.begin() + 52, 128), 50);
  EXPECT_EQ(tokens[0], tokens[52]);
  EXPECT_EQ(tokens[1], tokens[53]);
  EXPECT_EQ(std::accumulate(counted.begin(), counted.end(), 0), 1);
  EXPECT_EQ(counted[53], 1);
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
  for (
      const char* text :
      {R"({"kind":"mnist","holdout":7})", R"({"kind":"cifar10"})",
       R"({"kind":"text_bytes","file":"a.txt","length":64})", R"({"kind":"copy","symbols":4})",
       R"({"kind":"recall","keys":9,"values":7,"fillers":3,"min_pairs":2,"max_pairs":8,"min_filler":1,"max_filler":5,"epoch_sequences":11,"held_out_sequences":3})"}) {
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
        R"({"kind":"copy","max_symbols":4,"min_symbols":5})",
        R"({"kind":"recall","keys":4,"max_pairs":5})", R"({"kind":"recall","min_pairs":17})",
        R"({"kind":"recall","keys":128,"values":127})", R"({"kind":"recall","min_filler":1})"}) {
    const auto json = parse_json(text, "test");
    ASSERT_TRUE(json.ok());
    EXPECT_FALSE(parse_data_spec(*json, "data").ok()) << text;
  }
}

}  // namespace
}  // namespace tarn::data
