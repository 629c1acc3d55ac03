#include <memory>

#include "cli/bench.h"
#include "cli/command.h"

namespace tarn::cli {

void add_bench(Command& program, Selection& selection) {
  Command bench = program.group("bench", "Measure speed and memory on this machine");
  add_bench_roof(bench, selection);
  add_bench_attention(bench, selection);
  add_bench_generate(bench, selection);
  add_bench_train(bench, selection);
  add_bench_crossover(bench, selection);
  add_bench_sessions(bench, selection);
  add_bench_serve(bench, selection);
}

}  // namespace tarn::cli
