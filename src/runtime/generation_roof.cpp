#include "runtime/generation_roof.h"

#include <algorithm>

#include "model/parameters.h"
#include "runtime/state.h"

namespace tarn::runtime {
namespace {

double weight_size(kernels::WeightFormat format) {
  switch (format) {
    case kernels::WeightFormat::kF32: return 4;
    case kernels::WeightFormat::kBF16: return 2;
    case kernels::WeightFormat::kInt8: return 1;
  }
  return 0;
}

double peak_of(const GenerationRoof& roof, kernels::WeightFormat format) {
  switch (format) {
    case kernels::WeightFormat::kF32: return roof.base.flops_per_second;
    case kernels::WeightFormat::kBF16: return roof.bf16_per_second;
    case kernels::WeightFormat::kInt8: return roof.int8_per_second;
  }
  return 0;
}

}  // namespace

GenerationRoof measure_generation_roof(ThreadPool& pool) {
  constexpr double kGiga = 1e9;
  GenerationRoof roof;
  roof.base = measure_operator_roof(pool);
  RoofOptions options;
  options.kinds = {"bf16_dot", "int8_dot"};
  const std::vector<RoofFigure> figures = measure_roof(options, pool).value();
  roof.bf16_per_second = kGiga * figures[0].max;
  roof.int8_per_second = kGiga * figures[1].max;
  return roof;
}

StepWork step_work(const model::Model& model, kernels::WeightFormat format, int64_t batch,
                   int64_t position) {
  const auto sequences = static_cast<double>(batch);
  double weights = 0;
  for (const mixers::ParamSpec& spec : model::parameter_table(model.config())) {
    const bool embedding = spec.name.starts_with("embedding.");
    if (spec.shape.size() == 2 && !embedding) {
      weights += static_cast<double>(model::element_count(spec.shape));
    }
  }
  StepWork work;
  work.product_flops = 2 * weights * sequences;
  work.weight_bytes = weights * weight_size(format);
  for (const model::LayerConfig& layer : model.config().layers) {
    work.operator_flops +=
        sequences * layer.mixer->flops(*layer.mixer_config, mixers::OpPass::kStep, position);
  }
  work.state_bytes = sequences * static_cast<double>(SequenceState::used_bytes_at(model, position));
  return work;
}

StepShare step_share(const GenerationRoof& roof, kernels::WeightFormat format, const StepWork& work,
                     double seconds) {
  const double peak = peak_of(roof, format);
  const auto level =
      std::find_if(roof.base.levels.begin(), roof.base.levels.end(), [&](const Roof::Level& one) {
        return work.weight_bytes + work.state_bytes <= static_cast<double>(one.capacity_bytes);
      });
  if (peak <= 0 || level == roof.base.levels.end() || seconds <= 0) return {};
  const double arithmetic =
      work.product_flops / peak + work.operator_flops / roof.base.flops_per_second;
  const double memory = (work.weight_bytes + 2 * work.state_bytes) / level->bytes_per_second;
  return {100 * arithmetic / seconds, 100 * memory / seconds};
}

}  // namespace tarn::runtime
