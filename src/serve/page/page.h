#pragma once

#include <span>
#include <string_view>

#include "serve/http/message.h"

namespace tarn::serve::page {

/// One of the page's files, part of the program (cmake/TarnEmbed.cmake).
struct File {
  std::string_view path;  ///< "/" or "/page/name"
  std::string_view content_type;
  std::string_view etag;  ///< quoted; changes with the body
  std::string_view body;
};

std::span<const File> files();
/// The file at `path`, or null.
const File* find(std::string_view path);

/// Answers a request for `file`: 200, 304 when the client has this version, 405 for anything but GET.
/// The headers let the page load from and talk to its own origin only.
http::Reply answer(const File& file, const http::Request& request);

}  // namespace tarn::serve::page
