#include "serve/turn_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace tarn::serve {

uint64_t FairClock::served(const std::string& key) const {
  const auto found = served_.find(key);
  return found == served_.end() ? 0 : found->second;
}

uint64_t FairClock::serve(const std::string& key) {
  // Keys come from clients: those that have been away longest are forgotten.
  constexpr size_t kMostKeys = 4096;
  served_[key] = ++now_;
  if (served_.size() > kMostKeys) {
    std::erase_if(served_,
                  [this](const auto& entry) { return entry.second + kMostKeys / 2 < now_; });
  }
  return now_;
}

void TurnQueue::push(TurnPointer turn) {
  const Request& request = turn->request();
  turn->arrival = ++arrivals_;
  ++size_;
  prompt_tokens_ += static_cast<int64_t>(request.prompt.size());
  lines_[request.priority][request.fairness_key].push_back(std::move(turn));
}

void TurnQueue::forget(const Turn& turn) {
  --size_;
  prompt_tokens_ -= static_cast<int64_t>(turn.request().prompt.size());
}

TurnQueue::TurnPointer TurnQueue::take(const FairClock& clock,
                                       const std::function<Answer(Turn&)>& ask) {
  struct Candidate {
    uint64_t served, arrival;
    std::map<std::string, Line>::iterator line;
  };
  std::vector<Candidate> candidates;
  for (auto level = lines_.begin(); level != lines_.end(); ++level) {
    candidates.clear();
    for (auto line = level->second.begin(); line != level->second.end(); ++line) {
      candidates.push_back({clock.served(line->first), line->second.front()->arrival, line});
    }
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return std::tie(a.served, a.arrival) < std::tie(b.served, b.arrival);
    });
    for (const Candidate& candidate : candidates) {
      Line& line = candidate.line->second;
      for (auto at = line.begin(); at != line.end(); ++at) {
        const Answer answer = ask(**at);
        if (answer == Answer::kStop) return nullptr;
        if (answer == Answer::kSkip) continue;
        TurnPointer turn = std::move(*at);
        forget(*turn);
        line.erase(at);
        if (line.empty()) level->second.erase(candidate.line);
        if (level->second.empty()) lines_.erase(level);
        return turn;
      }
    }
  }
  return nullptr;
}

void TurnQueue::take_all(const std::function<bool(const Turn&)>& leaves,
                         std::vector<TurnPointer>* left) {
  for (auto& [priority, lines] : lines_) {
    for (auto& [key, line] : lines) {
      std::erase_if(line, [&](const TurnPointer& turn) {
        if (!leaves(*turn)) return false;
        forget(*turn);
        left->push_back(turn);
        return true;
      });
    }
    std::erase_if(lines, [](const auto& entry) { return entry.second.empty(); });
  }
  std::erase_if(lines_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace tarn::serve
