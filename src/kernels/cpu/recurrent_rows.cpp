#include "kernels/cpu/recurrent_rows.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrent_rows.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// 1/(1 + e^−x) by the exponential of −|x|, so that no argument overflows; within 4 ulp.
HWY_INLINE VecF32 sigmoid(VecF32 x) {
  const F32 d;
  const VecF32 one = hn::Set(d, 1.0f);
  const VecF32 power = exp_nonpositive(hn::Neg(hn::Abs(x)));
  const VecF32 top = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), power, one);
  return hn::Div(top, hn::Add(one, power));
}

/// tanh within 4 ulp: (1 − e^−2|x|)/(1 + e^−2|x|), and where that would cancel an odd polynomial,
/// a weighted minimax fit on |x| ≤ 0.64 (5.7e-9).
HWY_INLINE VecF32 tanh_of(VecF32 x) {
  const F32 d;
  const VecF32 one = hn::Set(d, 1.0f);
  const VecF32 size = hn::Abs(x);
  const VecF32 power = exp_nonpositive(hn::Mul(size, hn::Set(d, -2.0f)));
  const VecF32 far = hn::CopySign(hn::Div(hn::Sub(one, power), hn::Add(one, power)), x);
  const VecF32 z = hn::Mul(x, x);
  VecF32 p = hn::Set(d, -0.005591015797108412f);
  p = hn::MulAdd(p, z, hn::Set(d, 0.020538819953799248f));
  p = hn::MulAdd(p, z, hn::Set(d, -0.05370965600013733f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.133310928940773f));
  p = hn::MulAdd(p, z, hn::Set(d, -0.33333268761634827f));
  const VecF32 near = hn::MulAdd(hn::Mul(x, z), p, x);
  return hn::IfThenElse(hn::Le(size, hn::Set(d, 0.64f)), near, far);
}

/// Calls `body(i, lanes)` for all elements of a row.
template <class Body>
HWY_INLINE void for_each_vector(int64_t size, const Body& body) {
  const Tail whole(kLanes);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) body(i, whole);
  if (i < size) body(i, Tail(size - i));
}

void lstm_row(const CellRow& row) {
  const int64_t E = row.hidden_dim;
  for_each_vector(E, [&](int64_t e, const Tail& tail) {
    const auto gate = [&](int64_t which) {
      return hn::Add(load_partial(row.x + which * E + e, tail),
                     load_partial(row.recurrent + which * E + e, tail));
    };
    const VecF32 i = sigmoid(gate(0)), f = sigmoid(gate(1)), g = tanh_of(gate(2));
    const VecF32 o = sigmoid(gate(3));
    const VecF32 c = hn::MulAdd(f, load_partial(row.c + e, tail), hn::Mul(i, g));
    const VecF32 h = hn::Mul(o, tanh_of(c));
    store_partial(c, row.c + e, tail);
    store_partial(h, row.h + e, tail);
    store_partial(h, row.out + e, tail);
    if (row.saved == nullptr) return;
    float* saved = row.saved + e;
    for (const VecF32& value : {i, f, g, o, c}) {
      store_partial(value, saved, tail);
      saved += E;
    }
  });
}

void gru_row(const CellRow& row) {
  const int64_t E = row.hidden_dim;
  for_each_vector(E, [&](int64_t e, const Tail& tail) {
    const auto x = [&](int64_t which) { return load_partial(row.x + which * E + e, tail); };
    const auto recurrent = [&](int64_t which) {
      return load_partial(row.recurrent + which * E + e, tail);
    };
    const VecF32 r = sigmoid(hn::Add(x(0), recurrent(0)));
    const VecF32 z = sigmoid(hn::Add(x(1), recurrent(1)));
    const VecF32 n = tanh_of(hn::MulAdd(r, recurrent(2), x(2)));
    const VecF32 h = hn::MulAdd(z, hn::Sub(load_partial(row.h + e, tail), n), n);
    store_partial(h, row.h + e, tail);
    store_partial(h, row.out + e, tail);
    if (row.saved == nullptr) return;
    float* saved = row.saved + e;
    for (const VecF32& value : {r, z, n, recurrent(2)}) {
      store_partial(value, saved, tail);
      saved += E;
    }
  });
}

/// dy·s·(1 − s): through s = σ(·).
HWY_INLINE VecF32 through_sigmoid(VecF32 dy, VecF32 s) {
  return hn::Mul(dy, hn::NegMulAdd(s, s, s));
}
/// dy·(1 − t²): through t = tanh(·).
HWY_INLINE VecF32 through_tanh(VecF32 dy, VecF32 t) { return hn::NegMulAdd(hn::Mul(dy, t), t, dy); }

void lstm_row_gradient(const CellRowGradient& row) {
  const F32 d;
  const int64_t E = row.hidden_dim;
  for_each_vector(E, [&](int64_t e, const Tail& tail) {
    const auto saved = [&](int64_t which) { return load_partial(row.saved + which * E + e, tail); };
    const VecF32 i = saved(0), f = saved(1), g = saved(2), o = saved(3);
    const VecF32 squashed = tanh_of(saved(4));
    const VecF32 dh = hn::Add(load_partial(row.dh + e, tail), load_partial(row.dout + e, tail));
    const VecF32 dc =
        hn::Add(load_partial(row.dc + e, tail), through_tanh(hn::Mul(dh, o), squashed));
    store_partial(hn::Zero(d), row.dh + e, tail);
    store_partial(hn::Mul(dc, f), row.dc + e, tail);
    int64_t place = e;
    for (const VecF32& value :
         {through_sigmoid(hn::Mul(dc, g), i),
          through_sigmoid(hn::Mul(dc, load_partial(row.before + e, tail)), f),
          through_tanh(hn::Mul(dc, i), g), through_sigmoid(hn::Mul(dh, squashed), o)}) {
      store_partial(value, row.dgates + place, tail);
      store_partial(value, row.drecurrent + place, tail);
      place += E;
    }
  });
}

void gru_row_gradient(const CellRowGradient& row) {
  const int64_t E = row.hidden_dim;
  for_each_vector(E, [&](int64_t e, const Tail& tail) {
    const auto saved = [&](int64_t which) { return load_partial(row.saved + which * E + e, tail); };
    const VecF32 r = saved(0), z = saved(1), n = saved(2);
    const VecF32 dh = hn::Add(load_partial(row.dh + e, tail), load_partial(row.dout + e, tail));
    const VecF32 dn = through_tanh(hn::NegMulAdd(dh, z, dh), n);
    const VecF32 dz =
        through_sigmoid(hn::Mul(dh, hn::Sub(load_partial(row.before + e, tail), n)), z);
    const VecF32 dr = through_sigmoid(hn::Mul(dn, saved(3)), r);
    store_partial(hn::Mul(dh, z), row.dh + e, tail);
    for (float* to : {row.dgates, row.drecurrent}) {
      store_partial(dr, to + e, tail);
      store_partial(dz, to + E + e, tail);
    }
    store_partial(dn, row.dgates + 2 * E + e, tail);
    store_partial(hn::Mul(dn, r), row.drecurrent + 2 * E + e, tail);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(lstm_row);
HWY_EXPORT(lstm_row_gradient);
HWY_EXPORT(gru_row);
HWY_EXPORT(gru_row_gradient);

}  // namespace

CellRowKernels cell_row_kernels(RecurrentCell cell) {
  if (cell == RecurrentCell::kLstm) {
    return {HWY_DYNAMIC_DISPATCH(lstm_row), HWY_DYNAMIC_DISPATCH(lstm_row_gradient)};
  }
  return {HWY_DYNAMIC_DISPATCH(gru_row), HWY_DYNAMIC_DISPATCH(gru_row_gradient)};
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
