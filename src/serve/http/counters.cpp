#include "serve/http/counters.h"

namespace tarn::serve::http {

const char* refused_name(Refused reason) {
  switch (reason) {
    case Refused::kConnections: return "connections";
    case Refused::kAddress: return "address";
    case Refused::kKey: return "key";
    case Refused::kQueue: return "queue";
    case Refused::kDraining: return "draining";
    case Refused::kMalformed: return "malformed";
    case Refused::kHeader: return "header";
    case Refused::kBody: return "body";
    case Refused::kHeaderTime: return "header_time";
    case Refused::kBodyTime: return "body_time";
  }
  return "unknown";
}

const char* gone_name(Gone reason) {
  switch (reason) {
    case Gone::kClosed: return "closed";
    case Gone::kStalled: return "stalled";
    case Gone::kOverflow: return "overflow";
    case Gone::kCut: return "cut";
  }
  return "unknown";
}

}  // namespace tarn::serve::http
