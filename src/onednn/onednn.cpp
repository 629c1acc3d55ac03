#include "onednn/onednn.h"

#include <dlfcn.h>

#include <algorithm>
#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "dnnl.hpp"

#include "base/buffer.h"
#include "base/check.h"
#include "base/log.h"
#include "kernels/onednn_backend.h"

namespace tarn::onednn {
namespace {

using dnnl::memory;
using kernels::Activation;

/// oneDNN fails only on a bug of ours or when memory is exhausted.
template <class Body>
auto checked(const Body& body) noexcept {
  try {
    return body();
  } catch (const dnnl::error& error) {
    log_message(LogLevel::kError, std::string("oneDNN: ") + error.what());
    check_failed("oneDNN accepts the product", __FILE__, __LINE__);
  }
}

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// One oneDNN stream and scratch memory per thread of ours. Our pool splits the work, so oneDNN's
/// own OpenMP runtime is held to the calling thread; it is reached by name because only oneDNN
/// links it.
class ThreadContext {
 public:
  ThreadContext() : stream(cpu_engine()) {
    using SetThreads = void (*)(int);
    const auto set_threads =
        reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (set_threads != nullptr) set_threads(1);
  }
  float* scratch(int64_t size) { return at_least(scratch_, size); }
  float* dense_x(int64_t size) { return at_least(dense_x_, size); }
  float* dense_out(int64_t size) { return at_least(dense_out_, size); }
  static ThreadContext& current() {
    thread_local ThreadContext context;
    return context;
  }

  dnnl::stream stream;

 private:
  static float* at_least(Buffer<float>& buffer, int64_t size) {
    if (buffer.size() < size) buffer = Buffer<float>(size);
    return buffer.data();
  }
  Buffer<float> scratch_;
  Buffer<float> dense_x_;
  Buffer<float> dense_out_;
};

void append(dnnl::post_ops& ops, dnnl::algorithm algorithm, float alpha) {
#if DNNL_VERSION_MAJOR >= 3
  ops.append_eltwise(algorithm, alpha, 0.0f);
#else
  ops.append_eltwise(1.0f, algorithm, alpha, 0.0f);
#endif
}

dnnl::post_ops post_ops_of(Activation activation, bool accumulate) {
  dnnl::post_ops ops;
  if (accumulate) ops.append_sum(1.0f);
  switch (activation) {
    case Activation::kNone: break;
    case Activation::kRelu: append(ops, dnnl::algorithm::eltwise_relu, 0.0f); break;
    case Activation::kGelu: append(ops, dnnl::algorithm::eltwise_gelu_erf, 0.0f); break;
    case Activation::kGeluTanh: append(ops, dnnl::algorithm::eltwise_gelu_tanh, 0.0f); break;
    case Activation::kSilu: append(ops, dnnl::algorithm::eltwise_swish, 1.0f); break;
  }
  return ops;
}

/// What oneDNN compiles a product for.
struct Shape {
  int64_t rows = 0;
  Activation activation = Activation::kNone;
  bool accumulate = false;

  auto operator<=>(const Shape&) const = default;
};

class Matrix final : public kernels::OneDnnMatrix {
 public:
  Matrix(const float* weight, const float* bias, int64_t out_dim, int64_t in_dim)
      : out_dim_(out_dim), in_dim_(in_dim) {
    if (out_dim == 0) return;
    bias_ = Buffer<float>::filled(out_dim, 0.0f);
    if (bias != nullptr) std::copy(bias, bias + out_dim, bias_.data());
    if (in_dim == 0) return;
    // The layout that oneDNN likes for a middling number of rows serves all of them.
    weight_desc_ = memory::desc({in_dim, out_dim}, memory::data_type::f32, memory::format_tag::any);
    const auto desc = describe({kTypicalRows, Activation::kNone, false});
    weight_desc_ = desc.weights_desc();
    weights_ = memory(weight_desc_, cpu_engine());
    memory plain({{in_dim, out_dim}, memory::data_type::f32, {1, in_dim}}, cpu_engine(),
                 const_cast<float*>(weight));
    ThreadContext& context = ThreadContext::current();
    dnnl::reorder(plain, weights_).execute(context.stream, plain, weights_);
    context.stream.wait();
  }

  int64_t size_bytes() const override {
    const int64_t weights = in_dim_ * out_dim_ == 0 ? 0 : weight_desc_.get_size();
    return weights + bias_.size_bytes();
  }

  void multiply(int64_t rows, const float* x, int64_t x_stride, float* out, int64_t out_stride,
                Activation activation, bool accumulate, ThreadPool* pool) const noexcept override {
    if (rows <= 0 || out_dim_ == 0) return;
    // Waking the workers costs about as much as this many multiply-adds.
    constexpr double kMinParallelWork = 2e6;
    const double work =
        static_cast<double>(rows) * static_cast<double>(out_dim_) * static_cast<double>(in_dim_);
    parallel_for(work < kMinParallelWork ? nullptr : pool, rows,
                 [&](int64_t begin, int64_t end, int) {
                   checked([&] {
                     multiply_strided({end - begin, activation, accumulate}, x + begin * x_stride,
                                      x_stride, out + begin * out_stride, out_stride);
                   });
                 });
  }

 private:
  static constexpr int64_t kTypicalRows = 64;

  dnnl::matmul::primitive_desc describe(const Shape& shape) const {
    const auto f32 = memory::data_type::f32;
    const memory::desc x({shape.rows, in_dim_}, f32, memory::format_tag::ab);
    const memory::desc out({shape.rows, out_dim_}, f32, memory::format_tag::ab);
    const memory::desc bias({1, out_dim_}, f32, memory::format_tag::ab);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(post_ops_of(shape.activation, shape.accumulate));
#if DNNL_VERSION_MAJOR >= 3
    return {cpu_engine(), x, weight_desc_, bias, out, attributes};
#else
    return {{x, weight_desc_, bias, out}, attributes, cpu_engine()};
#endif
  }

  /// The compiled product for a shape; kept, because generation repeats a few shapes for ever.
  struct Compiled {
    dnnl::matmul::primitive_desc desc;
    dnnl::matmul primitive;
  };
  const Compiled& compiled(const Shape& shape) const {
    std::lock_guard lock(mutex_);
    auto found = compiled_.find(shape);
    if (found == compiled_.end()) {
      const auto desc = describe(shape);
      found = compiled_.emplace(shape, Compiled{desc, dnnl::matmul(desc)}).first;
    }
    return found->second;
  }

  /// oneDNN 2 has fast products for dense rows only (with strides it takes its reference loops, a
  /// thousand times slower), so strided rows are copied; that is little beside the product.
  void multiply_strided(const Shape& shape, const float* x, int64_t x_stride, float* out,
                        int64_t out_stride) const {
    const bool copy_x = x_stride != in_dim_ && shape.rows > 1;
    const bool copy_out = out_stride != out_dim_ && shape.rows > 1;
    ThreadContext& context = ThreadContext::current();
    const float* dense_x = x;
    if (copy_x) {
      float* copy = context.dense_x(shape.rows * in_dim_);
      copy_rows(shape.rows, in_dim_, x, x_stride, copy, in_dim_);
      dense_x = copy;
    }
    if (!copy_out) {
      multiply_dense(shape, dense_x, out, context);
      return;
    }
    float* dense_out = context.dense_out(shape.rows * out_dim_);
    if (shape.accumulate) copy_rows(shape.rows, out_dim_, out, out_stride, dense_out, out_dim_);
    multiply_dense(shape, dense_x, dense_out, context);
    copy_rows(shape.rows, out_dim_, dense_out, out_dim_, out, out_stride);
  }

  static void copy_rows(int64_t rows, int64_t dim, const float* from, int64_t from_stride,
                        float* to, int64_t to_stride) {
    for (int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride) {
      std::copy(from, from + dim, to);
    }
  }

  void multiply_dense(const Shape& shape, const float* x, float* out,
                      ThreadContext& context) const {
    if (in_dim_ == 0) {
      fill_with_bias(shape, out);
      return;
    }
    const Compiled& product = compiled(shape);
    const memory::desc scratch = product.desc.scratchpad_desc();
    product.primitive.execute(
        context.stream,
        {{DNNL_ARG_SRC, memory(product.desc.src_desc(), cpu_engine(), const_cast<float*>(x))},
         {DNNL_ARG_WEIGHTS, weights_},
         {DNNL_ARG_BIAS,
          memory(product.desc.bias_desc(), cpu_engine(), const_cast<float*>(bias_.data()))},
         {DNNL_ARG_DST, memory(product.desc.dst_desc(), cpu_engine(), out)},
         {DNNL_ARG_SCRATCHPAD,
          memory(scratch, cpu_engine(),
                 context.scratch((static_cast<int64_t>(scratch.get_size()) + 3) / 4))}});
    context.stream.wait();
  }

  /// A sum over no inputs, which oneDNN has no product for.
  void fill_with_bias(const Shape& shape, float* out) const {
    for (int64_t r = 0; r < shape.rows; ++r, out += out_dim_) {
      for (int64_t n = 0; n < out_dim_; ++n) out[n] = bias_[n] + (shape.accumulate ? out[n] : 0.0f);
      kernels::apply_activation(shape.activation, out_dim_, out);
    }
  }

  int64_t out_dim_;
  int64_t in_dim_;
  memory::desc weight_desc_;  // {in_dim, out_dim}
  memory weights_;
  Buffer<float> bias_;
  mutable std::mutex mutex_;
  mutable std::map<Shape, Compiled> compiled_;
};

std::string version() {
  const dnnl_version_t* version = dnnl::version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

std::unique_ptr<kernels::OneDnnMatrix> pack(const float* weight, const float* bias, int64_t out_dim,
                                            int64_t in_dim) {
  return checked([&] { return std::make_unique<Matrix>(weight, bias, out_dim, in_dim); });
}

constexpr kernels::OneDnnBackend kBackend{version, pack};

}  // namespace

void install() { kernels::set_onednn_backend(&kBackend); }

}  // namespace tarn::onednn
