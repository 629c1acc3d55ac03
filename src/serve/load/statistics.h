#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tarn::serve::load {

struct Spread {
  int64_t count = 0;
  double p50 = 0, p99 = 0, max = 0;
};
/// Of unsorted values; each quantile q is the value at index floor(q · (count − 1)) of them sorted.
Spread spread_of(std::vector<float> values);

/// What was measured on one thread.
struct Samples {
  struct Turn {
    double begin = 0, end = 0;  ///< seconds since the run began
    int64_t tokens = 0;         ///< drawn
  };

  std::vector<Turn> turns;  ///< answered right
  std::vector<float> first_token, long_first_token;
  std::vector<float> gaps, gaps_with_prompts;
  std::map<std::string, int64_t> errors;  ///< refusals by status, or "connection", "timeout"
  std::map<std::string, std::string> error_examples;
  int64_t wrong = 0;
  std::string wrong_example;
  /// Hashes of the greedy answers to each question.
  std::map<int64_t, std::set<uint64_t>> answers;
  std::vector<std::string> sessions;  ///< that were made
  int64_t long_prompts = 0, long_skipped = 0;
  int64_t idle_lost = 0;

  void add(Samples&& other);
  /// The most answers that one question got; 0: none was asked.
  int64_t distinct_answers() const;
};

/// What turns did until `end`: one that went on after it counts by the part of its time before.
struct Throughput {
  double turns = 0, tokens = 0;  ///< per second
};
Throughput throughput(const std::vector<Samples::Turn>& turns, double end);

/// The value of a metric without labels in Prometheus' text format.
std::optional<double> metric_value(std::string_view text, std::string_view name);

}  // namespace tarn::serve::load
