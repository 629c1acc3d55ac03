#include <fmt/format.h>

#include <cfloat>
#include <cmath>

#include "base/arena.h"
#include "base/json.h"
#include "runtime/operator_bench.h"
#include "runtime/operator_call.h"

namespace tarn::runtime {
namespace {

// Lengths of the check's two sequences: one past a power of two, and a short prime.
const std::vector<int64_t> kLengths = {65, 7};
constexpr double kDifference = 1e-5;  // step of the central difference, on inputs of size 1

double value_of(float element) { return static_cast<double>(element); }
double value_of(uint16_t bf16) { return static_cast<double>(bf16_to_f32(bf16)); }

/// Per value: f32 and its gradient, the reference in f64, its inputs rounded and its direction.
constexpr size_t kCheckBytes = 4 + 4 + 8 + 4 + 8;

struct Operator {
  const mixers::MixerDef& mixer;
  std::shared_ptr<const mixers::MixerConfig> config;
  mixers::OpShape shape;
};

/// Of both sequences, in f32 and as the reference has it.
int64_t state_bytes(const Operator& op) {
  int64_t values = 0;
  for (const mixers::StateSpec& spec : op.mixer.state_specs(*op.config)) {
    values += model::element_count(spec.shape) * (spec.per_token ? kLengths[0] : 1);
  }
  return static_cast<int64_t>(sizeof(float) + sizeof(double)) * 2 * values;
}

double norm(std::span<const double> values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

/// The reference output for inputs of type T moved by `distance` along `direction`.
template <class T = float>
std::vector<double> reference_output(const Operator& op, uint64_t seed, double distance,
                                     const std::vector<std::vector<double>>& direction) {
  Arena arena;
  OperatorCall<double> call(*op.config, op.shape, kLengths);
  OperatorCall<T> rounded(*op.config, op.shape, kLengths);
  rounded.randomise(seed);
  for (size_t i = 0; i < call.inputs().size(); ++i) {
    for (int64_t j = 0; j < call.inputs()[i].size(); ++j) {
      call.inputs()[i][j] = value_of(rounded.inputs()[i][j]);
      if (!direction.empty()) {
        call.inputs()[i][j] += distance * direction[i][static_cast<size_t>(j)];
      }
    }
  }
  call.args().arena = &arena;
  op.mixer.recurrent(call.args());
  return {call.out().span().begin(), call.out().span().end()};
}

void run_steps(const Operator& op, OperatorCall<float>& call) {
  OperatorState state(op.mixer.state_specs(*op.config), static_cast<int64_t>(kLengths.size()),
                      kLengths[0]);
  state.reset();
  mixers::OpArgs<float> args = call.args();
  args.state = state.refs();
  args.positions = call.positions().data();
  const std::vector<int64_t> starts = call.begins();
  for (int64_t t = 0; t < kLengths[0]; ++t) {
    // Sequences that have ended drop out of the batch: they stand last.
    std::vector<int64_t> begin, length;
    for (size_t i = 0; i < kLengths.size() && t < kLengths[i]; ++i) {
      begin.push_back(starts[i] + t);
      length.push_back(1);
      call.positions()[i] = t;
    }
    args.sequences = {static_cast<int64_t>(begin.size()), begin.data(), length.data()};
    op.mixer.step(args);
  }
}

Result<double> check_output(const Operator& op, const OperatorBenchOptions& options,
                            ThreadPool* pool) {
  Arena arena;
  OperatorCall<float> call(*op.config, op.shape, kLengths);
  call.randomise(options.seed);
  for (float& value : call.out().span()) value = std::nanf("");
  call.args().arena = &arena;
  call.args().pool = pool;
  if (options.pass == OperatorPass::kStep) {
    run_steps(op, call);
  } else {
    mixers::whole_form(op.mixer, *op.config)(call.args());
  }
  std::vector<double> difference = reference_output(op, options.seed, 0, {});
  const double size = norm(difference);
  for (int64_t i = 0; i < call.out().size(); ++i) {
    difference[static_cast<size_t>(i)] -= static_cast<double>(call.out()[i]);
  }
  // Sums of up to kLengths[0] rounded terms, and the rounding of what they are made from.
  const double tolerance = 4 * FLT_EPSILON * std::sqrt(static_cast<double>(kLengths[0])) * size;
  return norm(difference) / tolerance;
}

Result<double> check_bf16(const Operator& op, const OperatorBenchOptions& options,
                          ThreadPool* pool) {
  Arena arena;
  OperatorCall<uint16_t> call(*op.config, op.shape, kLengths);
  call.randomise(options.seed);
  for (uint16_t& value : call.out().span()) value = f32_to_bf16(std::nanf(""));
  call.args().arena = &arena;
  call.args().pool = pool;
  op.mixer.chunk_bf16(call.args());
  std::vector<double> difference = reference_output<uint16_t>(op, options.seed, 0, {});
  const double size = norm(difference);
  for (int64_t i = 0; i < call.out().size(); ++i) {
    difference[static_cast<size_t>(i)] -= value_of(call.out()[i]);
  }
  // Features, state, weights and output are each rounded by up to 2^-9.
  constexpr double kRounding = 0x1p-9;
  return norm(difference) / (4 * kRounding * size);
}

/// Gradient against (f(x + h u) - f(x - h u)) / 2h with f = dout . out and a random direction u.
Result<double> check_gradient(const Operator& op, const OperatorBenchOptions& options,
                              ThreadPool* pool) {
  Arena arena;
  OperatorCall<float> call(*op.config, op.shape, kLengths);
  OperatorCall<float> gradient(*op.config, op.shape, kLengths);
  call.randomise(options.seed);
  call.args().arena = &arena;
  call.args().pool = pool;
  std::vector<float> saved(static_cast<size_t>(call.rows() * op.shape.saved_per_row), NAN);
  call.args().saved = saved.data();
  mixers::whole_form(op.mixer, *op.config)(call.args());

  Buffer<float> dout(call.out().size());
  fill_random(dout.span(), mixers::OpInput::Range::kNormal, options.seed + 1, 0);
  std::vector<kernels::Heads<float>> dinputs;
  std::vector<std::vector<double>> direction;
  for (size_t i = 0; i < gradient.inputs().size(); ++i) {
    for (float& value : gradient.inputs()[i].span()) value = std::nanf("");
    const auto& heads = gradient.args().inputs[i];
    dinputs.push_back({gradient.inputs()[i].data(), heads.row_stride, heads.head_stride});
    auto& values = direction.emplace_back(static_cast<size_t>(gradient.inputs()[i].size()));
    fill_random(std::span<double>(values), mixers::OpInput::Range::kNormal, options.seed + 2,
                static_cast<uint32_t>(i));
  }
  mixers::OpBackwardArgs args;
  args.forward = call.args();
  args.dout = {dout.data(), call.args().out.row_stride, call.args().out.head_stride};
  args.dinputs = dinputs;
  args.dparams = gradient.params();
  op.mixer.backward(args);

  double along = 0, gradient_squares = 0;
  for (size_t i = 0; i < direction.size(); ++i) {
    for (size_t j = 0; j < direction[i].size(); ++j) {
      const double value = static_cast<double>(gradient.inputs()[i][static_cast<int64_t>(j)]);
      along += value * direction[i][j];
      gradient_squares += value * value;
    }
  }
  const auto above = reference_output(op, options.seed, kDifference, direction);
  const auto below = reference_output(op, options.seed, -kDifference, direction);
  double difference = 0;
  for (size_t i = 0; i < above.size(); ++i) {
    difference += static_cast<double>(dout[static_cast<int64_t>(i)]) * (above[i] - below[i]);
  }
  difference /= 2 * kDifference;
  // A random direction has components of size 1, so along is about the gradient's norm.
  const double tolerance =
      16 * FLT_EPSILON * std::sqrt(static_cast<double>(kLengths[0]) * gradient_squares);
  return std::abs(along - difference) / tolerance;
}

}  // namespace

Result<std::string> operator_config(const mixers::MixerDef& mixer, int64_t num_heads,
                                    int64_t key_dim, int64_t value_dim) {
  TARN_ASSIGN(Json json, parse_json(mixer.example_configs().front(), mixer.name));
  struct Size {
    const char* key;
    int64_t asked, otherwise;
  };
  constexpr int64_t kWidth = 8 * 64;
  for (const Size& size : {Size{"num_heads", num_heads, 8}, Size{"key_dim", key_dim, 64},
                           Size{"value_dim", value_dim, 64}, Size{"hidden_dim", 0, kWidth},
                           Size{"inner_dim", 0, kWidth}}) {
    // A mechanism around another one has the sizes of that one.
    const Json* inner = json.find("mixer");
    Json sized = inner != nullptr ? *inner : json;
    sized.set(size.key, size.asked > 0 ? size.asked : size.otherwise);
    Json with = json;
    if (inner != nullptr) {
      with.set("mixer", std::move(sized));
    } else {
      with = std::move(sized);
    }
    const auto parsed = mixer.parse_config(with, 64, mixer.name);
    if (!parsed.ok() && size.asked > 0) return parsed.error();
    if (parsed.ok()) json = std::move(with);
  }
  return json.dump();
}

Result<double> check_operator(const mixers::MixerDef& mixer, const OperatorBenchOptions& options,
                              ThreadPool* pool) {
  TARN_ASSIGN(const Json json, parse_json(options.config, mixer.name));
  TARN_ASSIGN(const auto config, mixer.parse_config(json, 64, mixer.name));
  const Operator op{mixer, config, mixer.op_shape(*config)};
  const bool backward =
      options.pass == OperatorPass::kBackward || options.pass == OperatorPass::kForwardBackward;
  TARN_RETURN_IF_ERROR(check_form(mixer, *config, options));
  TARN_RETURN_IF_ERROR(check_memory(op.shape, kLengths[0] + kLengths[1],
                                    {.values = kCheckBytes, .state = state_bytes(op)}));
  TARN_ASSIGN(double ratio, options.dtype == DType::kBF16 ? check_bf16(op, options, pool)
                                                          : check_output(op, options, pool));
  if (backward) {
    TARN_ASSIGN(const double gradient, check_gradient(op, options, pool));
    ratio = std::isnan(gradient) ? gradient : std::max(ratio, gradient);
  }
  if (!(ratio <= 1)) {
    return corrupt(fmt::format("refusing to time a wrong kernel: its error is {:.3g} times the "
                               "tolerance against the double-precision reference",
                               ratio),
                   mixer.name);
  }
  return ratio;
}

}  // namespace tarn::runtime
