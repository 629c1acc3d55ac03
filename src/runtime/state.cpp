#include "runtime/state.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/checked.h"

namespace tarn::runtime {

namespace {

constexpr int64_t kFloatsPerLine = static_cast<int64_t>(kAlignment / sizeof(float));
constexpr int64_t kFirstCapacity = 16;  // tokens; smaller growth steps would only cost copies

int64_t elements_of(const mixers::StateSpec& spec) {
  const auto product = checked_product(std::span<const int64_t>(spec.shape));
  TARN_CHECK(product.has_value());  // the config's caps bound every shape
  return *product;
}

}  // namespace

Status check_causal(const model::Model& model) {
  if (model.config().modality == model::Modality::kFrames) {
    return Error{ErrorCode::kUnsupported,
                 "the model is over frames; token by token needs one over symbols", "modality"};
  }
  return check_layers_causal(model);
}

Status check_layers_causal(const model::Model& model) {
  for (size_t layer = 0; layer < model.state_specs().size(); ++layer) {
    if (!model.state_specs()[layer].empty()) continue;
    return Error{ErrorCode::kUnsupported,
                 "the mixer is not causal (it has no state), token by token needs causal ones",
                 "layers[" + std::to_string(layer) + "]"};
  }
  return {};
}

SequenceState::SequenceState(std::shared_ptr<const model::Model> model) : model_(std::move(model)) {
  int64_t fixed_floats = 0;
  int64_t layer = 0;
  for (const std::vector<mixers::StateSpec>& specs : model_->state_specs()) {
    for (const mixers::StateSpec& spec : specs) {
      const int64_t elements = elements_of(spec);
      tensors_.push_back({layer, &spec, elements});
      slots_.push_back({fixed_floats, {}});
      const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
      if (spec.per_token) {
        bytes_per_token_ += bytes;
      } else {
        fixed_bytes_ += bytes;
        fixed_floats += (elements + kFloatsPerLine - 1) / kFloatsPerLine * kFloatsPerLine;
      }
    }
    ++layer;
  }
  fixed_ = Buffer<float>::filled(fixed_floats, 0.0f);
  reset();
}

void SequenceState::reset() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].spec->per_token) continue;
    std::fill_n(data(i), tensors_[i].entry_elements, tensors_[i].spec->initial_value);
  }
  position_ = 0;
}

SequenceState SequenceState::clone() const {
  SequenceState copy(model_);
  copy.copy_from(*this);
  return copy;
}

void SequenceState::copy_from(const SequenceState& other) {
  TARN_CHECK(model_ == other.model_);
  const bool fits = other.position_ <= capacity_tokens_;
  if (!fits) capacity_tokens_ = other.capacity_tokens_;
  position_ = other.position_;
  std::copy_n(other.fixed_.data(), other.fixed_.size(), fixed_.data());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].spec->per_token) continue;
    if (!fits) slots_[i].growing = Buffer<float>(other.slots_[i].growing.size());
    std::copy_n(other.data(i), other.used_elements(i), data(i));
  }
}

Status SequenceState::reserve(int64_t tokens) {
  if (tokens <= capacity_tokens_) return {};
  const int64_t configured = model_->config().max_tokens;
  const int64_t limit = configured > 0 ? configured : kMaxTokens;
  if (tokens > limit) {
    return Error{ErrorCode::kResource,
                 "a sequence of " + std::to_string(tokens) + " inputs is longer than the model's " +
                     (configured > 0 ? "max_tokens, " : "limit, ") + std::to_string(limit),
                 "state"};
  }
  const int64_t capacity =
      std::max(tokens, std::min(limit, std::max(2 * capacity_tokens_, kFirstCapacity)));
  if (bytes_per_token_ > 0 && !checked_mul(capacity, bytes_per_token_)) {
    return Error{ErrorCode::kResource,
                 "a state of " + std::to_string(tokens) + " tokens does not fit the address space",
                 "state"};
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].spec->per_token) continue;
    Buffer<float> larger(capacity * tensors_[i].entry_elements);
    std::copy_n(data(i), used_elements(i), larger.data());
    slots_[i].growing = std::move(larger);
  }
  capacity_tokens_ = capacity;
  return {};
}

void SequenceState::set_position(int64_t position) {
  TARN_CHECK(position >= 0 && position <= capacity_tokens_);
  position_ = position;
}

int64_t SequenceState::used_bytes_at(const model::Model& model, int64_t position) {
  int64_t bytes = 0;
  for (const auto& specs : model.state_specs()) {
    for (const mixers::StateSpec& spec : specs) {
      const int64_t entries = spec.per_token ? position : 1;
      bytes += elements_of(spec) * entries * static_cast<int64_t>(sizeof(float));
    }
  }
  return bytes;
}

float* SequenceState::data(size_t tensor) {
  Slot& slot = slots_[tensor];
  return tensors_[tensor].spec->per_token ? slot.growing.data() : fixed_.data() + slot.offset;
}

const float* SequenceState::data(size_t tensor) const {
  return const_cast<SequenceState*>(this)->data(tensor);
}

int64_t SequenceState::used_elements(size_t tensor) const {
  const Tensor& entry = tensors_[tensor];
  return entry.spec->per_token ? position_ * entry.entry_elements : entry.entry_elements;
}

StateBatch::StateBatch(const model::Model& model) {
  for (const auto& specs : model.state_specs()) {
    tensors_per_layer_.push_back(specs.size());
    num_tensors_ += specs.size();
  }
  rows_.resize(num_tensors_);
  size_t first = 0;
  for (const size_t count : tensors_per_layer_) {
    layers_.push_back({std::span<float* const* const>(rows_.data() + first, count)});
    first += count;
  }
}

void StateBatch::bind(std::span<SequenceState* const> sequences) {
  if (sequences.size() > capacity_) {
    capacity_ = sequences.size();
    pointers_.resize(num_tensors_ * capacity_);
    for (size_t i = 0; i < num_tensors_; ++i) rows_[i] = pointers_.data() + i * capacity_;
  }
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (size_t i = 0; i < num_tensors_; ++i) pointers_[i * capacity_ + s] = sequences[s]->data(i);
  }
}

}  // namespace tarn::runtime
