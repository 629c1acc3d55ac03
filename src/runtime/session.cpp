#include "runtime/session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace tarn::runtime {

namespace {

/// Below this many choices in all, drawing costs less than waking the threads.
constexpr int64_t kSerialChoices = 1 << 14;

int64_t num_choices(const model::HeadConfig& head) {
  return head.kind == model::HeadKind::kCategorical ? head.classes : head.components;
}

/// The pieces of prompts that no mechanism of the model can tell from longer ones.
int64_t cut_quantum(const model::ModelConfig& config) {
  int64_t quantum = 1;
  for (const model::LayerConfig& layer : config.layers) {
    const int64_t own = layer.mixer->cut_quantum;
    quantum = std::max(quantum, own == 0 ? Generator::kPieceTokens : own);
  }
  TARN_CHECK(Generator::kPieceTokens % quantum == 0);
  return quantum;
}

}  // namespace

Session::Session(std::shared_ptr<const model::Model> model, SequenceState state)
    : model_(std::move(model)),
      state_(std::move(state)),
      output_(static_cast<size_t>(model_->config().head.output_dim()), 0.0f) {}

Session::Session(std::shared_ptr<const model::Model> model, const Options& options)
    : Session(model, SequenceState(model)) {
  rng_ = {options.seed, options.stream, 0};
  keep_tokens_ = options.keep_tokens;
}

Status Session::append(std::span<const int32_t> tokens) {
  const model::ModelConfig& config = model_->config();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config.vocabulary) {
      return invalid_argument("token " + std::to_string(i) + " is " + std::to_string(tokens[i]) +
                              ", must be in [0, " + std::to_string(config.vocabulary) + ")");
    }
  }
  const int64_t count = token_count() + static_cast<int64_t>(tokens.size());
  if (config.max_tokens > 0 && count > config.max_tokens) {
    return invalid_argument("the sequence would have " + std::to_string(count) +
                            " tokens, the model takes at most " +
                            std::to_string(config.max_tokens));
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return {};
}

Result<int32_t> Session::draw(Sampler& sampler) {
  if (is_full()) {
    return invalid_argument("the sequence is full: it has " + std::to_string(token_count()) +
                            " tokens, the model takes no more");
  }
  if (!has_output()) {
    return invalid_argument(std::to_string(waiting()) +
                            " inputs wait for evaluation, none may when a token is drawn");
  }
  TARN_ASSIGN(const int32_t token, sampler.draw(output_, rng_));
  TARN_RETURN_IF_ERROR(append({&token, 1}));
  return token;
}

Status Session::reserve(int64_t tokens) {
  TARN_RETURN_IF_ERROR(state_.reserve(tokens));
  if (keep_tokens_) tokens_.reserve(static_cast<size_t>(tokens));
  return {};
}

std::string Session::text_of(int32_t token) {
  std::string out;
  if (token >= 0 && token < 256) text_.push(static_cast<uint8_t>(token), &out);
  return out;
}

void Session::reset() {
  state_.reset();
  rng_.index = 0;
  text_ = {};
  tokens_.clear();
  dropped_ = 0;
}

Session Session::clone() const {
  Session copy(model_, SequenceState(model_));
  copy.rollback(*this);
  return copy;
}

void Session::rollback(const Session& mark) {
  state_.copy_from(mark.state_);
  rng_ = mark.rng_;
  text_ = mark.text_;
  tokens_ = mark.tokens_;
  output_ = mark.output_;
  dropped_ = mark.dropped_;
  keep_tokens_ = mark.keep_tokens_;
}

Session Session::fork(uint64_t stream) const {
  Session copy = clone();
  copy.rng_ = {rng_.seed, stream, 0};
  return copy;
}

bool Session::is_full() const {
  const int64_t limit = model_->config().max_tokens;
  return limit > 0 && token_count() >= limit;
}

int32_t Session::input(int64_t position) const {
  return position == 0 ? static_cast<int32_t>(model_->config().start_token)
                       : tokens_[static_cast<size_t>(position - 1 - dropped_)];
}

void Session::drop_evaluated() {
  if (keep_tokens_) return;
  const int64_t evaluated = position() - 1 - dropped_;
  // Not at every piece of a long prompt: moving the rest each time would cost its square.
  if (evaluated <= 0 || 2 * evaluated < static_cast<int64_t>(tokens_.size())) return;
  tokens_.erase(tokens_.begin(), tokens_.begin() + evaluated);
  dropped_ += evaluated;
}

int64_t Session::evaluable() const { return is_full() ? waiting() - 1 : waiting(); }

Generator::Generator(std::shared_ptr<const model::Model> model, ThreadPool* pool)
    : model_(std::move(model)),
      pool_(pool),
      piece_quantum_(cut_quantum(model_->config())),
      states_(*model_) {}

Status Generator::evaluate(std::span<Session* const> sessions) {
  TARN_RETURN_IF_ERROR(reserve(sessions));
  while (advance_reserved(sessions, kPieceTokens)) {
  }
  return {};
}

Status Generator::advance(std::span<Session* const> sessions, int64_t most) {
  TARN_CHECK(most > 0 && most <= kPieceTokens && most % piece_quantum_ == 0);
  TARN_RETURN_IF_ERROR(reserve(sessions));
  advance_reserved(sessions, most);
  return {};
}

Status Generator::reserve(std::span<Session* const> sessions) {
  TARN_RETURN_IF_ERROR(check_causal(*model_));
  for (Session* session : sessions) {
    TARN_CHECK(session->model_ == model_);
    TARN_RETURN_IF_ERROR(session->state_.reserve(session->position() + session->evaluable()));
  }
  return {};
}

bool Generator::advance_reserved(std::span<Session* const> sessions, int64_t most) {
  const bool stepped = evaluate_round(sessions, mixers::Form::kStep, most);
  const bool any = evaluate_round(sessions, mixers::Form::kChunk, most) || stepped;
  for (Session* session : sessions) session->drop_evaluated();
  return any;
}

bool Generator::evaluate_round(std::span<Session* const> sessions, mixers::Form form,
                               int64_t most) {
  bool any = false;
  int64_t rows = 0;
  group_.clear();
  for (Session* session : sessions) {
    const int64_t evaluable = session->evaluable();
    if (evaluable == 0 || (evaluable == 1) != (form == mixers::Form::kStep)) continue;
    const int64_t piece = piece_size(evaluable, most);
    if (rows + piece > kPassRows) {
      evaluate_group(form, rows, most);
      group_.clear();
      rows = 0;
    }
    group_.push_back(session);
    rows += piece;
    any = true;
  }
  if (!group_.empty()) evaluate_group(form, rows, most);
  return any;
}

void Generator::evaluate_group(mixers::Form form, int64_t rows, int64_t most) {
  const size_t count = group_.size();
  const auto output_dim = static_cast<size_t>(model_->config().head.output_dim());
  begin_.resize(count);
  length_.resize(count);
  positions_.resize(count);
  group_states_.resize(count);
  inputs_.resize(static_cast<size_t>(rows));
  outputs_.resize(count * output_dim);
  int64_t row = 0;
  for (size_t i = 0; i < count; ++i) {
    const Session& session = *group_[i];
    begin_[i] = row;
    length_[i] = piece_size(session.evaluable(), most);
    positions_[i] = session.position();
    group_states_[i] = &group_[i]->state_;
    for (int64_t t = 0; t < length_[i]; ++t) {
      inputs_[static_cast<size_t>(row++)] = session.input(positions_[i] + t);
    }
  }
  states_.bind(group_states_);
  const model::TokenBatch batch{{static_cast<int64_t>(count), begin_.data(), length_.data()},
                                positions_.data(),
                                inputs_.data()};
  model_->forward(batch, states_.layers(), form, model::Outputs::kLastRowOfEach, outputs_.data(),
                  pool_, arena_);
  for (size_t i = 0; i < count; ++i) {
    group_[i]->state_.set_position(positions_[i] + length_[i]);
    std::copy_n(outputs_.data() + i * output_dim, output_dim, group_[i]->output_.data());
  }
}

Status Generator::step(std::span<Session* const> sessions, const SamplerOptions& sampler,
                       std::span<int32_t> drawn) {
  TARN_CHECK(drawn.empty() || drawn.size() == sessions.size());
  TARN_RETURN_IF_ERROR(validate(sampler));
  TARN_RETURN_IF_ERROR(evaluate(sessions));
  prepare_samplers(sampler);
  statuses_.assign(sessions.size(), Status());

  struct Task {
    Generator* generator;
    std::span<Session* const> sessions;
    std::span<int32_t> drawn;
  } const task{this, sessions, drawn};
  // One captured pointer: std::function then keeps the closure without allocating.
  const auto body = [&task](int64_t begin, int64_t end, int thread) {
    Generator& generator = *task.generator;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const auto token = task.sessions[i]->draw(generator.samplers_[static_cast<size_t>(thread)]);
      if (!token.ok()) {
        generator.statuses_[i] = token.error();
      } else if (!task.drawn.empty()) {
        task.drawn[i] = *token;
      }
    }
  };
  const auto count = static_cast<int64_t>(sessions.size());
  const bool serial = count * num_choices(model_->config().head) < kSerialChoices;
  parallel_for(serial ? nullptr : pool_, count, body);
  for (Status& status : statuses_) TARN_RETURN_IF_ERROR(status);
  return {};
}

Status Generator::feed(Session& session, std::span<const int32_t> tokens) {
  TARN_RETURN_IF_ERROR(session.append(tokens));
  Session* const sessions[] = {&session};
  return evaluate(sessions);
}

void Generator::prepare_samplers(const SamplerOptions& options) {
  if (!samplers_.empty() && samplers_.front().options() == options) return;
  samplers_.clear();
  const int threads = pool_ == nullptr ? 1 : pool_->num_threads();
  for (int i = 0; i < threads; ++i) samplers_.emplace_back(model_->config().head, options);
}

}  // namespace tarn::runtime
