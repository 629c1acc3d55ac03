#include "kernels/cpu/reduced_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/arena.h"
#include "base/check.h"
#include "base/dtype.h"

namespace tarn::kernels {
namespace {

constexpr int64_t kWidth = kReducedPanelWidth;

void round_row(int64_t in_dim, int64_t depth, const float* x, uint16_t* to) {
  for (int64_t i = 0; i < in_dim; ++i) to[i] = f32_to_bf16(x[i]);
  std::fill(to + in_dim, to + depth, uint16_t{0});
}

float quantise_row(int64_t in_dim, int64_t depth, const float* x, uint8_t* to) {
  float largest = 0.0f;
  for (int64_t i = 0; i < in_dim; ++i) {
    const float size = std::abs(x[i]);
    if (size > largest || std::isnan(size)) largest = size;  // nothing is larger than NaN: it stays
  }
  std::fill(to, to + depth, uint8_t{128});
  if (!std::isfinite(largest)) return largest;
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  for (int64_t i = 0; i < in_dim; ++i) {
    to[i] = static_cast<uint8_t>(128 + static_cast<int>(std::nearbyint(x[i] * inverse)));
  }
  return largest / 127.0f;
}

void bf16_tile(int64_t rows, int64_t panels, int64_t depth, const uint16_t* x, const uint16_t* w,
               float* out) {
  for (int64_t p = 0; p < panels; ++p) {
    const uint16_t* panel = w + p * depth * kWidth;
    for (int64_t r = 0; r < rows; ++r) {
      float* sums = out + r * panels * kWidth + p * kWidth;
      for (int64_t k = 0; k < depth; ++k) {
        const float value = bf16_to_f32(x[r * depth + k]);
        const uint16_t* row = panel + k / 2 * 2 * kWidth + k % 2;
        for (int64_t c = 0; c < kWidth; ++c) sums[c] += value * bf16_to_f32(row[2 * c]);
      }
    }
  }
}

void int8_tile(int64_t rows, int64_t panels, int64_t depth, const uint8_t* x, const int8_t* w,
               int32_t* out) {
  for (int64_t p = 0; p < panels; ++p) {
    const int8_t* panel = w + p * depth * kWidth;
    for (int64_t r = 0; r < rows; ++r) {
      int32_t* sums = out + r * panels * kWidth + p * kWidth;
      for (int64_t k = 0; k < depth; ++k) {
        const int32_t value = x[r * depth + k];
        const int8_t* row = panel + k / 4 * 4 * kWidth + k % 4;
        for (int64_t c = 0; c < kWidth; ++c) sums[c] += value * row[4 * c];
      }
    }
  }
}

/// Where element (k, c) of a panel lies.
int64_t place(int64_t k, int64_t c, int64_t group) {
  return (k / group * kWidth + c) * group + k % group;
}

void pack_int8_row(const float* weight, int64_t n, ReducedPanels& panels) {
  float largest = 0.0f;
  for (int64_t k = 0; k < panels.in_dim; ++k) largest = std::max(largest, std::abs(weight[k]));
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  auto* panel =
      reinterpret_cast<int8_t*>(panels.weights.data() + n / kWidth * panels.panel_bytes());
  int32_t sum = 0;
  for (int64_t k = 0; k < panels.in_dim; ++k) {
    const auto value = static_cast<int8_t>(std::nearbyint(weight[k] * inverse));
    panel[place(k, n % kWidth, 4)] = value;
    sum += value;
  }
  panels.scale[n] = largest / 127.0f;
  panels.offset_sums[n] = 128 * sum;
}

void pack_bf16_row(const float* weight, int64_t n, ReducedPanels& panels) {
  auto* panel =
      reinterpret_cast<uint16_t*>(panels.weights.data() + n / kWidth * panels.panel_bytes());
  for (int64_t k = 0; k < panels.in_dim; ++k) {
    panel[place(k, n % kWidth, 2)] = f32_to_bf16(weight[k]);
  }
}

/// Rows [row_begin, row_begin + rows) of a product in the panels' format, and what undoes it.
struct ReducedRows {
  int64_t first = 0;
  int64_t count = 0;
  uint8_t* values = nullptr;  // [count, depth]
  float* scales = nullptr;    // int8: [count]
};

void reduce_rows(const ReducedKernels& kernels, const ReducedProduct& product,
                 const ReducedRows& rows) {
  const ReducedPanels& panels = *product.panels;
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* x = product.x + (rows.first + r) * product.x_stride;
    uint8_t* to = rows.values + r * panels.depth * panels.element_bytes();
    if (panels.format == WeightFormat::kInt8) {
      rows.scales[r] = kernels.quantise_row(panels.in_dim, panels.depth, x, to);
    } else {
      kernels.round_row(panels.in_dim, panels.depth, x, reinterpret_cast<uint16_t*>(to));
    }
  }
}

/// At most 12 rows times `count` panels from `panel` on.
void multiply_block(const ReducedKernels& kernels, const ReducedProduct& product,
                    const ReducedRows& rows, int64_t offset, int64_t size, int64_t panel,
                    int64_t count) {
  // 12 rows of one panel, or 3 of four.
  constexpr int64_t kMostSums = kReducedTileRows * kWidth;
  TARN_DCHECK(size * count * kWidth <= kMostSums);
  alignas(64) float sums[kMostSums];
  alignas(64) int32_t integers[kMostSums];
  const ReducedPanels& panels = *product.panels;
  const int64_t width = count * kWidth;
  const int64_t first_column = panel * kWidth;
  const int64_t columns = std::min(width, panels.out_dim - first_column);
  const uint8_t* x = rows.values + offset * panels.depth * panels.element_bytes();
  const uint8_t* w = panels.weights.data() + panel * panels.panel_bytes();
  const bool is_int8 = panels.format == WeightFormat::kInt8;
  if (is_int8) {
    std::fill_n(integers, size * width, 0);
    kernels.int8_tile(size, count, panels.depth, x, reinterpret_cast<const int8_t*>(w), integers);
  }
  for (int64_t r = 0; r < size; ++r) {
    float* sum = sums + r * width;
    const float* bias = panels.bias.data() + first_column;
    const float* old = product.out + (rows.first + offset + r) * product.out_stride + first_column;
    std::copy_n(bias, width, sum);
    if (product.accumulate) {
      for (int64_t c = 0; c < columns; ++c) sum[c] += old[c];
    }
    if (is_int8) {
      const float scale = rows.scales[offset + r];
      for (int64_t c = 0; c < width; ++c) {
        const int32_t exact = integers[r * width + c] - panels.offset_sums[first_column + c];
        sum[c] += static_cast<float>(exact) * (scale * panels.scale[first_column + c]);
      }
    }
  }
  if (!is_int8) {
    kernels.bf16_tile(size, count, panels.depth, reinterpret_cast<const uint16_t*>(x),
                      reinterpret_cast<const uint16_t*>(w), sums);
  }
  if (product.activation != Activation::kNone) {
    apply_activation(product.activation, size * width, sums);
  }
  for (int64_t r = 0; r < size; ++r) {
    float* out = product.out + (rows.first + offset + r) * product.out_stride + first_column;
    std::copy_n(sums + r * width, columns, out);
  }
}

/// Rows [row_begin, row_end) times panels [panel_begin, panel_end).
void multiply_range(const ReducedKernels& kernels, const ReducedProduct& product, int64_t row_begin,
                    int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  // The rows in reduced form live in memory of the thread: it grows to the largest product once.
  thread_local Arena arena;
  const ReducedPanels& panels = *product.panels;
  const int64_t row_bytes = std::max<int64_t>(1, panels.depth * panels.element_bytes());
  const int64_t pass = std::max<int64_t>(kReducedTileRows, (int64_t{1} << 17) / row_bytes);
  for (int64_t first = row_begin; first < row_end; first += pass) {
    ArenaScope scope(arena);
    ReducedRows rows{first, std::min(pass, row_end - first), nullptr, nullptr};
    rows.values = arena.alloc<uint8_t>(rows.count * row_bytes);
    rows.scales = arena.alloc<float>(rows.count);
    reduce_rows(kernels, product, rows);
    const int64_t blocks = (rows.count + kReducedTileRows - 1) / kReducedTileRows;
    const int64_t wide = rows.count <= 3 ? 4 : 1;
    for (int64_t panel = panel_begin; panel < panel_end; panel += wide) {
      const int64_t count = std::min(wide, panel_end - panel);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = rows.count * block / blocks;
        const int64_t end = rows.count * (block + 1) / blocks;
        multiply_block(kernels, product, rows, begin, end - begin, panel, count);
      }
    }
  }
}

}  // namespace

int64_t ReducedPanels::size_bytes() const {
  return weights.size_bytes() + bias.size_bytes() + scale.size_bytes() + offset_sums.size_bytes();
}

ReducedPanels pack_reduced(const float* weight, const float* bias, int64_t out_dim, int64_t in_dim,
                           WeightFormat format) {
  TARN_CHECK(format != WeightFormat::kF32);
  ReducedPanels panels;
  panels.format = format;
  panels.out_dim = out_dim;
  panels.in_dim = in_dim;
  panels.depth = (in_dim + panels.group() - 1) / panels.group() * panels.group();
  panels.num_panels = (out_dim + kWidth - 1) / kWidth;
  const int64_t padded = panels.num_panels * kWidth;
  panels.weights = Buffer<uint8_t>::filled(panels.num_panels * panels.panel_bytes(), 0);
  panels.bias = Buffer<float>::filled(padded, 0.0f);
  if (bias != nullptr) std::copy_n(bias, out_dim, panels.bias.data());
  if (format == WeightFormat::kInt8) {
    panels.scale = Buffer<float>::filled(padded, 0.0f);
    panels.offset_sums = Buffer<int32_t>::filled(padded, 0);
  }
  for (int64_t n = 0; n < out_dim; ++n) {
    if (format == WeightFormat::kInt8) {
      pack_int8_row(weight + n * in_dim, n, panels);
    } else {
      pack_bf16_row(weight + n * in_dim, n, panels);
    }
  }
  return panels;
}

const ReducedKernels& generic_reduced_kernels() {
  static constexpr ReducedKernels kKernels{"generic", round_row, quantise_row, bf16_tile,
                                           int8_tile};
  return kKernels;
}

void multiply_reduced(const ReducedKernels& kernels, const ReducedProduct& product,
                      ThreadPool* pool) noexcept {
  const ReducedPanels& panels = *product.panels;
  if (product.rows <= 0 || panels.out_dim <= 0) return;
  // Waking the workers costs about as much as this many multiply-adds.
  constexpr double kMinParallelWork = 6e6;
  const double work = static_cast<double>(product.rows) * static_cast<double>(panels.out_dim) *
                      static_cast<double>(panels.in_dim);
  const int threads = pool == nullptr ? 1 : pool->num_threads();
  if (threads == 1 || work < kMinParallelWork) {
    multiply_range(kernels, product, 0, product.rows, 0, panels.num_panels);
    return;
  }
  if (product.rows >= 16 * threads || product.rows > panels.num_panels) {
    pool->parallel_for(product.rows, [&](int64_t begin, int64_t end, int) {
      multiply_range(kernels, product, begin, end, 0, panels.num_panels);
    });
  } else {
    pool->parallel_for(panels.num_panels, [&](int64_t begin, int64_t end, int) {
      multiply_range(kernels, product, 0, product.rows, begin, end);
    });
  }
}

}  // namespace tarn::kernels
