#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <filesystem>

namespace tarn {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/tarn_file_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  int64_t files_in_folder() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }
  std::string folder_;
};

TEST_F(FileTest, WritesAndReadsBack) {
  const std::string content = std::string("a\0b", 3) + std::string(100'000, 'x');
  ASSERT_TRUE(write_file_atomic(path("f"), content).ok());
  ASSERT_TRUE(write_file_atomic(path("f"), content).ok());
  EXPECT_EQ(*read_file(path("f"), 1 << 20), content);
  EXPECT_EQ(files_in_folder(), 1);
  ASSERT_TRUE(write_file_atomic(path("empty"), "").ok());
  EXPECT_EQ(*read_file(path("empty"), 0), "");
}

TEST_F(FileTest, RefusesWhatIsNoReadableFile) {
  EXPECT_EQ(read_file(path("none"), 10).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_file(path("none"), 10).error().to_string(), path("none") + ": no such file");
  EXPECT_EQ(read_file(folder_, 10).error().code, ErrorCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_file(path("pipe"), 10).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(write_file_atomic(path("f"), "12345678901").ok());
  EXPECT_EQ(read_file(path("f"), 10).error().code, ErrorCode::kResource);
  fs::create_symlink(path("f"), path("link"));
  EXPECT_TRUE(InputFile::open(path("link")).ok());
  EXPECT_FALSE(InputFile::open(path("link"), false).ok());
}

TEST_F(FileTest, AFileThatShrinksIsAnErrorNotASignal) {
  ASSERT_TRUE(write_file_atomic(path("f"), "0123456789").ok());
  const Result<InputFile> file = InputFile::open(path("f"));
  ASSERT_TRUE(file.ok());
  char bytes[10];
  EXPECT_TRUE(file->read_at(3, 7, bytes).ok());
  EXPECT_EQ(std::string(bytes, 7), "3456789");
  fs::resize_file(path("f"), 5);
  EXPECT_EQ(file->read_at(3, 7, bytes).error().code, ErrorCode::kCorrupt);
}

TEST_F(FileTest, AnAbandonedWriteLeavesTheOldContent) {
  ASSERT_TRUE(write_file_atomic(path("f"), "old").ok());
  {
    Result<AtomicFile> file = AtomicFile::create(path("f"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->append("new", 3).ok());
    EXPECT_EQ(*read_file(path("f"), 10), "old");
  }
  EXPECT_EQ(*read_file(path("f"), 10), "old");
  EXPECT_EQ(files_in_folder(), 1);
  EXPECT_EQ(write_file_atomic(path("no/f"), "x").error().code, ErrorCode::kNotFound);
  // A folder cannot be replaced by a file; nothing is left behind.
  fs::create_directory(path("d"));
  EXPECT_EQ(write_file_atomic(path("d"), "x").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(files_in_folder(), 2);
}

TEST_F(FileTest, AWriteReplacesNeitherPipesNorLinks) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(write_file_atomic(path("pipe"), "x").error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  fs::create_symlink(path("pipe"), path("to_pipe"));
  EXPECT_EQ(write_file_atomic(path("to_pipe"), "x").error().code, ErrorCode::kInvalidArgument);
  fs::create_symlink(path("nothing"), path("to_nothing"));
  EXPECT_EQ(write_file_atomic(path("to_nothing"), "x").error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(write_file_atomic(path("f"), "old").ok());
  fs::create_symlink(path("f"), path("to_f"));
  ASSERT_TRUE(write_file_atomic(path("to_f"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(path("to_f")));
  EXPECT_EQ(*read_file(path("f"), 10), "new");
  EXPECT_EQ(files_in_folder(), 5);
}

TEST_F(FileTest, MakesFolders) {
  EXPECT_TRUE(make_directories(path("a/b/c")).ok());
  EXPECT_TRUE(make_directories(path("a/b/c")).ok());
  EXPECT_TRUE(path_exists(path("a/b/c")));
  EXPECT_FALSE(path_exists(path("x")));
  ASSERT_TRUE(write_file_atomic(path("f"), "").ok());
  EXPECT_FALSE(make_directories(path("f")).ok());
  EXPECT_FALSE(make_directories(path("f/g")).ok());
}

std::string gzip(const std::string& content) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(content.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST_F(FileTest, InflatesGzip) {
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{65535}, size_t{65536}, size_t{131072}, size_t{500'000}}) {
    std::string content(size, 'a');
    for (size_t i = 0; i < size; i += 7) content[i] = static_cast<char>(i * 2654435761u >> 13);
    const std::string packed = gzip(content);
    ASSERT_TRUE(write_file_atomic(path("f.gz"), packed).ok());
    EXPECT_EQ(*read_gzip_file(path("f.gz"), static_cast<int64_t>(size)), content);
    if (size > 0) {
      EXPECT_EQ(read_gzip_file(path("f.gz"), static_cast<int64_t>(size) - 1).error().code,
                ErrorCode::kResource);
    }
    ASSERT_TRUE(write_file_atomic(path("two.gz"), packed + packed).ok());
    EXPECT_EQ(*read_gzip_file(path("two.gz"), 1 << 20), content + content);
  }
}

TEST_F(FileTest, EveryDamagedGzipIsAnError) {
  const std::string packed = gzip("hello hello hello hello, tarn");
  for (size_t size = 0; size < packed.size(); ++size) {
    ASSERT_TRUE(write_file_atomic(path("f.gz"), packed.substr(0, size)).ok());
    EXPECT_EQ(read_gzip_file(path("f.gz"), 1000).error().code, ErrorCode::kCorrupt) << size;
  }
  ASSERT_TRUE(write_file_atomic(path("f.gz"), packed + "junk").ok());
  EXPECT_EQ(read_gzip_file(path("f.gz"), 1000).error().code, ErrorCode::kCorrupt);
  for (size_t i = 10; i < packed.size(); ++i) {  // after the header, whose flags may change freely
    std::string bad = packed;
    bad[i] = static_cast<char>(bad[i] ^ 0x41);
    ASSERT_TRUE(write_file_atomic(path("f.gz"), bad).ok());
    EXPECT_FALSE(read_gzip_file(path("f.gz"), 1000).ok()) << i;
  }
}

}  // namespace
}  // namespace tarn
