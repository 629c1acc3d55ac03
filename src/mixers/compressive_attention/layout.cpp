#include <algorithm>

#include "mixers/compressive_attention/compressive_attention.h"

namespace tarn::mixers::compressive_attention {

using kernels::KeyRun;
using kernels::QueryBlock;

namespace {

/// One entry from `compression` rows of one head; `weight` [compression, dim] of that head.
/// row(i) is the i-th of them.
template <class Row>
void pool(const Config& config, int64_t dim, const float* weight, const Row& row, float* to) {
  std::copy_n(row(0), dim, to);
  const auto mean = 1.0f / static_cast<float>(config.compression);
  for (int64_t i = 0; i < config.compression; ++i) {
    const float* x = row(i);
    for (int64_t c = 0; c < dim; ++c) {
      const float before = i == 0 ? 0.0f : to[c];
      switch (config.pooling) {
        case Pooling::kMean: to[c] = before + mean * x[c]; break;
        case Pooling::kMax: to[c] = std::max(to[c], x[c]); break;
        case Pooling::kConvolution: to[c] = before + weight[i * dim + c] * x[c]; break;
      }
    }
  }
}

/// The gradients of the rows and the weights that went into one entry. row(i) and drow(i) as above.
template <class Row, class GradientRow>
void pool_gradient(const Config& config, int64_t dim, const float* weight, const float* dentry,
                   const Row& row, const GradientRow& drow, float* dweight) {
  const auto mean = 1.0f / static_cast<float>(config.compression);
  for (int64_t c = 0; c < dim; ++c) {
    int64_t largest = 0;
    for (int64_t i = 0; i < config.compression; ++i) {
      if (row(i)[c] > row(largest)[c]) largest = i;
    }
    for (int64_t i = 0; i < config.compression; ++i) {
      switch (config.pooling) {
        case Pooling::kMean: drow(i)[c] += mean * dentry[c]; break;
        case Pooling::kMax:
          if (i == largest) drow(i)[c] += dentry[c];
          break;
        case Pooling::kConvolution:
          drow(i)[c] += weight[i * dim + c] * dentry[c];
          dweight[i * dim + c] += row(i)[c] * dentry[c];
          break;
      }
    }
  }
}

/// Parameters of keys or values for one head, or null when there are none.
template <class T>
T* weights_of(const Config& config, std::span<T* const> params, const SlotLayout::Rows& rows,
              int64_t head) {
  if (params.empty()) return nullptr;
  return params[rows.keys ? 0 : 1] + head * config.compression * rows.dim;
}

}  // namespace

int64_t Layout::max_rows(const Call& call) const {
  return row_of_token(call, call.seen + call.tokens);
}

int64_t Layout::plan(const Call& call, int32_t* source, int32_t* held) const {
  const int64_t before = config.blocks_after(call.seen);
  const int64_t after = config.blocks_after(call.seen + call.tokens);
  std::fill_n(held, num_slots(), -1);
  for (int64_t b = first_block(call); b < after; ++b) {
    const auto row = static_cast<int32_t>(row_of_block(call, b));
    source[row] = b < before ? ~static_cast<int32_t>(b % config.memory) : kComputed;
    if (b >= before) held[b % config.memory] = row;
  }
  for (int64_t p = before * config.compression; p < call.seen + call.tokens; ++p) {
    const auto row = static_cast<int32_t>(row_of_token(call, p));
    source[row] =
        p < call.seen ? ~static_cast<int32_t>(slot_of(p)) : static_cast<int32_t>(p - call.seen);
    if (p >= call.seen) held[slot_of(p)] = row;
  }
  return max_rows(call);
}

void Layout::see_rows(const Call& call, QueryBlock& block) const {
  const int64_t query = call.seen + block.first;
  const int64_t least = config.blocks_after(query + 1);
  const int64_t most = config.blocks_after(query + block.count);
  const int64_t first_entry = std::max<int64_t>(0, least - config.memory);
  const int64_t first_token = least * config.compression;
  KeyRun& entries = block.add_run(row_of_block(call, first_entry), 1, most - first_entry);
  KeyRun& tokens =
      block.add_run(row_of_token(call, first_token), 1, query + block.count - first_token);
  for (int64_t r = 0; r < block.count; ++r) {
    const int64_t blocks = config.blocks_after(query + r + 1);
    entries.from[r] =
        static_cast<int32_t>(std::max<int64_t>(0, blocks - config.memory) - first_entry);
    entries.to[r] = static_cast<int32_t>(blocks - first_entry);
    tokens.from[r] = static_cast<int32_t>(blocks * config.compression - first_token);
    tokens.to[r] = static_cast<int32_t>(query + r + 1 - first_token);
  }
}

void Layout::see_slots(int64_t position, QueryBlock& block) const {
  const int64_t blocks = config.blocks_after(position + 1);
  const auto see = [&](int64_t first, int64_t count) {
    KeyRun& run = block.add_run(first, 1, count);
    run.from[0] = 0;
    run.to[0] = static_cast<int32_t>(count);
  };
  see(0, std::min(blocks, config.memory));
  const int64_t first = blocks * config.compression % ring();
  const int64_t count = position + 1 - blocks * config.compression;
  const int64_t unbroken = std::min(count, ring() - first);
  see(config.memory + first, unbroken);
  see(config.memory, count - unbroken);
}

void Layout::compute(const Call& call, Params params, Rows& rows) const {
  const int64_t after = config.blocks_after(call.seen + call.tokens);
  for (int64_t b = config.blocks_after(call.seen); b < after; ++b) {
    const int64_t token = row_of_token(call, b * config.compression);
    for (int64_t h = 0; h < rows.heads; ++h) {
      pool(
          config, rows.dim, weights_of(config, params, rows, h),
          [&](int64_t i) { return rows.at(token + i) + h * rows.dim; },
          rows.at(row_of_block(call, b)) + h * rows.dim);
    }
  }
}

void Layout::compute_gradient(const Call& call, Params params, Rows& rows, Rows& drows,
                              std::span<float* const> dparams) const {
  const int64_t after = config.blocks_after(call.seen + call.tokens);
  for (int64_t b = config.blocks_after(call.seen); b < after; ++b) {
    const int64_t token = row_of_token(call, b * config.compression);
    for (int64_t h = 0; h < rows.heads; ++h) {
      pool_gradient(
          config, rows.dim, weights_of(config, params, rows, h),
          drows.at(row_of_block(call, b)) + h * rows.dim,
          [&](int64_t i) { return rows.at(token + i) + h * rows.dim; },
          [&](int64_t i) { return drows.at(token + i) + h * rows.dim; },
          weights_of(config, dparams, rows, h));
    }
  }
}

void Layout::compute_slots(int64_t position, Params params, Rows& slots) const {
  const int64_t after = config.blocks_after(position + 1);
  if (after == config.blocks_after(position)) return;
  const int64_t block = after - 1;
  for (int64_t h = 0; h < slots.heads; ++h) {
    pool(
        config, slots.dim, weights_of(config, params, slots, h),
        [&](int64_t i) {
          return slots.at(slot_of(block * config.compression + i)) + h * slots.dim;
        },
        slots.at(block % config.memory) + h * slots.dim);
  }
}

}  // namespace tarn::mixers::compressive_attention
