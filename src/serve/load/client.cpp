#include "serve/load/client.h"

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "serve/load/answer_reader.h"

namespace tarn::serve::load {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

/// What the connections of one loop share.
struct Shared {
  asio::io_context io{1};
  std::vector<tcp::endpoint> endpoints;
  Clock::duration timeout{};
  std::array<char, size_t{64} << 10> scratch{};
  std::string body;
};

class Connection final : public Link {
 public:
  Connection(Shared& shared, User& user) : shared_(shared), user_(user), socket_(shared.io) {}

  void request(std::string bytes) override {
    // The answer to the last request may have come before all of it was sent.
    if (writing_) close();
    out_ = std::move(bytes);
    reader_.emplace();
    busy_ = true;
    deadline_ = Clock::now() + shared_.timeout;
    reused_ = socket_.is_open();
    if (reused_) {
      write();
    } else {
      connect();
    }
  }

  void tick(Clock::time_point now) {
    if (busy_ && now > deadline_) end(Ending::Failure::kTimeout, "no answer in time");
  }

  void close() {
    ++attempt_;
    writing_ = false;
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  void connect() {
    const int64_t attempt = ++attempt_;
    asio::async_connect(socket_, shared_.endpoints,
                        [this, attempt](error_code error, const tcp::endpoint&) {
                          if (attempt != attempt_) return;
                          if (!error) socket_.set_option(tcp::no_delay(true), error);
                          if (!error) socket_.non_blocking(true, error);
                          if (error) return fail(error.message());
                          watch();
                          write();
                        });
  }

  void write() {
    const int64_t attempt = attempt_;
    writing_ = true;
    asio::async_write(socket_, asio::buffer(out_), [this, attempt](error_code error, size_t) {
      if (attempt != attempt_) return;
      writing_ = false;
      // The server may answer, with a refusal, before it has read everything: reading tells.
      if (error && error != asio::error::broken_pipe && error != asio::error::connection_reset) {
        fail(error.message());
      }
    });
  }

  /// Waits without a buffer of its own: thousands of connections have one buffer together.
  void watch() {
    const int64_t attempt = attempt_;
    socket_.async_wait(tcp::socket::wait_read, [this, attempt](error_code error) {
      if (attempt != attempt_) return;
      size_t count = 0;
      if (!error) count = socket_.read_some(asio::buffer(shared_.scratch), error);
      if (error == asio::error::would_block) return watch();
      if (error) return hung_up(error);
      receive(std::string_view(shared_.scratch.data(), count));
      if (attempt == attempt_) watch();
    });
  }

  void receive(std::string_view bytes) {
    if (!busy_) return drop();  // what nobody asked for
    shared_.body.clear();
    const AnswerReader::Step step = reader_->put(bytes, &shared_.body);
    if (!shared_.body.empty()) user_.bytes(reader_->status(), shared_.body);
    if (step == AnswerReader::Step::kFailed) {
      end(Ending::Failure::kBroken, reader_->problem());
    } else if (step == AnswerReader::Step::kDone) {
      end(Ending::Failure::kNone, {});
    }
  }

  void hung_up(error_code error) {
    if (!busy_) return drop();
    if (reused_ && !reader_->begun()) {
      close();
      reused_ = false;
      reader_.emplace();
      return connect();
    }
    const bool is_end = error == asio::error::eof;
    if (is_end && reader_->end() == AnswerReader::Step::kDone) {
      end(Ending::Failure::kNone, {});
    } else {
      fail(is_end ? reader_->problem() : error.message());
    }
  }

  void drop() {
    close();
    user_.lost();
  }

  void fail(const std::string& message) {
    end(reader_->begun() ? Ending::Failure::kBroken : Ending::Failure::kConnection, message);
  }

  void end(Ending::Failure failure, const std::string& message) {
    busy_ = false;
    const Ending ending{failure, reader_->status(), message};
    if (failure != Ending::Failure::kNone || !reader_->keep_alive()) close();
    user_.ended(ending);
  }

  Shared& shared_;
  User& user_;
  tcp::socket socket_;
  int64_t attempt_ = 0;  // of connecting; what belongs to an earlier one is not heard
  std::string out_;
  std::optional<AnswerReader> reader_;
  bool busy_ = false;
  bool writing_ = false;
  bool reused_ = false;
  Clock::time_point deadline_;
};

}  // namespace

struct ClientLoop::Impl {
  Shared shared;
  asio::executor_work_guard<asio::io_context::executor_type> work{shared.io.get_executor()};
  asio::steady_timer timer{shared.io};
  std::vector<std::unique_ptr<Connection>> connections;
  std::thread thread;

  void arm_tick() {
    timer.expires_after(std::chrono::milliseconds(500));
    timer.async_wait([this](error_code error) {
      if (error) return;
      const auto now = Clock::now();
      // A user that hears of a timeout may open another connection.
      for (size_t i = 0; i < connections.size(); ++i) connections[i]->tick(now);
      arm_tick();
    });
  }
};

ClientLoop::ClientLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<ClientLoop>> ClientLoop::start(const Target& target,
                                                      double timeout_seconds) {
  auto impl = std::make_unique<Impl>();
  error_code error;
  tcp::resolver resolver(impl->shared.io);
  const auto found = resolver.resolve(target.host, std::to_string(target.port), error);
  if (error) return Error{ErrorCode::kIo, "no such host: " + error.message(), target.host};
  for (const auto& entry : found) impl->shared.endpoints.push_back(entry.endpoint());
  impl->shared.timeout =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));
  impl->arm_tick();
  Impl* loop = impl.get();
  impl->thread = std::thread([loop] { loop->shared.io.run(); });
  return std::unique_ptr<ClientLoop>(new ClientLoop(std::move(impl)));
}

ClientLoop::~ClientLoop() {
  impl_->shared.io.stop();
  impl_->thread.join();
}

void ClientLoop::post(std::function<void()> function) {
  asio::post(impl_->shared.io, std::move(function));
}

void ClientLoop::after(double seconds, std::function<void()> function) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->shared.io);
  timer->expires_after(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  timer->async_wait([timer, function = std::move(function)](error_code error) {
    if (!error) function();
  });
}

Link& ClientLoop::open(Link::User& user) {
  impl_->connections.push_back(std::make_unique<Connection>(impl_->shared, user));
  return *impl_->connections.back();
}

namespace {

class Fetch final : public Link::User {
 public:
  void bytes(int, std::string_view body) override { body_ += body; }
  void ended(const Ending& ending) override { done_.set_value(ending); }
  Result<FetchedAnswer> wait(const std::string& where) {
    const Ending ending = done_.get_future().get();
    if (ending.failure != Ending::Failure::kNone) {
      return Error{ErrorCode::kIo, ending.message, where};
    }
    return FetchedAnswer{ending.status, std::move(body_)};
  }

 private:
  std::string body_;
  std::promise<Ending> done_;
};

}  // namespace

Result<FetchedAnswer> fetch(const Target& target, std::string request, double timeout_seconds) {
  Fetch user;
  TARN_ASSIGN(const auto loop, ClientLoop::start(target, timeout_seconds));
  loop->post([&] { loop->open(user).request(std::move(request)); });
  return user.wait(target.host + ":" + std::to_string(target.port));
}

}  // namespace tarn::serve::load
