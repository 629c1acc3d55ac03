#include "runtime/ctc.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

namespace tarn::runtime {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

/// log(e^a + e^b).
double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kNever ? a : a + std::log1p(std::exp(b - a));
}

/// Prefixes as a tree; node 0 is the empty one.
class PrefixTree {
 public:
  size_t child(size_t parent, int32_t label) {
    for (const size_t node : nodes_[parent].children) {
      if (nodes_[node].label == label) return node;
    }
    nodes_[parent].children.push_back(nodes_.size());
    nodes_.push_back({parent, label, {}});
    return nodes_.size() - 1;
  }
  size_t parent(size_t node) const { return nodes_[node].parent; }
  int32_t label(size_t node) const { return nodes_[node].label; }
  std::vector<int32_t> labels(size_t node) const {
    std::vector<int32_t> result;
    for (; node != 0; node = nodes_[node].parent) result.push_back(nodes_[node].label);
    std::reverse(result.begin(), result.end());
    return result;
  }

 private:
  struct Node {
    size_t parent;
    int32_t label;
    std::vector<size_t> children;
  };
  std::vector<Node> nodes_ = {{0, 0, {}}};
};

/// A prefix of the beam: log probability of the paths that end with the blank, and with its last label.
struct Prefix {
  size_t node = 0;
  double blank = kNever;
  double label = kNever;
  double total() const { return log_add(blank, label); }
};

/// A prefix of the next beam: one that stays (label 0), or one with a label more.
struct Candidate {
  size_t from = 0;
  int32_t label = 0;
  double blank = kNever;
  double ends = kNever;
  double total = kNever;
};

std::vector<double> log_softmax(int64_t classes, const float* logits) {
  const double largest = *std::max_element(logits, logits + classes);
  double sum = 0.0;
  for (int64_t c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(logits[c]) - largest);
  std::vector<double> result;
  for (int64_t c = 0; c < classes; ++c) {
    result.push_back(static_cast<double>(logits[c]) - largest - std::log(sum));
  }
  return result;
}

/// All prefixes that one more row makes of a beam, each once.
std::vector<Candidate> extend(const std::vector<Prefix>& beam, const PrefixTree& tree,
                              const std::vector<double>& row) {
  const size_t classes = row.size();
  std::unordered_map<size_t, size_t> place;  // of a node in the beam
  for (size_t i = 0; i < beam.size(); ++i) place.emplace(beam[i].node, i);
  std::vector<Candidate> candidates(beam.size() * classes);  // [prefix, added label]; 0 stays
  for (size_t i = 0; i < beam.size(); ++i) {
    const Prefix& prefix = beam[i];
    const int32_t last = tree.label(prefix.node);
    const double total = prefix.total();
    for (size_t c = 0; c < classes; ++c) {
      Candidate& candidate = candidates[i * classes + c];
      candidate.from = i;
      candidate.label = static_cast<int32_t>(c);
      if (c == 0) {
        candidate.blank = total + row[0];
        if (prefix.node != 0) candidate.ends = prefix.label + row[static_cast<size_t>(last)];
      } else {
        // The same label again needs a blank between.
        const bool repeats = prefix.node != 0 && candidate.label == last;
        candidate.ends = (repeats ? prefix.blank : total) + row[c];
      }
    }
  }
  for (size_t i = 0; i < beam.size(); ++i) {
    if (beam[i].node == 0) continue;
    const auto parent = place.find(tree.parent(beam[i].node));
    if (parent == place.end()) continue;
    Candidate& twin =
        candidates[parent->second * classes + static_cast<size_t>(tree.label(beam[i].node))];
    Candidate& stays = candidates[i * classes];
    stays.ends = log_add(stays.ends, twin.ends);
    twin.ends = kNever;
  }
  for (Candidate& candidate : candidates) {
    candidate.total = log_add(candidate.blank, candidate.ends);
  }
  return candidates;
}

}  // namespace

void CtcPath::push(int64_t rows, const float* logits) {
  for (int64_t row = 0; row < rows; ++row, logits += classes_) {
    const auto best = static_cast<int32_t>(std::max_element(logits, logits + classes_) - logits);
    if (best != 0 && best != last_) labels_.push_back(best);
    last_ = best;
  }
}

std::vector<int32_t> ctc_greedy(int64_t rows, int64_t classes, const float* logits) {
  CtcPath path(classes);
  path.push(rows, logits);
  return path.labels();
}

std::vector<CtcHypothesis> ctc_prefix_beam(int64_t rows, int64_t classes, const float* logits,
                                           int64_t beam) {
  PrefixTree tree;
  std::vector<Prefix> prefixes = {{0, 0.0, kNever}};
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<Candidate> candidates =
        extend(prefixes, tree, log_softmax(classes, logits + row * classes));
    std::erase_if(candidates, [](const Candidate& c) { return c.total == kNever; });
    const size_t kept = std::min(candidates.size(), static_cast<size_t>(beam));
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<int64_t>(kept),
                      candidates.end(), [](const Candidate& a, const Candidate& b) {
                        return std::pair(-a.total, std::pair(a.from, a.label)) <
                               std::pair(-b.total, std::pair(b.from, b.label));
                      });
    std::vector<Prefix> next;
    for (size_t i = 0; i < kept; ++i) {
      const Candidate& candidate = candidates[i];
      const size_t node = prefixes[candidate.from].node;
      next.push_back({candidate.label == 0 ? node : tree.child(node, candidate.label),
                      candidate.blank, candidate.ends});
    }
    prefixes = std::move(next);
  }
  std::vector<CtcHypothesis> result;
  for (const Prefix& prefix : prefixes)
    result.push_back({tree.labels(prefix.node), prefix.total()});
  return result;
}

}  // namespace tarn::runtime
