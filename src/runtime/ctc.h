#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace tarn::runtime {

/// What the rows of a CTC head say (Graves 2006): every row holds logits of `classes` classes, of
/// which 0 is the blank; a path names one class per row, and stands for the labels that are left
/// when repetitions are merged and then blanks removed. Logits are [rows, classes].

/// The most probable path, row after row: of equal classes the first one.
class CtcPath {
 public:
  explicit CtcPath(int64_t classes) : classes_(classes) {}
  void push(int64_t rows, const float* logits);
  const std::vector<int32_t>& labels() const { return labels_; }
  /// The labels since the last call, which are then no longer kept.
  std::vector<int32_t> take_labels() { return std::exchange(labels_, {}); }

 private:
  int64_t classes_;
  int32_t last_ = 0;  ///< the path's latest class
  std::vector<int32_t> labels_;
};

/// The labels of the most probable path.
std::vector<int32_t> ctc_greedy(int64_t rows, int64_t classes, const float* logits);

/// A sequence of labels and log p(labels), over the paths that the search followed.
struct CtcHypothesis {
  std::vector<int32_t> labels;
  double log_prob = 0.0;
};

/// Prefix beam search (Graves 2012, section 7.5; Hannun 2014): the `beam` most probable sequences of
/// labels whose prefixes stayed among the `beam` best, most probable first. Exact when the beam holds
/// all prefixes. Cost: rows · beam · classes steps.
std::vector<CtcHypothesis> ctc_prefix_beam(int64_t rows, int64_t classes, const float* logits,
                                           int64_t beam);

}  // namespace tarn::runtime
