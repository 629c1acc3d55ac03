#include "base/result.h"

namespace tarn {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kResource: return "resource";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kConflict: return "conflict";
  }
  return "unknown";
}

}  // namespace tarn
