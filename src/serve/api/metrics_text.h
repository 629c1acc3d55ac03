#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "serve/http/counters.h"
#include "serve/metrics.h"
#include "serve/service/session_service.h"

namespace tarn::serve::api {

/// Writes Prometheus' text format 0.0.4: families one after another, each with all its samples.
class MetricsText {
 public:
  void counter(std::string_view name, std::string_view help, int64_t value);
  void gauge(std::string_view name, std::string_view help, int64_t value);
  /// A family whose samples follow.
  void family(std::string_view name, std::string_view type, std::string_view help);
  /// `label` is a name, `value` its value: escaped here.
  void sample(std::string_view name, std::string_view label, std::string_view value,
              int64_t number);
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// What GET /metrics answers; the names are listed in docs/operations.md. `http` may be null.
std::string metrics_text(const SessionService& service, const http::Counters* http,
                         std::string_view model, std::string_view version);

}  // namespace tarn::serve::api
