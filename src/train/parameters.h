#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/threads.h"
#include "mixers/mixer.h"
#include "model/config.h"

namespace tarn::train {

/// All parameters of a model in one buffer and their gradients in another of the same layout, so
/// that clipping, optimisers, averages and checkpoints are loops over two arrays.
struct ParameterBuffers {
  struct Entry {
    mixers::ParamSpec spec;
    int64_t offset = 0;  ///< elements; a multiple of a cache line
    int64_t size = 0;
  };
  std::vector<Entry> entries;  ///< in the order of model::parameter_table
  Buffer<float> values;
  Buffer<float> gradients;
  int64_t parameter_count = 0;  ///< without the gaps between entries, which stay zero
};

/// The table's parameters with their initial values from `seed`: the same bits as the runtime's
/// random model of that seed. Gradients start at zero.
ParameterBuffers create_parameters(const model::ModelConfig& config, uint64_t seed);

/// Euclidean norm; accumulated in double in fixed pieces, so the thread count does not matter.
double global_norm(const Buffer<float>& values, ThreadPool* pool);

/// average += (1 − decay)·(values − average).
void update_average(const Buffer<float>& values, double decay, Buffer<float>& average,
                    ThreadPool* pool);

}  // namespace tarn::train
