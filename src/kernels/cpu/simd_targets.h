#pragma once

/// Included before Highway in every file with vector code: which targets this project compiles.
/// Left out are those whose vectors have no size at compile time, because the kernels keep blocks
/// of accumulators in arrays; Arm CPUs take NEON instead. Targets of other families stay Highway's
/// choice; on x86 that is scalar, SSSE3, SSE4, AVX2 and AVX3.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
