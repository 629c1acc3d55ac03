#pragma once

#include <unistd.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tarn::data {

inline std::string big_endian(uint32_t word) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(word >> shift);
  return bytes;
}

inline std::string sphinx_file(const std::vector<float>& values) {
  std::string content = big_endian(static_cast<uint32_t>(values.size()));
  for (const float value : values) content += big_endian(std::bit_cast<uint32_t>(value));
  return content;
}

/// A folder as the AN4 database has it: three training speakers and a test speaker who say YES and GO
/// in frames of 13 numbers, GO louder than YES.
class An4Folder {
 public:
  An4Folder()
      : path_(std::filesystem::temp_directory_path() / ("tarn_an4_" + std::to_string(getpid()))) {
    write("etc/an4.dic", "GO  G OW\nYES  Y EH S\nYES(2)  Y AH S\n");
    write("etc/an4_train.fileids",
          "train/s1/u1-s1\ntrain/s2/u2-s2\ntrain/s1/u3-s1\ntrain/s3/u4-s3\n");
    write("etc/an4_train.transcription",
          "YES (u1-s1)\nGO (u2-s2)\n<s> YES GO </s> (u3-s1)\nGO (u4-s3)\n");
    write("etc/an4_test.fileids", "test/t1/u5-t1\n");
    write("etc/an4_test.transcription", "GO GO (u5-t1)\n");
    add("train/s1/u1-s1", {1});
    add("train/s2/u2-s2", {3});
    add("train/s1/u3-s1", {1, 3});
    add("train/s3/u4-s3", {3});
    add("test/t1/u5-t1", {3, 3});
  }
  ~An4Folder() { std::filesystem::remove_all(path_); }
  An4Folder(const An4Folder&) = delete;
  An4Folder& operator=(const An4Folder&) = delete;

  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
  }
  void remove(const std::string& name) const { std::filesystem::remove(path_ / name); }

 private:
  /// Twelve frames per word.
  void add(const std::string& file, const std::vector<int>& loudness) const {
    std::vector<float> values;
    for (const int level : loudness) {
      for (int i = 0; i < 12 * 13; ++i) values.push_back(static_cast<float>(level * (i * i % 17)));
    }
    write("feat/" + file + ".mfc", sphinx_file(values));
  }

  std::filesystem::path path_;
};

}  // namespace tarn::data
