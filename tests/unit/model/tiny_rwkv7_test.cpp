// A published RWKV-7 model against the logits that its authors expect.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/parameters.h"
#include "model/safetensors.h"

namespace tarn::model {
namespace {

const std::string kFolder = TARN_SOURCE_DIR "/models/tiny-rwkv7";
const std::vector<int32_t> kPrompt = {'"', 'i', 'n'};

/// The state of one sequence.
class State {
 public:
  explicit State(const Model& model) {
    for (const auto& specs : model.state_specs()) {
      auto& layer = layers_.emplace_back();
      for (const mixers::StateSpec& spec : specs) {
        layer.values.emplace_back(static_cast<size_t>(element_count(spec.shape)),
                                  spec.initial_value);
      }
    }
    for (Layer& layer : layers_) {
      for (std::vector<float>& tensor : layer.values) layer.pointers.push_back(tensor.data());
      for (float*& pointer : layer.pointers) layer.tensors.push_back(&pointer);
      refs_.push_back({layer.tensors});
    }
  }
  LayerStates view() const { return refs_; }

 private:
  struct Layer {
    std::vector<std::vector<float>> values;
    std::vector<float*> pointers;
    std::vector<float* const*> tensors;
  };
  std::vector<Layer> layers_;
  std::vector<mixers::StateRefs<float>> refs_;
};

/// Logits after the last token; the prompt in pieces of `piece` tokens.
std::vector<float> logits_of(const Model& model, int64_t piece, mixers::Form form) {
  const State state(model);
  std::vector<float> logits(256, NAN);
  Arena arena;
  const auto count = static_cast<int64_t>(kPrompt.size());
  for (int64_t done = 0; done < count; done += piece) {
    const int64_t begin = 0;
    const int64_t length = std::min(piece, count - done);
    const TokenBatch batch{{1, &begin, &length}, &done, kPrompt.data() + done};
    model.forward(batch, state.view(), form, Outputs::kLastRowOfEach, logits.data(), nullptr,
                  arena);
  }
  return logits;
}

TEST(TinyRwkv7, GivesThePublishedLogits) {
  const auto model = Model::load(kFolder);
  ASSERT_TRUE(model.ok()) << model.error().to_string();
  const auto file = SafetensorsFile::open(kFolder + "/expected.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  ASSERT_NE(file->header.find("logits"), nullptr);
  std::vector<float> expected(256, NAN);
  ASSERT_TRUE(file->read_f32(*file->header.find("logits"), expected.data()).ok());
  const float largest = *std::max_element(expected.begin(), expected.end());
  EXPECT_GT(largest, 1.0f);

  struct Way {
    const char* name;
    int64_t piece;
    mixers::Form form;
  };
  for (const Way& way :
       {Way{"chunk", 3, mixers::Form::kChunk}, Way{"steps", 1, mixers::Form::kStep},
        Way{"a piece of two and one", 2, mixers::Form::kAuto}}) {
    const std::vector<float> got = logits_of(**model, way.piece, way.form);
    double worst = 0.0;
    for (size_t i = 0; i < 256; ++i) {
      const double difference = std::abs(double{got[i]} - double{expected[i]});
      if (!(difference <= worst)) worst = difference;  // NaN wins
    }
    EXPECT_LE(worst, 1e-5) << way.name;
    RecordProperty(std::string("largest difference, ") + way.name, std::to_string(worst));
  }
}

}  // namespace
}  // namespace tarn::model
