#include "serve/api/metrics_text.h"

#include <fmt/format.h>

#include <iterator>

#include "runtime/process_memory.h"

namespace tarn::serve::api {
namespace {

std::string escaped(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

void engine_metrics(const Metrics& metrics, MetricsText& text) {
  text.counter("tarn_turns_admitted_total", "Turns that were admitted.", metrics.requests);
  text.family("tarn_turns_ended_total", "counter", "Turns that ended, by reason.");
  for (size_t i = 0; i < kFinishReasons; ++i) {
    text.sample("tarn_turns_ended_total", "reason",
                finish_reason_name(static_cast<FinishReason>(i)), metrics.finished[i]);
  }
  text.gauge("tarn_turns_running", "Turns that compute.", metrics.running);
  text.gauge("tarn_turns_waiting", "Turns in the queue.", metrics.waiting);
  text.counter("tarn_prompt_tokens_total", "Inputs evaluated before a turn's first draw.",
               metrics.prompt_tokens);
  text.counter("tarn_generated_tokens_total", "Tokens drawn.", metrics.generated_tokens);
  text.counter("tarn_rounds_total", "Rounds of the engine.", metrics.rounds);
  text.histogram("tarn_queue_seconds", "From admission to the first round.", metrics.queue_time);
  text.histogram("tarn_time_to_first_token_seconds", "From admission to the first token.",
                 metrics.time_to_first_token);
  text.histogram("tarn_inter_token_seconds", "Between tokens of one turn.",
                 metrics.inter_token_latency);
}

void session_metrics(const ServiceMetrics& metrics, MetricsText& text) {
  text.counter("tarn_turns_refused_total", "Turns that were refused.", metrics.refused);
  text.counter("tarn_saves_total", "Versions of sessions saved.", metrics.saves);
  text.counter("tarn_saves_failed_total", "Saves that failed.", metrics.failed_saves);
  text.counter("tarn_saved_bytes_total", "Bytes of the saved versions.", metrics.saved_bytes);
  text.counter("tarn_loads_total", "Versions read from the store.", metrics.loads);
  text.counter("tarn_stale_sessions_total", "Copies in memory that another server had gone past.",
               metrics.stale);
  text.counter("tarn_replayed_turns_total", "Turns answered from an earlier one with their key.",
               metrics.replayed);
  text.counter("tarn_evicted_sessions_total", "Sessions that left the memory.", metrics.evicted);
  text.counter("tarn_expired_sessions_total", "Sessions whose time was over.", metrics.expired);
  text.counter("tarn_lost_leases_total", "Leases that another server took.", metrics.lost_leases);
  text.gauge("tarn_unsaved_sessions", "Sessions with turns that are not saved.",
             metrics.unsaved_sessions);
  text.histogram("tarn_save_seconds", "Time of a save.", metrics.save_time);
  text.histogram("tarn_load_seconds", "Time of a load.", metrics.load_time);
}

void http_metrics(const http::Counters& counters, MetricsText& text) {
  text.counter("tarn_http_connections_total", "Connections accepted.", counters.accepted);
  text.gauge("tarn_http_connections", "Connections that are open.", counters.open);
  text.gauge("tarn_http_requests_active", "Requests that are not answered yet.", counters.active);
  text.gauge("tarn_http_streams", "Of these, streams.", counters.streams);
  text.family("tarn_http_responses_total", "counter",
              "Answers by status; 499: the client went before one.");
  for (size_t status = 0; status < counters.by_status.size(); ++status) {
    const int64_t count = counters.by_status[status];
    if (count > 0) {
      text.sample("tarn_http_responses_total", "status", std::to_string(status), count);
    }
  }
  text.family("tarn_http_refused_total", "counter",
              "Refused by the HTTP server itself, by reason.");
  for (size_t i = 0; i < http::kRefusedReasons; ++i) {
    text.sample("tarn_http_refused_total", "reason",
                http::refused_name(static_cast<http::Refused>(i)), counters.refused[i]);
  }
  text.family("tarn_http_lost_total", "counter", "Requests that lost their client, by reason.");
  for (size_t i = 0; i < http::kGoneReasons; ++i) {
    text.sample("tarn_http_lost_total", "reason", http::gone_name(static_cast<http::Gone>(i)),
                counters.gone[i]);
  }
  text.counter("tarn_http_received_bytes_total", "Bytes received.", counters.bytes_in);
  text.counter("tarn_http_sent_bytes_total", "Bytes sent.", counters.bytes_out);
}

}  // namespace

void MetricsText::family(std::string_view name, std::string_view type, std::string_view help) {
  fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void MetricsText::counter(std::string_view name, std::string_view help, int64_t value) {
  family(name, "counter", help);
  fmt::format_to(std::back_inserter(text_), "{} {}\n", name, value);
}

void MetricsText::gauge(std::string_view name, std::string_view help, int64_t value) {
  family(name, "gauge", help);
  fmt::format_to(std::back_inserter(text_), "{} {}\n", name, value);
}

void MetricsText::sample(std::string_view name, std::string_view label, std::string_view value,
                         int64_t number) {
  fmt::format_to(std::back_inserter(text_), "{}{{{}=\"{}\"}} {}\n", name, label, escaped(value),
                 number);
}

void MetricsText::histogram(std::string_view name, std::string_view help,
                            const Histogram& histogram) {
  family(name, "histogram", help);
  int64_t total = 0;
  const auto out = std::back_inserter(text_);
  for (size_t bucket = 0; bucket < Histogram::kBuckets; ++bucket) {
    total += histogram.count(bucket);
    fmt::format_to(out, "{}_bucket{{le=\"{}\"}} {}\n", name, Histogram::bounds()[bucket], total);
  }
  total += histogram.count(Histogram::kBuckets);
  fmt::format_to(out, "{}_bucket{{le=\"+Inf\"}} {}\n{}_sum {}\n{}_count {}\n", name, total, name,
                 histogram.sum_seconds(), name, total);
}

std::string metrics_text(const SessionService& service, const http::Counters* http,
                         std::string_view model, std::string_view version) {
  MetricsText text;
  text.family("tarn_info", "gauge", "1; the labels say what runs.");
  text.sample("tarn_info", "version", version, 1);
  text.family("tarn_model_info", "gauge", "1; the label names the model.");
  text.sample("tarn_model_info", "model", model, 1);
  text.gauge("tarn_ready", "1 while turns with sessions can be served.", service.ready().ready);
  text.gauge("tarn_resident_session_bytes", "Memory of the sessions' states.",
             service.resident_bytes());
  text.gauge("tarn_peak_resident_bytes", "The most resident memory of this process.",
             runtime::peak_resident_bytes());
  engine_metrics(service.engine_metrics(), text);
  session_metrics(service.metrics(), text);
  if (http != nullptr) http_metrics(*http, text);
  return text.text();
}

}  // namespace tarn::serve::api
