// Training computes what the runtime computes, on a published model whose layers hand rows on.
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/safetensors.h"
#include "train/decoder.h"
#include "train/torch_threads.h"
#include "unit/train/test_models.h"

namespace tarn::train {
namespace {

TEST(PublishedModel, TrainingGivesThePublishedLogits) {
  const std::string folder = TARN_SOURCE_DIR "/models/tiny-rwkv7/";
  const auto text = read_file(folder + "config.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const model::ModelConfig config = parse_model(*text);
  const auto weights = model::SafetensorsFile::open(folder + "model.safetensors");
  ASSERT_TRUE(weights.ok());
  ParameterBuffers parameters = create_parameters(config, 1);
  for (const ParameterBuffers::Entry& entry : parameters.entries) {
    const auto* tensor = weights->header.find(entry.spec.name);
    ASSERT_NE(tensor, nullptr) << entry.spec.name;
    ASSERT_TRUE(weights->read_f32(*tensor, parameters.values.data() + entry.offset).ok());
  }
  Batch batch;
  batch.count = 1;
  batch.length = 3;
  batch.inputs = {'"', 'i', 'n'};
  const auto pool = torch_thread_pool(1);
  const c10::NoGradGuard no_gradients;
  const Decoder decoder(config, parameters, DType::kF32, pool.get());
  const at::Tensor outputs = decoder.forward(batch).contiguous();

  std::vector<float> expected(256, NAN);
  const auto file = model::SafetensorsFile::open(folder + "expected.safetensors");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->read_f32(*file->header.find("logits"), expected.data()).ok());
  const float* last = outputs.const_data_ptr<float>() + 2 * 256;
  for (size_t i = 0; i < 256; ++i) ASSERT_NEAR(last[i], expected[i], 1e-5) << i;
}

}  // namespace
}  // namespace tarn::train
