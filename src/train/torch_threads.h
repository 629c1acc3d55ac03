#pragma once

#include <memory>

#include "base/threads.h"

namespace tarn::train {

/// Sets the number of torch's OpenMP threads and returns a pool that runs our kernels on those
/// same threads, so that one set of threads serves both (docs/adr/0005). Denormals are flushed on
/// all of them.
std::unique_ptr<ThreadPool> torch_thread_pool(int num_threads);

}  // namespace tarn::train
