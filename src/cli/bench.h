#pragma once

#include "cli/command.h"

namespace tarn::cli {

/// The subcommands of `tarn bench`, one per file.
void add_bench_roof(Command& program, Selection& selection);
void add_bench_attention(Command& program, Selection& selection);
void add_bench_generate(Command& program, Selection& selection);
void add_bench_train(Command& program, Selection& selection);
void add_bench_crossover(Command& program, Selection& selection);
void add_bench_sessions(Command& program, Selection& selection);
void add_bench_serve(Command& program, Selection& selection);

}  // namespace tarn::cli
