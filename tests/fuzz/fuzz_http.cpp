// Feeds bytes to a connection as a client would, whole and in pieces of many sizes. The first byte
// chooses the pieces and what the handlers do.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http/connection.h"

namespace {

using namespace tarn::serve::http;  // NOLINT: one program

void require(bool condition) {
  if (!condition) std::abort();
}

/// Everything that a handler sees of a request but its random id.
std::string text_of(const Request& request) {
  std::string text = request.method + ' ' + request.path + '?' + request.query;
  for (const auto& [name, value] : request.headers) text += '\n' + name + ':' + value;
  return text + '\n' + request.body;
}

/// Answers in one of several ways, as the number says.
void answer(int how, const std::shared_ptr<Exchange>& exchange) {
  exchange->on_gone([] {});
  switch (how % 4) {
    case 0: return exchange->send({.headers = {{"A", "b"}}, .body = "{}"});
    case 1:
      exchange->start_stream({});
      exchange->write("data: 1\n\n");
      return exchange->finish();
    case 2: exchange->start_stream({}); return;  // and forgets about it
    default: return;
  }
}

/// The requests that came through when the bytes come `step` at a time.
std::vector<std::string> requests_of(std::string_view bytes, size_t step, int how) {
  std::vector<std::string> requests;
  ConnectionContext context;
  context.options.access_log = false;
  context.options.limits.header_bytes = 512;
  context.options.limits.header_fields = 8;
  context.options.limits.body_bytes = 256;
  context.options.key = [](const Request& request) { return request.query; };
  context.dispatch = [&](const Request& request, std::shared_ptr<ExchangeState> state) {
    requests.push_back(text_of(request));
    request.parameter("a");
    answer(how, make_exchange(std::move(state)));
    return true;
  };
  Connection::Time now{};
  {
    Connection connection(context, "peer", nullptr, now);
    std::string sent;
    const auto flush = [&] {
      while (!connection.output().empty()) {
        const std::string_view output = connection.output();
        sent += output;
        connection.wrote(output.size(), now);
      }
    };
    while (!bytes.empty() && !connection.closed()) {
      const std::vector<char> piece(bytes.begin(), bytes.begin() + std::min(step, bytes.size()));
      bytes.remove_prefix(piece.size());
      connection.receive({piece.data(), piece.size()}, now);
      flush();
      require(connection.closed() || connection.reads());
    }
    require(sent.empty() || sent.starts_with("HTTP/1.1 "));
    // Whatever state this is: first the refusal, then the end.
    for (int i = 0; i < 2; ++i) {
      now += std::chrono::hours(1);
      connection.tick(now);
      flush();
    }
    require(connection.closed());
  }
  require(context.counters.active == 0 && context.counters.streams == 0);
  return requests;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int how = data[0] % 4;
  const auto whole = requests_of(bytes, bytes.size(), how);
  const auto pieces = requests_of(bytes, 1 + data[0] / 4, how);
  require(whole == pieces);
  return 0;
}
