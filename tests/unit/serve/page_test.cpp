#include "serve/page/page.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/file.h"

namespace tarn::serve::page {
namespace {

http::Request get(std::string path, http::Headers headers = {}) {
  http::Request request;
  request.method = "GET";
  request.path = std::move(path);
  request.headers = std::move(headers);
  return request;
}

std::string header(const http::Reply& reply, std::string_view name) {
  for (const auto& [key, value] : reply.headers) {
    if (key == name) return value;
  }
  return {};
}

TEST(Page, FilesAreThoseOfTheSources) {
  std::set<std::string_view> tags;
  for (const File& file : files()) {
    const std::string name = file.path == "/"
                                 ? "index.html"
                                 : std::string(file.path.substr(std::string("/page/").size()));
    const auto text = read_file(TARN_SOURCE_DIR "/src/serve/page/static/" + name, int64_t{1} << 20);
    ASSERT_TRUE(text.ok()) << text.error().to_string();
    EXPECT_EQ(file.body, *text) << name;
    EXPECT_EQ(find(file.path), &file);
    tags.insert(file.etag);
  }
  EXPECT_EQ(tags.size(), files().size());
  EXPECT_EQ(find("/page/"), nullptr);
  EXPECT_EQ(find("/page/page.h"), nullptr);
  EXPECT_EQ(find(""), nullptr);
}

TEST(Page, EveryFileHasItsHeaders) {
  for (const File& file : files()) {
    const http::Reply reply = answer(file, get(std::string(file.path)));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, file.body);
    EXPECT_EQ(reply.content_type, file.content_type);
    EXPECT_EQ(header(reply, "Content-Security-Policy").rfind("default-src 'self'; ", 0), 0u);
    EXPECT_EQ(header(reply, "X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(header(reply, "Cache-Control"), "no-cache");
    EXPECT_EQ(header(reply, "ETag"), file.etag);
  }
  EXPECT_EQ(find("/")->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(find("/page/app.js")->content_type, "text/javascript; charset=utf-8");
}

TEST(Page, AKnownVersionIsNotSentAgain) {
  const File& file = *find("/");
  const std::string tag(file.etag);
  for (const std::string& known : {tag, "W/" + tag, "\"other\" , " + tag, std::string("*")}) {
    const http::Reply reply = answer(file, get("/", {{"If-None-Match", known}}));
    EXPECT_EQ(reply.status, 304) << known;
    EXPECT_EQ(reply.body, "");
    EXPECT_EQ(header(reply, "ETag"), tag);
  }
  for (const std::string& other :
       {std::string("\"other\""), std::string(), std::string(", ,"), tag.substr(1)}) {
    EXPECT_EQ(answer(file, get("/", {{"If-None-Match", other}})).status, 200) << other;
  }
}

TEST(Page, TakesGetOnly) {
  http::Request request = get("/");
  request.method = "POST";
  const http::Reply reply = answer(*find("/"), request);
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(header(reply, "Allow"), "GET");
}

}  // namespace
}  // namespace tarn::serve::page
