#include "serve/load/statistics.h"

#include <algorithm>
#include <charconv>

namespace tarn::serve::load {
namespace {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

Spread spread_of(std::vector<float> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto quantile = [&](double q) {
    return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
  };
  return {std::ssize(values), quantile(0.5), quantile(0.99), values.back()};
}

void Samples::add(Samples&& other) {
  append(turns, other.turns);
  append(first_token, other.first_token);
  append(long_first_token, other.long_first_token);
  append(gaps, other.gaps);
  append(gaps_with_prompts, other.gaps_with_prompts);
  for (const auto& [status, count] : other.errors) errors[status] += count;
  error_examples.merge(other.error_examples);
  wrong += other.wrong;
  if (wrong_example.empty()) wrong_example = other.wrong_example;
  for (const auto& [question, hashes] : other.answers) {
    answers[question].insert(hashes.begin(), hashes.end());
  }
  append(sessions, other.sessions);
  long_prompts += other.long_prompts;
  long_skipped += other.long_skipped;
  idle_lost += other.idle_lost;
}

int64_t Samples::distinct_answers() const {
  int64_t most = 0;
  for (const auto& [question, hashes] : answers) most = std::max(most, std::ssize(hashes));
  return most;
}

Throughput throughput(const std::vector<Samples::Turn>& turns, double end) {
  if (end <= 0) return {};
  Throughput sum;
  for (const Samples::Turn& turn : turns) {
    const double seconds = turn.end - turn.begin;
    const double inside = seconds > 0 ? std::clamp((end - turn.begin) / seconds, 0.0, 1.0) : 1.0;
    sum.turns += inside;
    sum.tokens += inside * static_cast<double>(turn.tokens);
  }
  return {sum.turns / end, sum.tokens / end};
}

std::optional<double> metric_value(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ' ') continue;
    line.remove_prefix(name.size() + 1);
    double value = 0;
    const auto read = std::from_chars(line.data(), line.data() + line.size(), value);
    if (read.ec == std::errc()) return value;
  }
  return {};
}

}  // namespace tarn::serve::load
