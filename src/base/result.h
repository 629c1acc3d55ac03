#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace tarn {

/// Kinds of expected failure. `cli/` maps them to exit codes and `serve/` to HTTP statuses.
enum class ErrorCode {
  kInvalidArgument,  ///< a flag, a config value or a request that cannot be right
  kNotFound,         ///< a file or a name that does not exist
  kCorrupt,          ///< bytes that fail a format's rules or a checksum
  kUnsupported,      ///< valid, but not available in this build or form
  kResource,         ///< a limit of memory or size would be passed
  kIo,               ///< the operating system refused a read or a write
  kCancelled,        ///< stopped on request
  kConflict,         ///< something else holds or has changed it, or it is in use
  kReadOnly,         ///< writes were stopped, after a failure or by choice
};

/// Name of a code as printed in JSON errors, e.g. "invalid_argument".
const char* error_code_name(ErrorCode code);

/// An expected failure: one sentence saying what, got and wanted; `where` is the file or field.
struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
  std::string where;

  /// "where: message", or the message alone when `where` is empty.
  std::string to_string() const { return where.empty() ? message : where + ": " + message; }
};

/// A value or an `Error`. Reading the value of a failed result is a bug and aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : data_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : data_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return data_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    TARN_CHECK(ok());
    return std::get<0>(data_);
  }
  const T& value() const& {
    TARN_CHECK(ok());
    return std::get<0>(data_);
  }
  T&& value() && {
    TARN_CHECK(ok());
    return std::get<0>(std::move(data_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    TARN_CHECK(!ok());
    return std::get<1>(data_);
  }
  Error&& error() && {
    TARN_CHECK(!ok());
    return std::get<1>(std::move(data_));
  }

 private:
  std::variant<T, Error> data_;
};

/// Success without a value, or an `Error`.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return error_.index() == 0; }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    TARN_CHECK(!ok());
    return std::get<1>(error_);
  }

 private:
  std::variant<std::monostate, Error> error_;
};

inline Error invalid_argument(std::string message, std::string where = {}) {
  return {ErrorCode::kInvalidArgument, std::move(message), std::move(where)};
}
inline Error corrupt(std::string message, std::string where = {}) {
  return {ErrorCode::kCorrupt, std::move(message), std::move(where)};
}

}  // namespace tarn

#define TARN_CONCAT_INNER(a, b) a##b
#define TARN_CONCAT(a, b) TARN_CONCAT_INNER(a, b)

/// Returns the error of `expression` (a Status or Result) from the enclosing function, if any.
#define TARN_RETURN_IF_ERROR(expression)                                         \
  do {                                                                           \
    auto tarn_status = (expression);                                             \
    if (!tarn_status.ok()) return ::tarn::Error(std::move(tarn_status).error()); \
  } while (false)

/// `TARN_ASSIGN(auto x, f())` declares x as the value of f(), or returns f()'s error.
#define TARN_ASSIGN(declaration, expression) \
  TARN_ASSIGN_INNER(TARN_CONCAT(tarn_result_, __LINE__), declaration, expression)
#define TARN_ASSIGN_INNER(name, declaration, expression)         \
  auto name = (expression);                                      \
  if (!name.ok()) return ::tarn::Error(std::move(name).error()); \
  declaration = std::move(name).value()
