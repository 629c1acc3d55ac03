#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/trainer_program.h"

namespace tarn::cli {

void add_train(Command& program, Selection& selection) {
  program.pass_through(
      selection, "train", "Train a model (tarn train --help; needs tarn-train)",
      [](const std::vector<std::string>& arguments) { return become_trainer("train", arguments); });
}

}  // namespace tarn::cli
