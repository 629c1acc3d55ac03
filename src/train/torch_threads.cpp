#include "train/torch_threads.h"

#include <ATen/Parallel.h>

// The entry points of OpenMP's run-time library that `#pragma omp parallel` compiles to with gcc.
// Called by name, because clang's pragma would bring a second run-time library, with threads of
// its own, beside the one that torch uses.
extern "C" {
void GOMP_parallel(void (*body)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_get_thread_num();
int omp_get_num_threads();
}

namespace tarn::train {
namespace {

struct Loop {
  int pieces;
  const std::function<void(int)>& piece;
};

void run_pieces(void* data) {
  const Loop& loop = *static_cast<const Loop*>(data);
  for (int piece = omp_get_thread_num(); piece < loop.pieces; piece += omp_get_num_threads()) {
    loop.piece(piece);
  }
}

}  // namespace

std::unique_ptr<ThreadPool> torch_thread_pool(int num_threads) {
  at::set_num_threads(num_threads);
  auto pool = std::make_unique<ThreadPool>(
      num_threads, [](int pieces, const std::function<void(int)>& piece) {
        Loop loop{pieces, piece};
        GOMP_parallel(run_pieces, &loop, static_cast<unsigned>(pieces), 0);
      });
  pool->parallel_for(num_threads, [](int64_t, int64_t, int) { flush_denormals(); });
  return pool;
}

}  // namespace tarn::train
