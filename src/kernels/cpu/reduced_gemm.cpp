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

/// Calls sums(r, p, to): the products of row r and panel p, added to the 32 floats at `to`.
template <class Sums>
void run_tile(const ReducedTile& tile, const Sums& sums) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t p = 0; p < tile.panels; ++p) {
      float* out = tile.out + r * tile.out_stride + p * kWidth;
      const int64_t columns = std::clamp<int64_t>(tile.columns - p * kWidth, 0, kWidth);
      float values[kWidth];
      std::copy_n(tile.bias + p * kWidth, kWidth, values);
      if (tile.accumulate) {
        for (int64_t c = 0; c < columns; ++c) values[c] += out[c];
      }
      sums(r, p, values);
      // NaN stays: it is not below zero.
      for (int64_t c = 0; c < columns; ++c) out[c] = tile.relu && values[c] < 0 ? 0 : values[c];
    }
  }
}

void bf16_tile(const ReducedTile& tile) {
  run_tile(tile, [&tile](int64_t r, int64_t p, float* to) {
    const auto* x = reinterpret_cast<const uint16_t*>(tile.x) + r * tile.depth;
    const auto* w = reinterpret_cast<const uint16_t*>(tile.w) + p * tile.depth * kWidth;
    for (int64_t k = 0; k < tile.depth; ++k) {
      const float value = bf16_to_f32(x[k]);
      const uint16_t* row = w + k / 2 * 2 * kWidth + k % 2;
      for (int64_t c = 0; c < kWidth; ++c) to[c] += value * bf16_to_f32(row[2 * c]);
    }
  });
}

void int8_tile(const ReducedTile& tile) {
  run_tile(tile, [&tile](int64_t r, int64_t p, float* to) {
    const uint8_t* x = tile.x + r * tile.depth;
    const auto* w = reinterpret_cast<const int8_t*>(tile.w) + p * tile.depth * kWidth;
    int32_t sums[kWidth] = {};
    for (int64_t k = 0; k < tile.depth; ++k) {
      const int32_t value = x[k];
      const int8_t* row = w + k / 4 * 4 * kWidth + k % 4;
      for (int64_t c = 0; c < kWidth; ++c) sums[c] += value * row[4 * c];
    }
    for (int64_t c = 0; c < kWidth; ++c) {
      const int64_t column = p * kWidth + c;
      const auto exact = static_cast<float>(sums[c] - tile.offset_sums[column]);
      to[c] = std::fma(exact * tile.scale[column], tile.row_scale[r], to[c]);
    }
  });
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
                    int64_t count, const char* upcoming) {
  const ReducedPanels& panels = *product.panels;
  const int64_t column = panel * kWidth;
  ReducedTile tile;
  tile.rows = size;
  tile.panels = count;
  tile.depth = panels.depth;
  tile.x = rows.values + offset * panels.depth * panels.element_bytes();
  tile.w = panels.weights.data() + panel * panels.panel_bytes();
  tile.bias = panels.bias.data() + column;
  tile.out = product.out + (rows.first + offset) * product.out_stride + column;
  tile.out_stride = product.out_stride;
  tile.columns = std::min(count * kWidth, panels.out_dim - column);
  tile.accumulate = product.accumulate;
  tile.upcoming = upcoming;
  tile.relu = product.activation == Activation::kRelu;
  if (panels.format == WeightFormat::kInt8) {
    tile.scale = panels.scale.data() + column;
    tile.offset_sums = panels.offset_sums.data() + column;
    tile.row_scale = rows.scales + offset;
    kernels.int8_tile(tile);
  } else {
    kernels.bf16_tile(tile);
  }
  if (product.activation == Activation::kNone || tile.relu) return;
  for (int64_t r = 0; r < size; ++r) {
    apply_activation(product.activation, tile.columns, tile.out + r * product.out_stride);
  }
}

/// Rows [row_begin, row_end) times panels [panel_begin, panel_end).
void multiply_range(const ReducedKernels& kernels, const ReducedProduct& product, int64_t row_begin,
                    int64_t row_end, int64_t panel_begin, int64_t panel_end) {
  // The rows in reduced form live in memory of the thread: it grows to the largest product once.
  thread_local Arena arena;
  const ReducedPanels& panels = *product.panels;
  const int64_t row_bytes = std::max<int64_t>(1, panels.depth * panels.element_bytes());
  UpcomingPieces upcoming(product.upcoming, upcoming_bytes(panels.depth));
  const int64_t panels_ahead = 2 / panels.element_bytes();  // that upcoming_bytes cover
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
      // The weights that come next, while the first rows use these. Not beyond the last panel.
      const int64_t next = std::min(panel + 1, panels.num_panels - panels_ahead);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = rows.count * block / blocks;
        const int64_t end = rows.count * (block + 1) / blocks;
        const char* ask = upcoming.next();
        if (ask == nullptr && block == 0 && next > panel) {
          const uint8_t* weights = panels.weights.data() + next * panels.panel_bytes();
          ask = reinterpret_cast<const char*>(weights);
        }
        multiply_block(kernels, product, rows, begin, end - begin, panel, count, ask);
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
  const int threads = pool == nullptr ? 1 : pool->num_threads();
  if (threads == 1 || !worth_sharing(product.rows, panels.weights.size_bytes())) {
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
