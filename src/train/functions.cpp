#include "train/functions.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/norm.h"
#include "kernels/norm_gradient.h"
#include "kernels/product.h"
#include "mixers/common/torch_mixer.h"

namespace tarn::train {
namespace {

using kernels::Activation;
using kernels::RowProduct;
using mixers::TrainedLinear;
using mixers::training_arena;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What a node's backward pass needs besides tensors.
template <class T>
struct Kept final : torch::CustomClassHolder {
  explicit Kept(T v) : value(std::move(v)) {}
  T value;
};

template <class T>
void keep(AutogradContext* context, T value) {
  context->saved_data["kept"] =
      c10::IValue::make_capsule(c10::make_intrusive<Kept<T>>(std::move(value)));
}

template <class T>
c10::intrusive_ptr<Kept<T>> kept_by(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Kept<T>>(context->saved_data["kept"].toCapsule());
}

int64_t rows_of(const at::Tensor& x) { return x.numel() / x.size(-1); }

const float* data(const at::Tensor& x) { return x.const_data_ptr<float>(); }

/// Where a parameter's gradient is added, or null where it has none.
float* gradient_of(const at::Tensor& parameter) {
  return parameter.defined() && parameter.grad().defined()
             ? parameter.grad().mutable_data_ptr<float>()
             : nullptr;
}

struct EmbeddingCall {
  EmbeddingArgs args;
  Execution execution;

  int64_t dim() const { return args.tables[0].size(1); }
  /// The row of table `i` that is added to row t of sequence b.
  int64_t row_of(size_t i, int64_t b, int64_t t) const {
    const int64_t lag = i == 0 ? 0 : args.lags[i - 1];
    return t < lag ? args.start_token : args.inputs[b * args.length + t - lag];
  }
};

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  /// `leaf`: any of the tables, so that the graph begins here.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& leaf,
                            const EmbeddingCall& call) {
    const PartTimer timer(call.execution.times, "embedding");
    const EmbeddingArgs& args = call.args;
    const int64_t dim = call.dim();
    at::Tensor x = at::empty({args.count, args.length, dim}, leaf.options());
    float* out = x.mutable_data_ptr<float>();
    parallel_for(call.execution.pool, args.count * args.length,
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t row = begin; row < end; ++row) {
                     const int64_t b = row / args.length;
                     const int64_t t = row % args.length;
                     float* to = out + row * dim;
                     std::copy_n(data(args.tables[0]) + call.row_of(0, b, t) * dim, dim, to);
                     const auto add = [&](const float* from) {
                       for (int64_t i = 0; i < dim; ++i) to[i] += from[i];
                     };
                     if (args.position.defined()) add(data(args.position) + t * dim);
                     for (size_t i = 1; i < args.tables.size(); ++i) {
                       add(data(args.tables[i]) + call.row_of(i, b, t) * dim);
                     }
                   }
                 });
    keep(context, call);
    return x;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const EmbeddingCall& call = kept_by<EmbeddingCall>(context)->value;
    const PartTimer timer(call.execution.times, "embedding backward");
    const EmbeddingArgs& args = call.args;
    const int64_t dim = call.dim();
    const at::Tensor dx = gradients[0].contiguous();
    // Threads share columns, not rows: each sum runs over the rows in order.
    parallel_for(call.execution.pool, dim, [&](int64_t begin, int64_t end, int) {
      const auto add = [&](float* table, int64_t table_row, int64_t row) {
        const float* from = data(dx) + row * dim;
        float* to = table + table_row * dim;
        for (int64_t i = begin; i < end; ++i) to[i] += from[i];
      };
      float* position = gradient_of(args.position);
      for (int64_t row = 0; row < args.count * args.length; ++row) {
        const int64_t b = row / args.length;
        const int64_t t = row % args.length;
        if (position != nullptr) add(position, t, row);
        for (size_t i = 0; i < args.tables.size(); ++i) {
          add(gradient_of(args.tables[i]), call.row_of(i, b, t), row);
        }
      }
    });
    return {at::Tensor(), at::Tensor()};
  }
};

struct NormCall {
  at::Tensor weight, bias;
  float eps;
  Execution execution;
};

struct NormFunction : torch::autograd::Function<NormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const NormCall& call) {
    const PartTimer timer(call.execution.times, "norms");
    at::Tensor y = at::empty(x.sizes(), x.options());
    const int64_t dim = x.size(-1);
    float* out = y.mutable_data_ptr<float>();
    parallel_for(call.execution.pool, rows_of(x), [&](int64_t begin, int64_t end, int) {
      const float* from = data(x) + begin * dim;
      float* to = out + begin * dim;
      if (call.bias.defined()) {
        kernels::layer_norm(end - begin, dim, from, dim, data(call.weight), data(call.bias),
                            call.eps, to, dim);
      } else {
        kernels::rms_norm(end - begin, dim, from, dim, data(call.weight), call.eps, to, dim);
      }
    });
    context->save_for_backward({x});
    keep(context, call);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const NormCall& call = kept_by<NormCall>(context)->value;
    const at::Tensor x = context->get_saved_variables()[0];
    const PartTimer timer(call.execution.times, "norms backward");
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty(x.sizes(), x.options());
    kernels::norm_gradient(!call.bias.defined(), rows_of(x), x.size(-1), data(x), data(call.weight),
                           call.eps, data(dy), dx.mutable_data_ptr<float>(),
                           gradient_of(call.weight), gradient_of(call.bias), call.execution.pool);
    return {dx, at::Tensor()};
  }
};

struct MlpCall {
  TrainedLinear up, down;
  Activation activation;
  bool separate;  ///< the residual is another tensor than x
  Execution execution;
};

// Rows whose hidden layer stays in the second-level cache between the two products.
constexpr int64_t kMlpRows = 96;

/// Calls body(begin, end) for blocks of rows on the threads of the pool.
template <class Body>
void for_row_blocks(ThreadPool* pool, int64_t rows, const Body& body) {
  parallel_for(pool, rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; row += kMlpRows) {
      body(row, std::min(row + kMlpRows, end));
    }
  });
}

/// A product of whole dense tensors; its rows are cut out with kernels::rows_of.
RowProduct dense_product(const float* a, int64_t a_width, float* out, int64_t out_width) {
  RowProduct product;
  product.a = a;
  product.a_stride = a_width;
  product.out = out;
  product.out_stride = product.addend_stride = product.gate_stride = out_width;
  return product;
}

/// dh ← dh·f′(u).
at::Tensor activation_gradient(Activation activation, const at::Tensor& dh, const at::Tensor& u) {
  switch (activation) {
    case Activation::kNone:
    case Activation::kRelu: return dh;  // relu: by the gate of the product
    case Activation::kGelu: return at::gelu_backward(dh, u, "none");
    case Activation::kGeluTanh: return at::gelu_backward(dh, u, "tanh");
    case Activation::kSilu: return at::silu_backward(dh, u);
  }
  return dh;
}

struct MlpFunction : torch::autograd::Function<MlpFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& residual, const MlpCall& call) {
    const int64_t rows = rows_of(x);
    const int64_t dim = x.size(-1);
    const int64_t hidden = call.up.out_dim;
    const PartTimer timer(call.execution.times, "mlp", call.up.flops(rows) + call.down.flops(rows),
                          call.up.precision);
    const bool relu = call.activation == Activation::kRelu;
    const bool keeps_input = !relu && call.activation != Activation::kNone;
    at::Tensor h = at::empty({rows, hidden}, x.options());
    at::Tensor u = keeps_input ? at::empty({rows, hidden}, x.options()) : at::Tensor();
    at::Tensor y = at::empty(x.sizes(), x.options());
    ArenaScope scope(training_arena());
    const auto up = call.up.pack(call.execution.pool, training_arena());
    const auto down = call.down.pack(call.execution.pool, training_arena());
    float* first = (keeps_input ? u : h).mutable_data_ptr<float>();
    float* activated = h.mutable_data_ptr<float>();
    RowProduct to_hidden = dense_product(data(x), dim, first, hidden);
    to_hidden.bias = call.up.bias;
    to_hidden.relu = relu;
    RowProduct to_out = dense_product(activated, hidden, y.mutable_data_ptr<float>(), dim);
    to_out.bias = call.down.bias;
    to_out.addend = data(residual ? *residual : x);
    for_row_blocks(call.execution.pool, rows, [&](int64_t begin, int64_t end) {
      kernels::multiply_rows(up, kernels::rows_of(to_hidden, begin, end));
      if (keeps_input) {
        float* block = activated + begin * hidden;
        std::copy_n(first + begin * hidden, (end - begin) * hidden, block);
        kernels::apply_activation(call.activation, (end - begin) * hidden, block);
      }
      kernels::multiply_rows(down, kernels::rows_of(to_out, begin, end));
    });
    context->save_for_backward({x, h, u});
    keep(context, call);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const MlpCall& call = kept_by<MlpCall>(context)->value;
    const variable_list kept = context->get_saved_variables();
    const at::Tensor &x = kept[0], &h = kept[1], &u = kept[2];
    const int64_t rows = rows_of(x);
    const int64_t dim = x.size(-1);
    const int64_t hidden = call.up.out_dim;
    const PartTimer timer(call.execution.times, "mlp backward",
                          2.0 * (call.up.flops(rows) + call.down.flops(rows)), call.up.precision);
    ThreadPool* pool = call.execution.pool;
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dh = at::empty(h.sizes(), h.options());
    at::Tensor dx = at::empty(x.sizes(), x.options());
    ArenaScope scope(training_arena());
    const auto down = call.down.pack_for_gradient(pool, training_arena());
    const auto up = call.up.pack_for_gradient(pool, training_arena());
    RowProduct to_hidden = dense_product(data(dy), dim, dh.mutable_data_ptr<float>(), hidden);
    if (call.activation == Activation::kRelu) to_hidden.gate = data(h);
    RowProduct to_input = dense_product(data(dh), hidden, dx.mutable_data_ptr<float>(), dim);
    if (!call.separate) to_input.addend = data(dy);
    const bool fused = !u.defined();
    for_row_blocks(pool, rows, [&](int64_t begin, int64_t end) {
      kernels::multiply_rows(down, kernels::rows_of(to_hidden, begin, end));
      if (fused) kernels::multiply_rows(up, kernels::rows_of(to_input, begin, end));
    });
    if (!fused) {
      dh = activation_gradient(call.activation, dh, u);
      to_input.rows = rows;
      to_input.a = data(dh);
      kernels::multiply_rows(up, to_input, pool);
    }
    call.down.add_gradient(rows, data(dy), dim, data(h), hidden, pool);
    call.up.add_gradient(rows, data(dh), hidden, data(x), dim, pool);
    return {dx, call.separate ? dy : at::Tensor(), at::Tensor()};
  }
};

struct LinearCall {
  TrainedLinear map;
  Execution execution;
};

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const LinearCall& call) {
    const int64_t rows = rows_of(x);
    const int64_t out_dim = call.map.out_dim;
    const PartTimer timer(call.execution.times, "head", call.map.flops(rows), call.map.precision);
    at::Tensor y = at::empty({rows, out_dim}, x.options());
    ArenaScope scope(training_arena());
    RowProduct product = dense_product(data(x), x.size(-1), y.mutable_data_ptr<float>(), out_dim);
    product.rows = rows;
    product.bias = call.map.bias;
    kernels::multiply_rows(call.map.pack(call.execution.pool, training_arena()), product,
                           call.execution.pool);
    context->save_for_backward({x});
    keep(context, call);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const LinearCall& call = kept_by<LinearCall>(context)->value;
    const at::Tensor x = context->get_saved_variables()[0];
    const int64_t rows = rows_of(x);
    const PartTimer timer(call.execution.times, "head backward", 2.0 * call.map.flops(rows),
                          call.map.precision);
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty(x.sizes(), x.options());
    ArenaScope scope(training_arena());
    RowProduct product =
        dense_product(data(dy), dy.size(-1), dx.mutable_data_ptr<float>(), x.size(-1));
    product.rows = rows;
    kernels::multiply_rows(call.map.pack_for_gradient(call.execution.pool, training_arena()),
                           product, call.execution.pool);
    call.map.add_gradient(rows, data(dy), dy.size(-1), data(x), x.size(-1), call.execution.pool);
    return {dx, at::Tensor()};
  }
};

}  // namespace

at::Tensor embedding(const EmbeddingArgs& args, const Execution& execution) {
  return EmbeddingFunction::apply(args.tables[0], EmbeddingCall{args, execution});
}

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, float eps,
                const Execution& execution) {
  return NormFunction::apply(x, NormCall{weight, bias, eps, execution});
}

TrainedLinear linear_map(const at::Tensor& weight, const at::Tensor& bias, DType precision) {
  TORCH_CHECK(weight.grad().defined() && bias.grad().defined(), "a linear map has no gradients");
  return {weight.size(0),      weight.size(1),    data(weight), data(bias),
          gradient_of(weight), gradient_of(bias), precision};
}

at::Tensor mlp(const at::Tensor& x, const at::Tensor& residual, const TrainedLinear& up,
               Activation activation, const TrainedLinear& down, const Execution& execution) {
  const bool separate = !residual.is_same(x);
  return MlpFunction::apply(x, separate ? std::optional(residual) : std::nullopt,
                            MlpCall{up, down, activation, separate, execution});
}

at::Tensor linear(const at::Tensor& x, const TrainedLinear& map, const Execution& execution) {
  return LinearFunction::apply(x, LinearCall{map, execution});
}

}  // namespace tarn::train
