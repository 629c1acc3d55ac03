#include "kernels/short_convolution.h"

#include <vector>

#include "kernels/gates.h"

namespace tarn::kernels::reference {

void convolution(const ConvolutionProblem& problem, const double* weight, const double* bias,
                 Heads<const double> x, double* const* state, Heads<double> y) {
  const int64_t kept = problem.width - 1;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    for (int64_t c = 0; c < problem.channels; ++c) {
      std::vector<double> inputs;  // of this channel: W − 1 earlier ones first
      for (int64_t s = 0; s < kept; ++s) {
        inputs.push_back(state != nullptr ? state[i][s * problem.channels + c] : 0.0);
      }
      for (int64_t t = 0; t < problem.sequences.length[i]; ++t) {
        const int64_t row = problem.sequences.begin[i] + t;
        inputs.push_back(x.at(row, 0)[c]);
        double sum = bias != nullptr ? bias[c] : 0.0;
        for (int64_t w = 0; w < problem.width; ++w) {
          sum += weight[c * problem.width + w] * inputs[static_cast<size_t>(t + w)];
        }
        y.at(row, 0)[c] = gate_function(GateFunction::kSilu, sum);
      }
      for (int64_t s = 0; state != nullptr && s < kept; ++s) {
        state[i][s * problem.channels + c] = inputs[inputs.size() - static_cast<size_t>(kept - s)];
      }
    }
  }
}

}  // namespace tarn::kernels::reference
