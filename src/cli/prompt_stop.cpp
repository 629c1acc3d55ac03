#include "cli/prompt_stop.h"

#include <chrono>
#include <cstdlib>

namespace tarn::cli {
namespace {

constexpr std::chrono::milliseconds kLook{100};
constexpr int kPatience = 10;  // looks

}  // namespace

PromptStop::PromptStop(Context& context) : context_(context), thread_([this] { watch(); }) {}

PromptStop::~PromptStop() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PromptStop::watch() {
  std::unique_lock lock(mutex_);
  for (int looks = 0; !changed_.wait_for(lock, kLook, [this] { return done_; });) {
    if (!context_.cancel.load() || ++looks < kPatience) continue;
    context_.console.error({ErrorCode::kCancelled, "the command was stopped on request", {}});
    context_.console.flush();
    std::_Exit(1);
  }
}

}  // namespace tarn::cli
