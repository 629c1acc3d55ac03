#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "cli/command.h"

namespace tarn::cli {

/// While it lives, a stop that was asked for and not obeyed within a second ends the program, with
/// the sentence and the status of a stopped command: for work whose single passes can take longer
/// and that holds nothing which an exit would leave half done, such as a file being written.
class PromptStop {
 public:
  explicit PromptStop(Context& context);
  ~PromptStop();
  PromptStop(const PromptStop&) = delete;
  PromptStop& operator=(const PromptStop&) = delete;

 private:
  void watch();

  Context& context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace tarn::cli
