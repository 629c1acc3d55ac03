#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/layout.h"

namespace tarn::kernels {

/// The diagonal family: every channel e has a state vector of its own, and its elements do not mix.
/// Threads share the channels in blocks set by the shape alone, so bits depend neither on the number
/// of threads nor on batch mates, nor (outputs and states) on how a sequence is split over calls.
struct DiagonalScanProblem {
  Sequences sequences;
  int64_t num_channels = 0;  ///< E
  int64_t state_dim = 0;     ///< N
  ThreadPool* pool = nullptr;
};

/// Inputs of the selective scan:
///   h_t[e, n] = exp(δ_t[e]·A[e, n])·h_{t-1}[e, n] + δ_t[e]·x_t[e]·B_t[n]
///   y_t[e] = Σ_n C_t[n]·h_t[e, n] + d[e]·x_t[e]
/// Source: Gu 2023 (arXiv 2312.00752), eqs. 2-4 with the simplified B̄ = δ·B of its section 3.6.
template <class T>
struct SelectiveScanInputs {
  Rows<const T> x;       ///< [rows, E]
  Rows<const T> delta;   ///< [rows, E], ≥ 0: after its softplus
  Rows<const T> b, c;    ///< [rows, N]
  const T* a = nullptr;  ///< [E, N], ≤ 0
  const T* d = nullptr;  ///< [E], or null: zeros
};

/// Floats that `borders` of the forward pass hold: the states at every 32nd token.
int64_t selective_scan_borders(const DiagonalScanProblem& problem);

/// Whole sequences. `state[i]` [E, N] is sequence i's state, continued from and updated (null:
/// zeros, not returned); y [rows, E]; `borders` (nullable) is what the backward pass needs.
/// Cost: T·E·N exponentials and 4·T·E·N flops; scratch O(N + 32) · a block of channels per thread.
void selective_scan_forward(const DiagonalScanProblem& problem,
                            const SelectiveScanInputs<float>& inputs, float* const* state,
                            Rows<float> y, float* borders, Arena& arena) noexcept;

/// Gradients of rows are overwritten, those of parameters (nullable) are added to.
struct SelectiveScanGradients {
  Rows<float> dx, ddelta, db, dc;
  float* da = nullptr;               ///< [E, N]
  float* dd = nullptr;               ///< [E]
  float* const* dinitial = nullptr;  ///< overwritten with the initial states' gradients; or null
};

/// Gradient of selective_scan_forward. States are computed again from `borders`, 32 tokens at a
/// time; `dfinal` (nullable) is the gradient that arrives at the final states. Sums over tokens run
/// backwards through each sequence in turn, sums over channels in order of the blocks.
/// Cost: T·E·N exponentials and 14·T·E·N flops; scratch 68·N floats per channel of a block and
/// thread, and 2·N floats per row for each of at most 16 groups of channels.
void selective_scan_backward(const DiagonalScanProblem& problem,
                             const SelectiveScanInputs<float>& inputs, const float* borders,
                             Rows<const float> dy, const float* const* dfinal,
                             const SelectiveScanGradients& gradients, Arena& arena) noexcept;

/// One token per sequence: row sequences.begin[i] updates state i in place and is answered, with
/// the bits of selective_scan_forward.
void selective_scan_step(const DiagonalScanProblem& problem,
                         const SelectiveScanInputs<float>& inputs, float* const* state,
                         Rows<float> y, Arena& arena) noexcept;

/// Zero-order hold of diagonal complex systems: A [E, N] as pairs (re, im), dt [E]:
///   Ā = exp(dt·A)      B̄ = (exp(dt·A) − 1)/A      (dt where A is zero), pairs [E, N].
/// Source: Gu 2022 (arXiv 2206.11893), section 2. In double, rounded once. Cost: E·N complex
/// exponentials, so once per change of the parameters and not per token.
void zero_order_hold(int64_t num_channels, int64_t state_dim, const float* a, const float* dt,
                     float* transition, float* input) noexcept;

/// Its gradient: da [E, N] pairs and ddt [E] are added to.
void zero_order_hold_gradient(int64_t num_channels, int64_t state_dim, const float* a,
                              const float* dt, const float* dtransition, const float* dinput,
                              float* da, float* ddt) noexcept;

/// Inputs of the diagonal state space model (S4D), complex numbers as pairs (re, im):
///   h_t[e, n] = Ā[e, n]·h_{t-1}[e, n] + B̄[e, n]·u_t[e]
///   y_t[e] = 2·Re(Σ_n C[e, n]·h_t[e, n]) + d[e]·u_t[e]
/// Source: Gu 2022 (arXiv 2206.11893), section 3: one of each conjugate pair, hence the 2.
struct DiagonalStateSpaceInputs {
  Rows<const float> u;                ///< [rows, E]
  const float* transition = nullptr;  ///< Ā [E, N] pairs, |Ā| ≤ 1
  const float* input = nullptr;       ///< B̄ [E, N] pairs
  const float* c = nullptr;           ///< [E, N] pairs
  const float* d = nullptr;           ///< [E], or null: zeros
};

/// Floats that `borders` of the forward pass hold: the states at every 64th token.
int64_t diagonal_state_space_borders(const DiagonalScanProblem& problem);

/// As selective_scan_forward, states [E, N] pairs. Cost: 16·T·E·N flops.
void diagonal_state_space_forward(const DiagonalScanProblem& problem,
                                  const DiagonalStateSpaceInputs& inputs, float* const* state,
                                  Rows<float> y, float* borders, Arena& arena) noexcept;

/// As SelectiveScanGradients; complex gradients are pairs of the derivatives by re and by im.
struct DiagonalStateSpaceGradients {
  Rows<float> du;
  float* dtransition = nullptr;
  float* dinput = nullptr;
  float* dc = nullptr;
  float* dd = nullptr;
  float* const* dinitial = nullptr;
};

/// As selective_scan_backward. Cost: 50·T·E·N flops.
void diagonal_state_space_backward(const DiagonalScanProblem& problem,
                                   const DiagonalStateSpaceInputs& inputs, const float* borders,
                                   Rows<const float> dy, const float* const* dfinal,
                                   const DiagonalStateSpaceGradients& gradients,
                                   Arena& arena) noexcept;

/// As selective_scan_step.
void diagonal_state_space_step(const DiagonalScanProblem& problem,
                               const DiagonalStateSpaceInputs& inputs, float* const* state,
                               Rows<float> y, Arena& arena) noexcept;

namespace reference {
/// The token loops in double: ground truth. `state` as above.
void selective_scan(const DiagonalScanProblem& problem, const SelectiveScanInputs<double>& inputs,
                    double* const* state, Rows<double> y);

/// From A and dt themselves; A not zero.
struct DiagonalStateSpaceInputs {
  Rows<const double> u;
  const double* a = nullptr;   ///< [E, N] pairs
  const double* dt = nullptr;  ///< [E]
  const double* c = nullptr;   ///< [E, N] pairs
  const double* d = nullptr;   ///< [E], or null
};
void diagonal_state_space(const DiagonalScanProblem& problem,
                          const DiagonalStateSpaceInputs& inputs, double* const* state,
                          Rows<double> y);
}  // namespace reference

}  // namespace tarn::kernels
