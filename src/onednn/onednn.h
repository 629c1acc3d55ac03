#pragma once

namespace tarn::onednn {

/// Lends oneDNN's matrix products to the kernels as GemmBackend::kOneDnn. Call it once at start-up,
/// before any matrix is packed.
void install();

}  // namespace tarn::onednn
