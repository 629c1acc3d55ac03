#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "serve/api/api.h"
#include "serve/service/session_service.h"
#include "serve/store.h"
#include "unit/serve/engine_fixture.h"

namespace tarn::serve::api {

/// Keeps what the API answers; tests can let the client go.
class FakeExchange : public http::Exchange {
 public:
  void send(http::Reply answer) override {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    reply = std::move(answer);
    ended_ = true;
    changed_.notify_all();
  }
  bool start_stream(http::StreamHead head) override {
    const std::lock_guard lock(mutex_);
    reply.status = head.status;
    reply.headers = head.headers;
    reply.content_type = head.content_type;
    streams = true;
    return !gone_;
  }
  bool write(std::string_view bytes) override {
    const std::lock_guard lock(mutex_);
    if (ended_ || gone_ || refuses_writes) return false;
    reply.body += bytes;
    changed_.notify_all();
    return true;
  }
  void finish() override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void on_gone(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!gone_) {
        callback_ = std::move(callback);
        return;
      }
    }
    callback();
  }
  bool gone() const override {
    const std::lock_guard lock(mutex_);
    return gone_;
  }

  /// The client closes its connection.
  void leave() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      callback = std::move(callback_);
    }
    if (callback) callback();
  }
  bool wait() {
    return wait_for([this] { return ended_; });
  }
  /// Until something has been streamed.
  bool wait_for_bytes() {
    return wait_for([this] { return !reply.body.empty(); });
  }

  http::Reply reply{.status = 0};
  bool streams = false;
  bool refuses_writes = false;

 private:
  bool wait_for(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), condition);
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> callback_;
  bool ended_ = false;
  bool gone_ = false;
};

inline Json json_of(const std::string& text) {
  auto json = parse_json(text, "answer");
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

/// The member at a path like "choices.0.text"; null when there is none.
inline Json at(const Json& json, const std::string& path) {
  const Json* value = &json;
  for (size_t begin = 0; begin <= path.size() && value != nullptr;) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    const Json::Array* array = value->as_array();
    if (array != nullptr) {
      const auto index = static_cast<size_t>(std::stoul(key));
      value = index < array->size() ? &(*array)[index] : nullptr;
    } else {
      value = value->find(key);
    }
    begin = end + 1;
  }
  return value != nullptr ? *value : Json();
}

/// What an answer was.
struct Answered {
  int status = 0;
  http::Headers headers;
  std::string body;

  Json json() const { return json_of(body); }
  Json at(const std::string& path) const { return api::at(json(), path); }
  std::string header(const std::string& name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
  /// The data of a stream's events, without the last one, which must be [DONE].
  std::vector<Json> events() const {
    std::vector<Json> events;
    bool done = false;
    for (size_t begin = 0; begin < body.size();) {
      const size_t end = body.find("\n\n", begin);
      EXPECT_NE(end, std::string::npos);
      EXPECT_EQ(body.substr(begin, 6), "data: ");
      EXPECT_FALSE(done) << "an event behind [DONE]";
      const std::string data = body.substr(begin + 6, end - begin - 6);
      done = data == "[DONE]";
      if (!done) events.push_back(json_of(data));
      if (end == std::string::npos) break;
      begin = end + 2;
    }
    EXPECT_TRUE(done) << "no [DONE]";
    return events;
  }
};

inline std::unique_ptr<SessionStore> make_store(const std::string& url,
                                                const StoreOptions& options = {}) {
  auto store = open_store(url, options);
  TARN_CHECK(store.ok());
  return std::move(*store);
}

/// An API over a service, by default in memory.
class Site {
 public:
  explicit Site(const ModelPointer& model, ApiOptions options = {}, ServiceOptions service = {},
                std::unique_ptr<SessionStore> store = make_store("memory:")) {
    auto created = SessionService::create(model, std::move(service), std::move(store));
    TARN_CHECK(created.ok());
    service_ = std::move(*created);
    options.version = "test";
    api_ = std::make_unique<Api>(*service_, std::move(options));
  }

  http::Request request(const std::string& method, const std::string& target,
                        const std::string& body = {}) const {
    http::Request request;
    request.method = method;
    request.path = target.substr(0, target.find('?'));
    if (request.path.size() < target.size()) request.query = target.substr(request.path.size() + 1);
    request.body = body;
    request.peer = "192.0.2.1";
    if (!body.empty()) request.headers.emplace_back("content-type", "application/json");
    return request;
  }
  std::shared_ptr<FakeExchange> start(const http::Request& request) {
    auto exchange = std::make_shared<FakeExchange>();
    api_->handle(request, exchange);
    return exchange;
  }
  Answered send(const http::Request& request) {
    const auto exchange = start(request);
    EXPECT_TRUE(exchange->wait()) << request.path << ' ' << request.body;
    return {exchange->reply.status, exchange->reply.headers, exchange->reply.body};
  }
  Answered post(const std::string& path, const std::string& body) {
    return send(request("POST", path, body));
  }
  Answered get(const std::string& target) { return send(request("GET", target)); }

  SessionService& service() { return *service_; }
  Api& api() { return *api_; }
  /// Waits until no turn runs or waits.
  bool idle() {
    const Metrics& metrics = service_->engine_metrics();
    for (int i = 0; i < 10'000; ++i) {
      if (metrics.running == 0 && metrics.waiting == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

 private:
  std::unique_ptr<SessionService> service_;
  std::unique_ptr<Api> api_;
};

}  // namespace tarn::serve::api
