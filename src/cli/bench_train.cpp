#include <string>
#include <vector>

#include "cli/bench.h"
#include "cli/trainer_program.h"

namespace tarn::cli {

void add_bench_train(Command& program, Selection& selection) {
  program.pass_through(
      selection, "train",
      "Training steps, part by part (tarn bench train --help; needs tarn-train)",
      [](const std::vector<std::string>& arguments) { return become_trainer("bench", arguments); });
}

}  // namespace tarn::cli
