#pragma once

#include <cstdint>

namespace tarn::kernels {

/// A tensor of rows (tokens) × heads × channels with channel stride 1: what q, k, v and out are,
/// also when they are column slices of one wide matrix. Strides are in elements.
template <class T>
struct Heads {
  T* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  T* at(int64_t row, int64_t head) const { return data + row * row_stride + head * head_stride; }
  explicit operator bool() const { return data != nullptr; }
  operator Heads<const T>() const { return {data, row_stride, head_stride}; }
};

/// A tensor of rows (tokens) × channels with channel stride 1, `stride` elements from row to row.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;

  T* at(int64_t row) const { return data + row * stride; }
  explicit operator bool() const { return data != nullptr; }
  operator Rows<const T>() const { return {data, stride}; }
};

/// Which rows form which sequence: sequence i owns rows [begin[i], begin[i] + length[i]).
/// A dense [B, T] batch has begin[i] = i·T; per-sequence lengths shorten `length`; a packed batch
/// has begin = cu_seqlens. Rows of no sequence are padding: never read, never written.
struct Sequences {
  int64_t count = 0;
  const int64_t* begin = nullptr;
  const int64_t* length = nullptr;
};

}  // namespace tarn::kernels
