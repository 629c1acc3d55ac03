#include "serve/load/answer_reader.h"

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace tarn::serve::load {

namespace beast = boost::beast::http;
using boost::beast::error_code;

struct AnswerReader::Impl {
  beast::response_parser<beast::string_body> parser;
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
