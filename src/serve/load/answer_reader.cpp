#include "serve/load/answer_reader.h"

#include <boost/beast/http/parser.hpp>
#include <cstdint>
#include <utility>

namespace tarn::serve::load {

namespace beast = boost::beast::http;
using boost::beast::error_code;

namespace {

/// The pieces of a body as they come. Beast's own text makes room for the length that a server claims.
struct Pieces {
  using value_type = std::string;
  class reader {
   public:
    template <bool isRequest, class Fields>
    reader(beast::header<isRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      size_t bytes = 0;
      for (auto at = boost::asio::buffer_sequence_begin(buffers);
           at != boost::asio::buffer_sequence_end(buffers); ++at) {
        const boost::asio::const_buffer piece = *at;
        body_.append(static_cast<const char*>(piece.data()), piece.size());
        bytes += piece.size();
      }
      return bytes;
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

/// "0", two line ends: at least so many bytes follow a chunked head or a chunk, and Beast counts on
/// having them.
constexpr size_t kShortestChunks = 5;

}  // namespace

struct AnswerReader::Impl {
  beast::response_parser<Pieces> parser;
  std::string head;  // bytes that are not yet parsed
  std::string problem;
  bool begun = false;

  Step fail(std::string what) {
    problem = std::move(what);
    return Step::kFailed;
  }
};

AnswerReader::AnswerReader() : impl_(std::make_unique<Impl>()) {
  impl_->parser.eager(true);
  impl_->parser.body_limit(boost::none);
  impl_->parser.header_limit(64 << 10);
}
AnswerReader::~AnswerReader() = default;

AnswerReader::Step AnswerReader::put(std::string_view bytes, std::string* body) {
  Impl& impl = *impl_;
  if (bytes.empty()) return Step::kMore;
  impl.begun = true;
  impl.head += bytes;
  error_code error;
  size_t used = 0;
  while (used < impl.head.size() && !impl.parser.is_done()) {
    const bool chunks = impl.parser.is_header_done() && impl.parser.chunked();
    if (chunks && impl.head.size() - used < kShortestChunks) break;
    const size_t taken = impl.parser.put(
        boost::asio::buffer(impl.head.data() + used, impl.head.size() - used), error);
    used += taken;
    if (error == beast::error::need_more) {
      error = {};
      if (taken == 0) break;
    }
    if (error) return impl.fail("no HTTP answer: " + error.message());
    if (taken == 0) break;
  }
  impl.head.erase(0, used);
  *body += impl.parser.get().body();
  impl.parser.get().body().clear();
  if (!impl.parser.is_done()) return Step::kMore;
  return impl.head.empty() ? Step::kDone : impl.fail("bytes behind the answer's end");
}

AnswerReader::Step AnswerReader::end() {
  error_code error;
  if (impl_->parser.got_some()) impl_->parser.put_eof(error);
  if (!error && impl_->parser.is_done()) return Step::kDone;
  return impl_->fail(impl_->begun ? "the connection ended within the answer"
                                  : "the connection ended before the answer");
}

bool AnswerReader::begun() const { return impl_->begun; }

int AnswerReader::status() const {
  return impl_->parser.is_header_done() ? static_cast<int>(impl_->parser.get().result_int()) : 0;
}

bool AnswerReader::keep_alive() const {
  return impl_->parser.is_header_done() && impl_->parser.keep_alive();
}

const std::string& AnswerReader::problem() const { return impl_->problem; }

}  // namespace tarn::serve::load
