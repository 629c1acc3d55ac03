#include "kernels/cpu/roof_probes.h"
#include "kernels/targets.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cstring>
#endif

namespace tarn::kernels {

#if defined(__x86_64__)

namespace {

constexpr int kTileRows = 16, kTileRowBytes = 64;
constexpr int kTileCells = kTileRows * kTileRowBytes / 4;
constexpr int kSumTiles = 4;  // tiles 0 to 3; 4 and 5 are left operands, 6 and 7 right ones

/// The operand of LDTILECFG: palette 1, eight tiles of full size.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  std::array<uint8_t, 14> reserved{};
  std::array<uint16_t, 16> row_bytes{};
  std::array<uint8_t, 16> rows{};
};
static_assert(sizeof(TileConfig) == 64);

TileConfig full_tiles() {
  TileConfig config;
  for (size_t tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kTileRowBytes;
    config.rows[tile] = kTileRows;
  }
  return config;
}

/// Bytes of one operand tile with the same 32-bit pattern everywhere.
struct alignas(64) TileData {
  std::array<uint32_t, kTileCells> cells;
  explicit TileData(uint32_t pattern) { cells.fill(pattern); }
};

/// Sums of all cells of the four accumulator tiles, read back as T.
template <class T>
double cell_sum(const std::array<TileData, kSumTiles>& tiles) {
  double total = 0;
  for (const TileData& tile : tiles) {
    for (uint32_t cell : tile.cells) {
      T value;
      std::memcpy(&value, &cell, sizeof(value));
      total += static_cast<double>(value);
    }
  }
  return total;
}

/// Makes the compiler write out everything: some headers do not tell it what the tile instructions
/// read.
void write_out(const void* config, const void* ones) {
  asm volatile("" : : "r"(config), "r"(ones) : "memory");
}

// Tile numbers are part of the instructions, so the loops name each tile. The configuration belongs
// to the thread, so every call sets it and gives it back.
__attribute__((target("amx-tile"))) void start_tiles(const TileData& ones) {
  const TileConfig config = full_tiles();
  write_out(&config, &ones);
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, ones.cells.data(), kTileRowBytes);
  _tile_loadd(5, ones.cells.data(), kTileRowBytes);
  _tile_loadd(6, ones.cells.data(), kTileRowBytes);
  _tile_loadd(7, ones.cells.data(), kTileRowBytes);
}

__attribute__((target("amx-tile"))) void finish_tiles(std::array<TileData, kSumTiles>& sums) {
  _tile_stored(0, sums[0].cells.data(), kTileRowBytes);
  _tile_stored(1, sums[1].cells.data(), kTileRowBytes);
  _tile_stored(2, sums[2].cells.data(), kTileRowBytes);
  _tile_stored(3, sums[3].cells.data(), kTileRowBytes);
  _tile_release();
}

std::array<TileData, kSumTiles> empty_sums() {
  return {TileData(0), TileData(0), TileData(0), TileData(0)};
}

__attribute__((target("amx-tile,amx-bf16"))) double run_bf16_amx(int64_t iterations) noexcept {
  start_tiles(TileData(0x3f803f80u));
  for (int64_t n = 0; n < iterations; ++n) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  std::array<TileData, kSumTiles> sums = empty_sums();
  finish_tiles(sums);
  return cell_sum<float>(sums);
}

__attribute__((target("amx-tile,amx-int8"))) double run_int8_amx(int64_t iterations) noexcept {
  start_tiles(TileData(0x01010101u));
  for (int64_t n = 0; n < iterations; ++n) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  std::array<TileData, kSumTiles> sums = empty_sums();
  finish_tiles(sums);
  return cell_sum<int32_t>(sums);
}

}  // namespace

ProbeLoop bf16_amx_probe() {
  if (has_amx_bf16()) return {"AMX_BF16", run_bf16_amx};
  return {};
}

ProbeLoop int8_amx_probe() {
  if (has_amx_int8()) return {"AMX_INT8", run_int8_amx};
  return {};
}

#else

ProbeLoop bf16_amx_probe() { return {}; }
ProbeLoop int8_amx_probe() { return {}; }

#endif

}  // namespace tarn::kernels
