#include "cli/own_model.h"

#include <string>
#include <string_view>

#include "base/file.h"

// The assembler reads the files: as C++ literals of 4 MB they would take minutes to compile.
asm(".pushsection .rodata\n"
    ".balign 64\n"
    "tarn_own_model_config: .incbin \"" TARN_OWN_MODEL
    "/config.json\"\n"
    "tarn_own_model_config_end:\n"
    ".balign 64\n"
    "tarn_own_model_weights: .incbin \"" TARN_OWN_MODEL
    "/model.safetensors\"\n"
    "tarn_own_model_weights_end:\n"
    ".popsection\n");

extern "C" {
extern const char tarn_own_model_config[] __attribute__((visibility("hidden")));
extern const char tarn_own_model_config_end[] __attribute__((visibility("hidden")));
extern const char tarn_own_model_weights[] __attribute__((visibility("hidden")));
extern const char tarn_own_model_weights_end[] __attribute__((visibility("hidden")));
}

namespace tarn::cli {
namespace {

std::string_view between(const char* begin, const char* end) {
  return {begin, static_cast<size_t>(end - begin)};
}

}  // namespace

Result<std::shared_ptr<const model::Model>> load_own_model(model::Model::Options options) {
  const std::string config(between(tarn_own_model_config, tarn_own_model_config_end));
  InputFile weights = InputFile::of_bytes(
      between(tarn_own_model_weights, tarn_own_model_weights_end), "the program's own weights");
  return model::Model::read(config, "the program's own config", std::move(weights), options);
}

}  // namespace tarn::cli
