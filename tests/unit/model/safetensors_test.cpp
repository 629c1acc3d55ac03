#include "model/safetensors.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

namespace tarn::model {
namespace {

/// A file: length, header, `data_bytes` zero bytes.
std::string file_of(const std::string& header, int64_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  return file + header + std::string(static_cast<size_t>(data_bytes), '\0');
}

std::string error_of(const std::string& file, const SafetensorsLimits& limits = {}) {
  const auto header =
      parse_safetensors_header(file, static_cast<int64_t>(file.size()), "m.safetensors", limits);
  return header.ok() ? "" : header.error().to_string();
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(SafetensorsHeader, ReadsTensorsInOrderOfTheirData) {
  const std::string file =
      file_of("{\"__metadata__\":{\"k\":\"v\"}," + entry("b", "F32", "[2,3]", "[4,28]") + "," +
                  entry("a", "BF16", "[2]", "[0,4]") + "," +
                  entry("scalar", "F64", "[]", "[28,36]") + "}  ",
              36);
  const auto header = parse_safetensors_header(file, static_cast<int64_t>(file.size()), "f");
  ASSERT_TRUE(header.ok()) << header.error().to_string();
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(header->tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header->find("scalar")->begin, 28);
  EXPECT_EQ(header->find("none"), nullptr);
  EXPECT_EQ(header->data_offset + 36, static_cast<int64_t>(file.size()));
  EXPECT_EQ(header->metadata, (std::vector<std::pair<std::string, std::string>>{{"k", "v"}}));
}

TEST(SafetensorsHeader, AcceptsEmptyTensorsAndNoTensors) {
  EXPECT_EQ(error_of(file_of("{}", 0)), "");
  EXPECT_EQ(error_of(file_of("{" + entry("z", "F32", "[0,9]", "[4,4]") + "," +
                                 entry("a", "F32", "[1]", "[0,4]") + "," +
                                 entry("y", "F32", "[3,0]", "[0,0]") + "}",
                             4)),
            "");
}

TEST(SafetensorsHeader, EveryRuleHasItsError) {
  struct Case {
    std::string file;
    const char* error;
  };
  const auto one = [](const std::string& text, int64_t bytes) {
    return file_of("{" + text + "}", bytes);
  };
  std::string lying = file_of("{}", 0);
  lying[7] = '\x7f';
  std::string longer = file_of("{}", 0);
  longer[0] = 3;
  const Case cases[] = {
      {"", "has 0 bytes, too few for a safetensors file"},
      {std::string(7, '\0'), "has 7 bytes, too few"},
      {std::string(8, '\0'), "header does not begin with {"},
      {std::string(8, '\xff') + "{}", "claims a header of 18446744073709551615 bytes"},
      {lying, "claims a header of 9151314442816847874 bytes, at most 16777216 are allowed"},
      {longer, "claims a header of 3 bytes, but has only 2"},
      {file_of("[]", 0), "header does not begin with {"},
      {file_of(" {}", 0), "header does not begin with {"},
      {file_of("{", 0), "invalid JSON"},
      {file_of("{\"\xff\":1}", 0), "invalid JSON"},
      {file_of("{}x", 0), "invalid JSON"},
      {file_of("{}", 1), "has 11 bytes, but its header describes 10"},
      {one("\"a\":1", 0), "tensor \"a\" must have exactly the keys"},
      {one("\"a\":{\"dtype\":\"F32\",\"shape\":[1]}", 4), "must have exactly the keys"},
      {one(entry("a", "F32", "[1]", "[0,4],\"x\":1"), 4), "must have exactly the keys"},
      {one(entry("a", "F32", "[1]", "[0,4]") + "," + entry("a", "F32", "[1]", "[4,8]"), 8),
       "duplicate key \"a\""},
      {one("\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}", 4),
       "duplicate key \"dtype\""},
      {one(entry("a", "F33", "[1]", "[0,4]"), 4), "known are F32"},
      {one("\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}", 4), "known are F32"},
      {one(entry("a", "F32", "3", "[0,4]"), 4), "has no list as shape"},
      {one(entry("a", "F32", "[-1]", "[0,4]"), 4), "no integer in [0, 2^48)"},
      {one(entry("a", "F32", "[1.0]", "[0,4]"), 4), "no integer in [0, 2^48)"},
      {one(entry("a", "F32", "[281474976710656]", "[0,4]"), 4), "no integer in [0, 2^48)"},
      {one(entry("a", "F32", "[2,18446744073709551614]", "[0,4]"), 4), "out of range"},
      {one(entry("a", "F32", "[2,9223372036854775807]", "[0,4]"), 4), "no integer in"},
      {one(entry("a", "F32", "[281474976710655,281474976710655]", "[0,4]"), 4),
       "claims 4 bytes, but its shape needs more than 2^63"},
      {one(entry("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4), "has 9 dimensions, at most 8"},
      {one(entry("a", "F32", "[[1]]", "[0,4]"), 4), "no integer in"},
      {one(entry("a", "F32", "[[[1]]]", "[0,4]"), 4), "deeper than 4"},
      {one(entry("a", "F32", "[1]", "[4,0]"), 4), "needs data_offsets"},
      {one(entry("a", "F32", "[1]", "[-4,0]"), 4), "needs data_offsets"},
      {one(entry("a", "F32", "[1]", "[0]"), 4), "needs data_offsets"},
      {one(entry("a", "F32", "[1]", "[0,4,8]"), 4), "needs data_offsets"},
      {one(entry("a", "F32", "[1]", "[true,4]"), 4), "needs data_offsets"},
      {one(entry("a", "F32", "[1]", "[0,8]"), 8), "claims 8 bytes, but its shape needs 4"},
      {one(entry("a", "F32", "[1]", "[4,8]"), 8), "begins at byte 4 of the data"},
      {one(entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[0,4]"), 4),
       "tensor \"b\" begins at byte 0 of the data, but the one before ends at 4"},
      {one(entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[5,9]"), 9),
       "begins at byte 5"},
      {one(entry("a", "F32", "[1]", "[0,4]"), 3), "but its header describes"},
      {one(entry("a", "F32", "[1]", "[0,4]"), 5), "but its header describes"},
      {one("\"__metadata__\":[]", 0), "__metadata__ must be an object"},
      {one("\"__metadata__\":{\"a\":1}", 0), "__metadata__ \"a\" must be a string"},
      {one("\"__metadata__\":{\"a\":\"\",\"a\":\"\"}", 0), "duplicate key"},
      {one(entry(std::string(1025, 'n'), "F32", "[1]", "[0,4]"), 4), "has a name of 1025 bytes"},
  };
  for (const Case& c : cases) {
    const std::string error = error_of(c.file);
    EXPECT_NE(error.find(c.error), std::string::npos) << c.error << " | " << error;
    EXPECT_EQ(error.rfind("m.safetensors: ", 0), 0u) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

TEST(SafetensorsHeader, CapsTheNumberOfTensorsAndTheHeader) {
  std::string text = "{";
  for (int i = 0; i < 5; ++i) {
    text += (i > 0 ? "," : "") + entry("t" + std::to_string(i), "F32", "[0]", "[0,0]");
  }
  text += "}";
  EXPECT_EQ(error_of(file_of(text, 0), {.max_tensors = 5}), "");
  EXPECT_NE(error_of(file_of(text, 0), {.max_tensors = 4}).find("has 5 tensors, at most 4"),
            std::string::npos);
  EXPECT_NE(error_of(file_of(text, 0), {.max_header_bytes = 100}).find("at most 100"),
            std::string::npos);
}

TEST(SafetensorsHeader, EveryTruncationIsAnError) {
  const std::string file = file_of(
      "{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "BF16", "[1]", "[8,10]") + "}",
      10);
  ASSERT_EQ(error_of(file), "");
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(error_of(file.substr(0, size)), "") << size;
  }
}

TEST(SafetensorsHeader, EveryFlippedByteIsAnErrorOrValid) {
  const std::string file = file_of(
      "{\"__metadata__\":{\"k\":\"v\"}," + entry("ab", "F32", "[2,1]", "[0,8]") + "}   ", 8);
  for (size_t i = 0; i + 8 < file.size(); ++i) {
    for (int bits = 1; bits < 256; ++bits) {
      std::string changed = file;
      changed[i] = static_cast<char>(changed[i] ^ bits);
      const auto header =
          parse_safetensors_header(changed, static_cast<int64_t>(changed.size()), "f");
      if (!header.ok()) continue;
      for (const TensorEntry& tensor : header->tensors) {
        EXPECT_EQ(tensor.end - tensor.begin, 8);
        EXPECT_LE(header->data_offset + tensor.end, static_cast<int64_t>(changed.size()));
      }
    }
  }
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/tarn_safetensors_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/m.safetensors"; }
  std::string folder_;
};

TEST_F(SafetensorsFileTest, RoundTripsBitForBit) {
  std::vector<float> values(70'001);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] =
        std::ldexp(static_cast<float>(static_cast<int>(i) - 35'000), static_cast<int>(i % 60) - 30);
  }
  values[5] = -0.0f;
  values[6] = std::numeric_limits<float>::denorm_min();
  values[7] = std::numeric_limits<float>::max();
  const int64_t count = static_cast<int64_t>(values.size());
  ASSERT_TRUE(write_safetensors(path(),
                                {{"w", {3}, values.data(), DType::kBF16},
                                 {"x", {count}, values.data(), DType::kF32},
                                 {"y\"\n", {1, 3}, values.data(), DType::kBF16},
                                 {"z", {0, 2}, nullptr, DType::kF32}},
                                {{"format", "tarn"}})
                  .ok());
  const auto file = SafetensorsFile::open(path());
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  EXPECT_EQ(file->header.data_offset % 8, 0);
  EXPECT_EQ(file->header.metadata[0].second, "tarn");
  for (const TensorEntry& tensor : file->header.tensors) {
    EXPECT_EQ(tensor.begin % dtype_bytes(tensor.dtype), 0) << tensor.name;
  }
  std::vector<float> back(values.size(), NAN);
  ASSERT_TRUE(file->read_f32(*file->header.find("x"), back.data()).ok());
  EXPECT_EQ(std::memcmp(back.data(), values.data(), values.size() * sizeof(float)), 0);
  ASSERT_TRUE(file->read_f32(*file->header.find("y\"\n"), back.data()).ok());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(back[i], bf16_to_f32(f32_to_bf16(values[i])));
  EXPECT_TRUE(file->read_f32(*file->header.find("z"), nullptr).ok());
}

TEST_F(SafetensorsFileTest, ReadsWhatThePythonPackageWrites) {
  // safetensors.numpy.save of a = f16 [1, 2], b = f32 [[1.5, -2, 3.25]], e = f32 [0, 4].
  const std::string golden =
      std::string("\xb0\x00\x00\x00\x00\x00\x00\x00", 8) +
      R"({"b":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]},"e":{"dtype":"F32","shape":[0,4],"data_offsets":[12,12]},"a":{"dtype":"F16","shape":[2],"data_offsets":[12,16]}}       )" +
      std::string("\x00\x00\xc0\x3f\x00\x00\x00\xc0\x00\x00\x50\x40\x00\x3c\x00\x40", 16);
  ASSERT_TRUE(write_file_atomic(path(), golden).ok());
  const auto file = SafetensorsFile::open(path());
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  float values[3];
  ASSERT_TRUE(file->read_f32(*file->header.find("a"), values).ok());
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 2.0f);
  ASSERT_TRUE(file->read_f32(*file->header.find("b"), values).ok());
  EXPECT_EQ(values[0], 1.5f);
  EXPECT_EQ(values[1], -2.0f);
  EXPECT_EQ(values[2], 3.25f);
  EXPECT_EQ(file->header.find("e")->shape, (std::vector<int64_t>{0, 4}));
}

TEST_F(SafetensorsFileTest, NonFiniteValuesNameTensorAndIndex) {
  std::vector<float> values(70'000, 1.0f);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      values[66'000] = bad;
      ASSERT_TRUE(
          write_safetensors(path(), {{"layers.0.w", {70, 1000}, values.data(), dtype}}, {}).ok());
      const auto file = SafetensorsFile::open(path());
      ASSERT_TRUE(file.ok());
      std::vector<float> back(values.size());
      const Status status = file->read_f32(file->header.tensors[0], back.data());
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().where, path());
      EXPECT_NE(status.error().message.find("tensor \"layers.0.w\" has the value "),
                std::string::npos);
      EXPECT_NE(status.error().message.find(" at index 66000;"), std::string::npos)
          << status.error().message;
    }
  }
}

TEST_F(SafetensorsFileTest, RefusesBadFilesAndBadRequests) {
  EXPECT_EQ(SafetensorsFile::open(path()).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(SafetensorsFile::open(folder_).ok());
  ASSERT_TRUE(write_file_atomic(path(), "").ok());
  EXPECT_EQ(SafetensorsFile::open(path()).error().code, ErrorCode::kCorrupt);
  std::filesystem::create_symlink(path(), folder_ + "/link");
  EXPECT_NE(SafetensorsFile::open(folder_ + "/link").error().message.find("symbolic link"),
            std::string::npos);
  ASSERT_TRUE(
      write_file_atomic(path(), file_of("{" + entry("i", "I64", "[1]", "[0,8]") + "}", 8)).ok());
  const auto file = SafetensorsFile::open(path());
  ASSERT_TRUE(file.ok());
  float value;
  EXPECT_NE(file->read_f32(file->header.tensors[0], &value).error().message.find("has dtype I64"),
            std::string::npos);
  const float x = 0;
  EXPECT_FALSE(
      write_safetensors(path(), {{"a", {1}, &x, DType::kF32}, {"a", {1}, &x, DType::kF32}}, {})
          .ok());
  EXPECT_FALSE(write_safetensors(path(), {{"__metadata__", {1}, &x, DType::kF32}}, {}).ok());
  EXPECT_FALSE(write_safetensors(path(), {{"a", {1}, &x, DType::kU8}}, {}).ok());
  EXPECT_FALSE(write_safetensors(folder_ + "/none/m", {{"a", {1}, &x, DType::kF32}}, {}).ok());
}

}  // namespace
}  // namespace tarn::model
