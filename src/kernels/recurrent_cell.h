#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/threads.h"
#include "kernels/layout.h"
#include "kernels/product.h"

namespace tarn::kernels {

/// Recurrent cells with full recurrent matrices, in torch.nn's equations. x are the rows that the
/// input's own projection gave (its bias included), r = W·h_{t-1} + b the recurrent ones:
///   LSTM (gates i, f, g, o):  c_t = σ(x_f + r_f)·c_{t-1} + σ(x_i + r_i)·tanh(x_g + r_g)
///                             h_t = σ(x_o + r_o)·tanh(c_t)
///   GRU (gates r, z, n):      n_t = tanh(x_n + σ(x_r + r_r)·r_n)
///                             h_t = n_t + σ(x_z + r_z)·(h_{t-1} − n_t)
/// Source: Hochreiter 1997 with forget gates, Cho 2014 (arXiv 1406.1078); torch.nn.LSTM and GRU.
enum class RecurrentCell : uint8_t { kLstm, kGru };

struct RecurrentProblem {
  RecurrentCell cell = RecurrentCell::kLstm;
  Sequences sequences;
  int64_t hidden_dim = 0;  ///< E
  /// Threads share the sequences. The result's bits depend neither on it nor on batch mates.
  ThreadPool* pool = nullptr;

  int64_t num_gates() const { return cell == RecurrentCell::kLstm ? 4 : 3; }
  /// Columns of `gates`.
  int64_t gates_dim() const { return num_gates() * hidden_dim; }
  /// Floats per row that the forward pass saves: i, f, g, o, c or r, z, n, r_n.
  int64_t saved_dim() const { return (num_gates() + 1) * hidden_dim; }
};

/// Per-sequence state pointers, [E] each; c is the LSTM's. A null `h` stands for zeros / not wanted.
template <class T>
struct RecurrentState {
  T* const* h = nullptr;
  T* const* c = nullptr;
};

/// The recurrent weight W [gates_dim, E], packed for the forward pass and for steps. With bf16 the
/// operands are rounded and sums are f32.
PackedOperand pack_recurrent(const RecurrentProblem& problem, DType format, const float* weight,
                             Arena& arena);

/// Whole sequences, all of them a token at a time, so that the recurrent product has many rows.
/// gates [rows, gates_dim] are x, bias [gates_dim] or null; continues from and updates `state`;
/// out [rows, E] is h; saved [rows, saved_dim] (nullable) is what the backward pass needs. Splitting
/// a sequence over calls, or stepping through it, gives the same bits.
/// Cost: 2·T·gates_dim·E flops; scratch (gates_dim + 2·E) floats per sequence.
void recurrent_forward(const RecurrentProblem& problem, Rows<const float> gates,
                       const PackedOperand& weight, const float* bias, RecurrentState<float> state,
                       Rows<float> out, Rows<float> saved, Arena& arena) noexcept;

/// One token per sequence: row sequences.begin[i] updates state i in place and is answered.
void recurrent_step(const RecurrentProblem& problem, Rows<const float> gates,
                    const PackedOperand& weight, const float* bias, RecurrentState<float> state,
                    Rows<float> out, Arena& arena) noexcept;

struct RecurrentGradients {
  Rows<float> dgates;              ///< overwritten
  float* dweight = nullptr;        ///< [gates_dim, E], added to
  float* dbias = nullptr;          ///< [gates_dim], added to; or null
  RecurrentState<float> dinitial;  ///< overwritten; or null
};

/// Gradient of recurrent_forward through time. `weight` [gates_dim, E] as torch keeps it; `initial`
/// is the state before the forward call and `dfinal` the gradient that arrives at the final state
/// (null: zeros); out and saved are what forward wrote. Weight gradients are summed sequence by
/// sequence. Cost: 4·T·gates_dim·E flops; scratch (gates_dim + 3·E) floats per sequence, a packed
/// weight, and for the GRU E floats per row.
void recurrent_backward(const RecurrentProblem& problem, DType format, const float* weight,
                        Rows<const float> out, Rows<const float> saved,
                        RecurrentState<const float> initial, Rows<const float> dout,
                        RecurrentState<const float> dfinal, const RecurrentGradients& gradients,
                        Arena& arena) noexcept;

namespace reference {
/// The token loop in double: ground truth.
void recurrent(const RecurrentProblem& problem, Rows<const double> gates, const double* weight,
               const double* bias, RecurrentState<double> state, Rows<double> out);
}  // namespace reference

}  // namespace tarn::kernels
