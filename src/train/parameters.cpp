#include "train/parameters.h"

#include <algorithm>
#include <cmath>

#include "model/parameters.h"

namespace tarn::train {
namespace {

constexpr int64_t kAlignElements = static_cast<int64_t>(kAlignment / sizeof(float));
constexpr int64_t kNormPiece = int64_t{1} << 14;

}  // namespace

ParameterBuffers create_parameters(const model::ModelConfig& config, uint64_t seed) {
  ParameterBuffers buffers;
  int64_t offset = 0;
  for (mixers::ParamSpec& spec : model::parameter_table(config)) {
    const int64_t size = model::element_count(spec.shape);
    buffers.entries.push_back({std::move(spec), offset, size});
    buffers.parameter_count += size;
    offset += (size + kAlignElements - 1) / kAlignElements * kAlignElements;
  }
  buffers.values = Buffer<float>::filled(offset, 0.0f);
  buffers.gradients = Buffer<float>::filled(offset, 0.0f);
  for (const ParameterBuffers::Entry& entry : buffers.entries) {
    model::initialise(entry.spec, seed, buffers.values.data() + entry.offset);
  }
  return buffers;
}

double global_norm(const Buffer<float>& values, ThreadPool* pool) {
  const int64_t pieces = (values.size() + kNormPiece - 1) / kNormPiece;
  std::vector<double> sums(static_cast<size_t>(pieces));
  parallel_for(pool, pieces, [&](int64_t begin, int64_t end, int) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t last = std::min(values.size(), (piece + 1) * kNormPiece);
      double sum = 0.0;
      for (int64_t i = piece * kNormPiece; i < last; ++i) {
        sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      }
      sums[static_cast<size_t>(piece)] = sum;
    }
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return std::sqrt(total);
}

void update_average(const Buffer<float>& values, double decay, Buffer<float>& average,
                    ThreadPool* pool) {
  const auto share = static_cast<float>(1.0 - decay);
  parallel_for(pool, values.size(), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) average[i] += share * (values[i] - average[i]);
  });
}

}  // namespace tarn::train
