#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tarn::serve::load {

/// Reads one HTTP/1 answer from bytes as they come. Memory: one head of at most 64 KiB; the body is
/// passed on.
class AnswerReader {
 public:
  enum class Step { kMore, kDone, kFailed };

  AnswerReader();
  ~AnswerReader();
  AnswerReader(const AnswerReader&) = delete;
  AnswerReader& operator=(const AnswerReader&) = delete;

  /// Appends what `bytes` has of the body to *body. Bytes behind the answer's end are a failure:
  /// nothing was asked that they could answer.
  Step put(std::string_view bytes, std::string* body);
  /// The connection has ended: kDone when that ends the answer.
  Step end();
  bool begun() const;       ///< some bytes have come
  int status() const;       ///< 0 before the head is complete
  bool keep_alive() const;  ///< from kDone on
  const std::string& problem() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tarn::serve::load
