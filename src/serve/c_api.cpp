#include <cfenv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "kernels/gemm.h"
#include "model/model.h"
#include "runtime/session.h"
#include "runtime/snapshot.h"
#include "runtime/state.h"
#include "serve/tarn.h"

namespace {

using tarn::Error;
using tarn::ErrorCode;
using tarn::Result;
using tarn::Status;
using tarn::runtime::Sampler;
using tarn::runtime::SamplerOptions;
using tarn::runtime::Session;

/// What a model's sessions share; the generator is for one caller at a time.
struct Shared {
  Shared(std::shared_ptr<const tarn::model::Model> loaded, int threads)
      : model(std::move(loaded)), pool(threads), generator(model, &pool) {}
  const std::shared_ptr<const tarn::model::Model> model;
  std::mutex mutex;
  tarn::ThreadPool pool;
  tarn::runtime::Generator generator;

  Status evaluate(Session* session);
};

/// The arithmetic mode that gives every thread the same bits, put back afterwards: the thread is
/// somebody else's.
class ArithmeticMode {
 public:
  ArithmeticMode() {
    std::fegetenv(&before_);
    tarn::flush_denormals();
  }
  ~ArithmeticMode() { std::fesetenv(&before_); }
  ArithmeticMode(const ArithmeticMode&) = delete;
  ArithmeticMode& operator=(const ArithmeticMode&) = delete;

 private:
  std::fenv_t before_;
};

Status Shared::evaluate(Session* session) {
  const std::lock_guard lock(mutex);
  const ArithmeticMode mode;
  Session* const sessions[] = {session};
  return generator.evaluate(sessions);
}

thread_local std::string last_error;  // NOLINT: per thread by design

tarn_code code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return TARN_INVALID_ARGUMENT;
    case ErrorCode::kNotFound: return TARN_NOT_FOUND;
    case ErrorCode::kCorrupt: return TARN_CORRUPT;
    case ErrorCode::kUnsupported: return TARN_UNSUPPORTED;
    case ErrorCode::kResource: return TARN_RESOURCE;
    case ErrorCode::kIo: return TARN_IO;
    case ErrorCode::kCancelled: return TARN_CANCELLED;
    case ErrorCode::kConflict: return TARN_CONFLICT;
    case ErrorCode::kReadOnly: return TARN_IO;  // of stores, which this interface has not
  }
  return TARN_INVALID_ARGUMENT;
}

/// Runs `body`, which returns a Status; nothing it throws crosses the border.
template <class Body>
tarn_code guarded(const Body& body) noexcept {
  try {
    const Status status = body();
    if (status.ok()) return TARN_OK;
    last_error = status.error().to_string();
    return code_of(status.error().code);
  } catch (...) {  // the standard library's: out of memory, or no thread to be had
    last_error.clear();
    return TARN_RESOURCE;
  }
}

Error null_argument(const char* name) { return tarn::invalid_argument("must not be NULL", name); }

/// The struct of a caller with this header or an older one; what it lacks keeps its default.
template <class Options>
Status read_options(const Options* given, Options* options, const char* name) {
  if (given == nullptr) return {};
  if (given->size < sizeof(uint32_t) || given->size > sizeof(Options)) {
    return tarn::invalid_argument("has size " + std::to_string(given->size) + ", wanted at most " +
                                      std::to_string(sizeof(Options)) + ": use its own sizeof",
                                  name);
  }
  std::memcpy(options, given, given->size);
  return {};
}

Result<tarn::kernels::WeightFormat> weight_format(const char* name) {
  using tarn::kernels::WeightFormat;
  const std::string text = name != nullptr ? name : "f32";
  if (text == "f32") return WeightFormat::kF32;
  if (text == "bf16") return WeightFormat::kBF16;
  if (text == "int8") return WeightFormat::kInt8;
  return tarn::invalid_argument("is \"" + text + "\", must be f32, bf16 or int8", "weights");
}

}  // namespace

struct tarn_model {
  std::shared_ptr<Shared> shared;
};

struct tarn_session {
  std::shared_ptr<Shared> shared;
  Session session;
  SamplerOptions sampler{};

  bool is_text() const { return shared->model->config().modality == tarn::model::Modality::kBytes; }
};

namespace {

Status feed(tarn_session* session, const std::vector<int32_t>& tokens) {
  const int64_t limit = session->shared->model->config().max_tokens;
  int64_t inputs = session->session.token_count() + 1 + static_cast<int64_t>(tokens.size());
  if (limit > 0) inputs = std::min(inputs, limit);
  // Room first: afterwards nothing can fail, and a failure must leave no tokens behind.
  TARN_RETURN_IF_ERROR(session->session.state().reserve(inputs));
  TARN_RETURN_IF_ERROR(session->session.append(tokens));
  if (!tokens.empty()) session->session.text() = {};
  return session->shared->evaluate(&session->session);
}

Status generate(tarn_session* session, const SamplerOptions& options, int64_t max_tokens,
                tarn_token_callback callback, void* user, int64_t* drawn) {
  TARN_RETURN_IF_ERROR(tarn::runtime::validate(options));
  Sampler sampler(session->shared->model->config().head, options);
  session->sampler = options;
  for (int64_t i = 0; i < max_tokens && !session->session.is_full(); ++i) {
    TARN_RETURN_IF_ERROR(session->shared->evaluate(&session->session));
    TARN_ASSIGN(const int32_t token, session->session.draw(sampler));
    ++*drawn;
    const std::string text = session->is_text() ? session->session.text_of(token) : std::string();
    if (callback != nullptr && callback(user, token, text.data(), text.size()) != 0) break;
  }
  return {};
}

}  // namespace

int32_t tarn_api_version(void) { return TARN_API_VERSION; }

const char* tarn_version(void) { return TARN_VERSION; }

const char* tarn_code_name(tarn_code code) {
  switch (code) {
    case TARN_OK: return "ok";
    case TARN_INVALID_ARGUMENT: return "invalid_argument";
    case TARN_NOT_FOUND: return "not_found";
    case TARN_CORRUPT: return "corrupt";
    case TARN_UNSUPPORTED: return "unsupported";
    case TARN_RESOURCE: return "resource";
    case TARN_IO: return "io";
    case TARN_CANCELLED: return "cancelled";
    case TARN_CONFLICT: return "conflict";
  }
  return "unknown";
}

const char* tarn_last_error(void) { return last_error.c_str(); }

tarn_code tarn_model_load(const char* folder, const tarn_model_options* options,
                          tarn_model** model) {
  return guarded([&]() -> Status {
    if (folder == nullptr) return null_argument("folder");
    if (model == nullptr) return null_argument("model");
    tarn_model_options given{sizeof(tarn_model_options), 0, nullptr};
    TARN_RETURN_IF_ERROR(read_options(options, &given, "tarn_model_options"));
    tarn::model::Model::Options model_options;
    TARN_ASSIGN(model_options.pack.format, weight_format(given.weights));
    if (given.threads < 0) {
      return tarn::invalid_argument(
          "is " + std::to_string(given.threads) + ", must be 0 (all) or more", "threads");
    }
    const int threads = given.threads > 0 ? given.threads : tarn::available_threads();
    TARN_ASSIGN(auto loaded, tarn::model::Model::load(folder, model_options));
    TARN_RETURN_IF_ERROR(tarn::runtime::check_causal(*loaded));
    *model = new tarn_model{std::make_shared<Shared>(std::move(loaded), threads)};
    return {};
  });
}

void tarn_model_free(tarn_model* model) { delete model; }

int64_t tarn_model_vocabulary(const tarn_model* model) {
  return model->shared->model->config().vocabulary;
}

int64_t tarn_model_max_tokens(const tarn_model* model) {
  return model->shared->model->config().max_tokens;
}

int32_t tarn_model_is_text(const tarn_model* model) {
  return model->shared->model->config().modality == tarn::model::Modality::kBytes ? 1 : 0;
}

tarn_code tarn_session_create(tarn_model* model, uint64_t seed, tarn_session** session) {
  return guarded([&]() -> Status {
    if (model == nullptr) return null_argument("model");
    if (session == nullptr) return null_argument("session");
    *session = new tarn_session{model->shared, Session(model->shared->model, {seed, 0, false})};
    return {};
  });
}

tarn_code tarn_session_clone(const tarn_session* session, tarn_session** copy) {
  return guarded([&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (copy == nullptr) return null_argument("copy");
    *copy = new tarn_session{session->shared, session->session.clone(), session->sampler};
    return {};
  });
}

tarn_code tarn_session_fork(const tarn_session* session, uint64_t stream, tarn_session** copy) {
  return guarded([&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (copy == nullptr) return null_argument("copy");
    *copy = new tarn_session{session->shared, session->session.fork(stream), session->sampler};
    return {};
  });
}

void tarn_session_free(tarn_session* session) { delete session; }

tarn_code tarn_session_feed(tarn_session* session, const int32_t* tokens, size_t count) {
  return guarded([&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (tokens == nullptr && count > 0) return null_argument("tokens");
    return feed(session, std::vector<int32_t>(tokens, tokens + count));
  });
}

tarn_code tarn_session_feed_text(tarn_session* session, const char* text, size_t bytes) {
  return guarded([&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (text == nullptr && bytes > 0) return null_argument("text");
    if (!session->is_text()) {
      return Error{ErrorCode::kUnsupported, "the model is not over bytes of text: feed tokens",
                   "text"};
    }
    const auto* begin = reinterpret_cast<const unsigned char*>(text);
    return feed(session, std::vector<int32_t>(begin, begin + bytes));
  });
}

void tarn_sampler_init(tarn_sampler* sampler) {
  if (sampler != nullptr) *sampler = {sizeof(tarn_sampler), 0, 1.0f, 1.0f, 0};
}

tarn_code tarn_session_generate(tarn_session* session, const tarn_sampler* sampler,
                                int64_t max_tokens, tarn_token_callback callback, void* user,
                                int64_t* drawn) {
  int64_t count = 0;
  const tarn_code code = guarded([&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (max_tokens < 0) {
      return tarn::invalid_argument("is " + std::to_string(max_tokens) + ", must be 0 or more",
                                    "max_tokens");
    }
    tarn_sampler given;
    tarn_sampler_init(&given);
    TARN_RETURN_IF_ERROR(read_options(sampler, &given, "tarn_sampler"));
    const SamplerOptions options{given.greedy != 0, given.temperature, given.top_k, given.top_p};
    return generate(session, options, max_tokens, callback, user, &count);
  });
  if (drawn != nullptr) *drawn = count;
  return code;
}

tarn_code tarn_session_rollback(tarn_session* session, const tarn_session* mark) {
  return guarded([&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (mark == nullptr) return null_argument("mark");
    if (mark->shared != session->shared) {
      return tarn::invalid_argument("belongs to another model than the session", "mark");
    }
    session->session.rollback(mark->session);
    session->sampler = mark->sampler;
    return {};
  });
}

tarn_code tarn_session_snapshot(const tarn_session* session, void** bytes, size_t* size) {
  return guarded([&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (bytes == nullptr) return null_argument("bytes");
    if (size == nullptr) return null_argument("size");
    const std::string snapshot = tarn::runtime::encode_snapshot(session->session, session->sampler);
    void* copy = std::malloc(snapshot.size());
    if (copy == nullptr) {
      return Error{ErrorCode::kResource,
                   "no memory for " + std::to_string(snapshot.size()) + " bytes", "snapshot"};
    }
    std::memcpy(copy, snapshot.data(), snapshot.size());
    *bytes = copy;
    *size = snapshot.size();
    return {};
  });
}

void tarn_bytes_free(void* bytes) { std::free(bytes); }

tarn_code tarn_session_restore(tarn_session* session, const void* bytes, size_t size) {
  return guarded([&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (bytes == nullptr) return null_argument("bytes");
    TARN_ASSIGN(auto restored,
                tarn::runtime::decode_snapshot({static_cast<const char*>(bytes), size},
                                               session->shared->model, "snapshot"));
    session->session = std::move(restored.session);
    session->sampler = restored.sampler;
    return {};
  });
}

tarn_code tarn_session_save(const tarn_session* session, const char* path) {
  return guarded([&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (path == nullptr) return null_argument("path");
    return tarn::runtime::save_snapshot(path, session->session, session->sampler);
  });
}

tarn_code tarn_session_load(tarn_session* session, const char* path) {
  return guarded([&]() -> Status {
    if (session == nullptr) return null_argument("session");
    if (path == nullptr) return null_argument("path");
    return tarn::runtime::restore_snapshot(path, &session->session, &session->sampler);
  });
}

int64_t tarn_session_token_count(const tarn_session* session) {
  return session->session.token_count();
}

int64_t tarn_session_position(const tarn_session* session) { return session->session.position(); }

int64_t tarn_session_state_bytes(const tarn_session* session) {
  return session->session.state().used_bytes();
}
