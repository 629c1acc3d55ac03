#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels::HWY_NAMESPACE {

// Two vectors of a panel at a time, at most 16 lanes each, so that every width divides a panel.
using Tag = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Tag>;

/// Rows per register tile: 12×2 accumulators where there are 32 vector registers, else 6×2 of 16.
constexpr int kMaxRows = kManyRegisters ? 12 : 6;

/// Panels in flight for few rows: enough independent chains to hide the latency of an FMA.
constexpr int panels_in_flight(int rows) {
  return rows * 4 <= kMaxRows ? 4 : rows * 2 <= kMaxRows ? 2 : 1;
}

/// `kRows` rows times `kPanels` consecutive panels, all columns: one chain of fused multiply-adds
/// per element, in order of k, starting from the bias (plus the old output when accumulating).
/// On the way it asks for `upcoming` memory, or null, and for the panel `next_panel` floats on.
template <int kRows, int kPanels>
HWY_NOINLINE void multiply_tile(int64_t depth, const float* x, int64_t x_stride, const float* w,
                                const float* bias, bool accumulate, float* out, int64_t out_stride,
                                const char* upcoming, int64_t next_panel) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr bool kAsk = kPanels == 1 && kRows >= 4;
  // Without any, a line that is there. All passes over the columns together ask for upcoming_bytes.
  const char* ask = upcoming != nullptr ? upcoming : reinterpret_cast<const char*>(w);
  const int64_t ask_step = upcoming != nullptr ? 4 * lanes : 0;
  const int64_t panel_size = depth * kPanelWidth;
  for (int64_t column = 0; column < kPanelWidth; column += 2 * lanes) {
    Vector sum[kRows][2 * kPanels];
    HWY_UNROLL(4)
    for (int p = 0; p < kPanels; ++p) {
      const float* b = bias + p * kPanelWidth + column;
      HWY_UNROLL(12)
      for (int r = 0; r < kRows; ++r) {
        sum[r][2 * p] = hn::LoadU(d, b);
        sum[r][2 * p + 1] = hn::LoadU(d, b + lanes);
      }
    }
    if (accumulate) {
      HWY_UNROLL(12)
      for (int r = 0; r < kRows; ++r) {
        const float* o = out + r * out_stride + column;
        HWY_UNROLL(4)
        for (int p = 0; p < kPanels; ++p) {
          const float* op = o + p * kPanelWidth;
          sum[r][2 * p] = hn::Add(sum[r][2 * p], hn::LoadU(d, op));
          sum[r][2 * p + 1] = hn::Add(sum[r][2 * p + 1], hn::LoadU(d, op + lanes));
        }
      }
    }
    const float* wk = w + column;
    for (int64_t k = 0; k < depth; ++k, wk += kPanelWidth) {
      if constexpr (kAsk) {
        __builtin_prefetch(ask, 0, 2);
        ask += ask_step;
        __builtin_prefetch(wk + next_panel, 0, 2);
        __builtin_prefetch(wk + next_panel + lanes, 0, 2);
      }
      Vector weights[2 * kPanels];
      HWY_UNROLL(4)
      for (int p = 0; p < kPanels; ++p) {
        weights[2 * p] = hn::LoadU(d, wk + p * panel_size);
        weights[2 * p + 1] = hn::LoadU(d, wk + p * panel_size + lanes);
      }
      HWY_UNROLL(12)
      for (int r = 0; r < kRows; ++r) {
        const Vector value = hn::Set(d, x[r * x_stride + k]);
        HWY_UNROLL(8)
        for (int p = 0; p < 2 * kPanels; ++p) {
          sum[r][p] = hn::MulAdd(value, weights[p], sum[r][p]);
        }
      }
    }
    HWY_UNROLL(12)
    for (int r = 0; r < kRows; ++r) {
      float* o = out + r * out_stride + column;
      HWY_UNROLL(4)
      for (int p = 0; p < kPanels; ++p) {
        hn::StoreU(sum[r][2 * p], d, o + p * kPanelWidth);
        hn::StoreU(sum[r][2 * p + 1], d, o + p * kPanelWidth + lanes);
      }
    }
  }
}

using Tile = void (*)(int64_t, const float*, int64_t, const float*, const float*, bool, float*,
                      int64_t, const char*, int64_t);

template <int kFirst, int... kMore>
Tile tile_from(int64_t rows, std::integer_sequence<int, kFirst, kMore...>) {
  constexpr Tile kTiles[] = {nullptr, multiply_tile<kMore, 1>...};
  return kTiles[rows];
}

/// The tile for 1 … kMaxRows rows of one panel.
Tile tile_of(int64_t rows) {
  return tile_from(rows, std::make_integer_sequence<int, kMaxRows + 1>());
}

Tile wide_tile_of(int64_t rows) {
  switch (rows) {
    case 1: return multiply_tile<1, panels_in_flight(1)>;
    case 2: return multiply_tile<2, panels_in_flight(2)>;
    case 3: return multiply_tile<3, panels_in_flight(3)>;
    default: return nullptr;
  }
}

/// One panel that has fewer than 32 real columns: through a tile on the stack.
void multiply_narrow(const PanelProduct& product, int64_t rows, Tile tile, const float* x,
                     const float* w, const float* bias, int64_t columns, float* out) {
  HWY_ALIGN float block[kMaxRows * kPanelWidth];
  if (product.accumulate) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* old = out + r * product.out_stride;
      std::copy(old, old + columns, block + r * kPanelWidth);
      std::fill(block + r * kPanelWidth + columns, block + (r + 1) * kPanelWidth, 0.0f);
    }
  }
  tile(product.panels->in_dim, x, product.x_stride, w, bias, product.accumulate, block, kPanelWidth,
       nullptr, 0);
  activate_block(product.activation, rows, kPanelWidth, block, kPanelWidth);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = block + r * kPanelWidth;
    std::copy(row, row + columns, out + r * product.out_stride);
  }
}

/// Rows [row_begin, row_end) times panels [panel_begin, panel_end).
void multiply_range(const PanelProduct& product, int64_t row_begin, int64_t row_end,
                    int64_t panel_begin, int64_t panel_end) {
  const PackedPanels& panels = *product.panels;
  const int64_t panel_size = panels.in_dim * kPanelWidth;
  const int64_t whole_panels = panels.out_dim / kPanelWidth;
  const int64_t rows = row_end - row_begin;
  const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
  UpcomingPieces upcoming(product.upcoming, upcoming_bytes(panels.in_dim));
  const int64_t wide = rows <= 3 ? panels_in_flight(static_cast<int>(rows)) : 1;
  // Row blocks per pass over the weights: their input stays in the second-level cache.
  const int64_t block_bytes = kMaxRows * std::max<int64_t>(panels.in_dim, 1) * 4;
  const int64_t pass = std::max<int64_t>(1, (int64_t{1} << 18) / block_bytes);
  for (int64_t first = 0; first < blocks; first += pass) {
    const int64_t last = std::min(blocks, first + pass);
    for (int64_t panel = panel_begin; panel < panel_end;) {
      const int64_t count = panel + wide <= std::min(panel_end, whole_panels) ? wide : 1;
      const float* w = panels.weights.data() + panel * panel_size;
      const float* bias = panels.bias.data() + panel * kPanelWidth;
      for (int64_t block = first; block < last; ++block) {
        const int64_t begin = row_begin + rows * block / blocks;
        const int64_t size = row_begin + rows * (block + 1) / blocks - begin;
        const float* x = product.x + begin * product.x_stride;
        float* out = product.out + begin * product.out_stride + panel * kPanelWidth;
        const Tile tile = count > 1 ? wide_tile_of(size) : tile_of(size);
        if (panel < whole_panels) {
          tile(panels.in_dim, x, product.x_stride, w, bias, product.accumulate, out,
               product.out_stride, upcoming.next(), panel + count < whole_panels ? panel_size : 0);
          activate_block(product.activation, size, count * kPanelWidth, out, product.out_stride);
        } else {
          multiply_narrow(product, size, tile, x, w, bias, panels.out_dim - panel * kPanelWidth,
                          out);
        }
      }
      panel += count;
    }
  }
}

}  // namespace tarn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {

HWY_EXPORT(multiply_range);

PackedPanels pack_panels(const float* weight, const float* bias, int64_t out_dim, int64_t in_dim) {
  PackedPanels panels;
  panels.out_dim = out_dim;
  panels.in_dim = in_dim;
  panels.num_panels = (out_dim + kPanelWidth - 1) / kPanelWidth;
  panels.weights = Buffer<float>::filled(panels.num_panels * in_dim * kPanelWidth, 0.0f);
  panels.bias = Buffer<float>::filled(panels.num_panels * kPanelWidth, 0.0f);
  for (int64_t n = 0; n < out_dim; ++n) {
    float* column =
        panels.weights.data() + n / kPanelWidth * in_dim * kPanelWidth + n % kPanelWidth;
    for (int64_t k = 0; k < in_dim; ++k) column[k * kPanelWidth] = weight[n * in_dim + k];
    if (bias != nullptr) panels.bias[n] = bias[n];
  }
  return panels;
}

void multiply_panels(const PanelProduct& product, ThreadPool* pool) noexcept {
  if (product.rows <= 0 || product.panels->out_dim <= 0) return;
  const PackedPanels& panels = *product.panels;
  const int threads = pool == nullptr ? 1 : pool->num_threads();
  if (threads == 1 || !worth_sharing(product.rows, panels.weights.size_bytes())) {
    HWY_DYNAMIC_DISPATCH(multiply_range)(product, 0, product.rows, 0, panels.num_panels);
    return;
  }
  if (product.rows >= 16 * threads || product.rows > panels.num_panels) {
    pool->parallel_for(product.rows, [&product](int64_t begin, int64_t end, int) {
      HWY_DYNAMIC_DISPATCH(multiply_range)(product, begin, end, 0, product.panels->num_panels);
    });
  } else {
    pool->parallel_for(panels.num_panels, [&product](int64_t begin, int64_t end, int) {
      HWY_DYNAMIC_DISPATCH(multiply_range)(product, 0, product.rows, begin, end);
    });
  }
}

}  // namespace tarn::kernels
#endif
