#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace tarn::kernels {

/// bucket[row] = argmax of [x·D ; −x·D], the hash of Andoni 2015 (arXiv 1509.02897), with D
/// `directions` [dim, columns]: the number of the column whose product with x is the largest in size
/// (the first of equal ones), plus `columns` if that product is negative. In f32, products rounded
/// and added in order of `dim` on all targets, so that a row's bucket depends neither on the machine
/// nor on other rows.
/// Cost: 2·dim·columns flops per row.
void largest_projections(int64_t rows, int64_t dim, int64_t columns, Rows<const float> x,
                         const float* directions, int32_t* bucket) noexcept;

}  // namespace tarn::kernels
