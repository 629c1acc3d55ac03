#pragma once

#include "base/dtype.h"
#include "base/threads.h"
#include "train/config.h"
#include "train/parameters.h"

namespace tarn::train {

/// Whether Muon updates this parameter: the weight matrices of the layers. Embeddings, head, biases
/// and norms are AdamW's.
bool is_muon_matrix(const mixers::ParamSpec& spec);

/// One Muon update of every such matrix (K. Jordan 2024, "Muon: an optimizer for hidden layers in
/// neural networks"): with gradient G (times gradient_scale), momentum M (updated in place),
/// learning rate η and decoupled weight decay λ,
///   M ← μM + G;  U ← orthogonalised (G + μM);  W ← (1 − ηλ)W − η √max(1, rows/columns) U.
/// A parameter that stacks several matrices (ParamSpec::row_blocks) counts as these. Products are
/// rounded to `precision`; each matrix is computed by one thread, so their number does not matter.
/// Cost: per matrix of a × b (a ≤ b) about 20·a²·b + 10·a³ flops.
void muon_update(const OptimiserConfig& config, double factor, double gradient_scale,
                 DType precision, ParameterBuffers& parameters, Buffer<float>& momentum,
                 ThreadPool* pool);

/// Replaces the matrix [rows, columns] by one with the same singular vectors and singular values
/// near 1 (between 0.7 and 1.2 for those above about 1e-3 of its norm): five Newton–Schulz steps
/// X ← aX + (bA + cA²)X, A = XXᵀ, with Jordan's coefficients, from X = matrix / ‖matrix‖.
void orthogonalise(int64_t rows, int64_t columns, DType precision, float* matrix);

}  // namespace tarn::train
