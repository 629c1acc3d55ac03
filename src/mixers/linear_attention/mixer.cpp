#include "kernels/state_update.h"
#include "mixers/layer_program.h"
#include "mixers/linear_attention/linear_attention.h"

namespace tarn::mixers::linear_attention {

extern const MixerDef kDef;

kernels::FeatureMap Config::feature_map() const {
  kernels::FeatureMap map = shape_of_map;
  if (!random_features) return map;
  std::call_once(drawn_, [&] {
    const int64_t columns = map.feature_dim / 2;
    omega_ = Buffer<float>(map.input_dim * columns);
    kernels::draw_orthogonal_features(map.input_dim, columns, feature_seed, omega_.data());
  });
  map.parameters = omega_.data();
  return map;
}

namespace {

using kernels::Heads;
using kernels::StatePointers;
using kernels::StateUpdateProblem;

constexpr int64_t kMaxFeatures = 8192;
constexpr int64_t kMaxTaylorDim = 90;  // 1 + 90 + 90² features

const Config& config_of(const MixerConfig* config) { return static_cast<const Config&>(*config); }

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->num_heads = reader.integer("num_heads", 1, 4096);
  config->key_dim = reader.integer("key_dim", 1, 4096);
  config->value_dim = reader.integer("value_dim", 1, 4096, config->key_dim);
  config->causal = reader.boolean("causal", true);
  config->normalise = reader.boolean("normalise", true);
  config->eps = static_cast<float>(reader.number("eps", 0.0, 1.0, 1e-6));
  const size_t map = reader.choice("feature_map",
                                   {"elu_plus_one", "relu", "squared_relu", "favor", "dpfp",
                                    "taylor", "t2r", "hedgehog", "hedgehog_apart"},
                                   0);
  const bool favor = map == 3;
  int64_t num_features = 0;
  int64_t feature_seed = 0;
  if (favor) {
    num_features = reader.integer("num_features", 2, 8192, 2 * config->key_dim);
    feature_seed = reader.integer("feature_seed", 0, INT64_MAX, 0);
    if (num_features % 2 != 0) {
      reader.fail("num_features",
                  "got " + std::to_string(num_features) + ", wanted an even number");
    }
  }
  if (map == 6) num_features = reader.integer("num_features", 1, kMaxFeatures, config->key_dim);
  const int64_t order = map == 4 ? reader.integer("order", 1, 2 * config->key_dim - 1, 1) : 0;
  if (map == 5 && config->key_dim > kMaxTaylorDim) {
    reader.fail("key_dim", "got " + std::to_string(config->key_dim) + ", wanted at most " +
                               std::to_string(kMaxTaylorDim) + " with the taylor map");
  }
  if (map == 4 && 2 * config->key_dim * order > kMaxFeatures) {
    reader.fail("order", "got " + std::to_string(2 * config->key_dim * order) +
                             " features, wanted at most " + std::to_string(kMaxFeatures));
  }
  TARN_RETURN_IF_ERROR(reader.finish());
  switch (map) {
    case 0: config->shape_of_map = kernels::elu_plus_one_map(config->key_dim); break;
    case 1: config->shape_of_map = kernels::relu_map(config->key_dim); break;
    case 2: config->shape_of_map = kernels::squared_relu_map(config->key_dim); break;
    case 4: config->shape_of_map = kernels::dpfp_map(config->key_dim, order); break;
    case 5: config->shape_of_map = kernels::taylor_map(config->key_dim); break;
    case 6:
      config->learned = LearnedMap::kT2r;
      config->shape_of_map = kernels::identity_map(num_features);
      break;
    case 7:
    case 8:
      config->learned = map == 7 ? LearnedMap::kHedgehog : LearnedMap::kHedgehogApart;
      config->shape_of_map = kernels::identity_map(2 * config->key_dim);
      break;
    default:
      config->shape_of_map = kernels::favor_map(config->key_dim, num_features, nullptr);
      config->random_features = true;
      config->feature_seed = static_cast<uint64_t>(feature_seed);
  }
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape op_shape(const MixerConfig& base) {
  const Config& config = config_of(&base);
  OpShape shape;
  // Learned features are not negative; with others of any sign a denominator could be anything.
  const auto range =
      config.learned == LearnedMap::kNone ? OpInput::Range::kNormal : OpInput::Range::kUnitInterval;
  shape.inputs = {{"q", config.num_heads, config.operator_dim(), range},
                  {"k", config.num_heads, config.operator_dim(), range},
                  {"v", config.num_heads, config.value_dim, OpInput::Range::kNormal}};
  shape.out_heads = config.num_heads;
  shape.out_dim = config.value_dim;
  shape.saved_per_row = config.num_heads;  // the denominators
  return shape;
}

std::vector<StateSpec> state_specs(const MixerConfig& base) {
  const Config& config = config_of(&base);
  if (!config.causal) return {};
  const int64_t features = config.shape_of_map.feature_dim;
  std::vector<StateSpec> specs{{"s", {config.num_heads, features, config.value_dim}, 0.0f, false}};
  if (config.normalise) specs.push_back({"z", {config.num_heads, features}, 0.0f, false});
  return specs;
}

template <class Args>
StateUpdateProblem problem_of(const Args& args) {
  const Config& config = config_of(args.config);
  StateUpdateProblem problem;
  problem.sequences = args.sequences;
  problem.num_heads = config.num_heads;
  problem.key_dim = config.operator_dim();
  problem.value_dim = config.value_dim;
  problem.feature_map = config.feature_map();
  problem.normalise = config.normalise;
  problem.eps = config.eps;
  problem.chunk_size = args.chunk_size;
  problem.pool = args.pool;
  return problem;
}

template <class T>
StatePointers<T> pointers_of(const StateRefs<T>& state) {
  if (!state) return {};
  return {state.tensors[0], state.tensors.size() > 1 ? state.tensors[1] : nullptr};
}

void recurrent(const OpArgs<double>& args) {
  kernels::reference::state_update(problem_of(args), config_of(args.config).causal, args.inputs[0],
                                   args.inputs[1], args.inputs[2], pointers_of(args.state),
                                   args.out);
}

void chunk(const OpArgs<float>& args) noexcept {
  kernels::causal_forward(problem_of(args), args.inputs[0], args.inputs[1], args.inputs[2],
                          pointers_of(args.state), args.out, args.saved, *args.arena);
}

void chunk_bf16(const OpArgsBf16& args) noexcept {
  kernels::causal_forward_bf16(problem_of(args), args.inputs[0], args.inputs[1], args.inputs[2],
                               pointers_of(args.state), args.out, args.saved, *args.arena);
}

void parallel(const OpArgs<float>& args) noexcept {
  const StateUpdateProblem problem = problem_of(args);
  if (!config_of(args.config).causal) {
    kernels::full_forward(problem, args.inputs[0], args.inputs[1], args.inputs[2], args.out,
                          args.saved, *args.arena);
    return;
  }
  kernels::causal_parallel_forward(problem, args.inputs[0], args.inputs[1], args.inputs[2],
                                   pointers_of(args.state), args.out, args.saved, *args.arena);
}

void step(const OpArgs<float>& args) noexcept {
  kernels::state_update_step(problem_of(args), args.inputs[0], args.inputs[1], args.inputs[2],
                             pointers_of(args.state), args.out, *args.arena);
}

void backward(const OpBackwardArgs& args) noexcept {
  const OpArgs<float>& forward = args.forward;
  const StateUpdateProblem problem = problem_of(forward);
  const kernels::StateUpdateGradients gradients{args.dinputs[0], args.dinputs[1], args.dinputs[2],
                                                pointers_of(args.dinitial)};
  if (!config_of(forward.config).causal) {
    kernels::full_backward(problem, forward.inputs[0], forward.inputs[1], forward.inputs[2],
                           forward.out, forward.saved, args.dout, gradients, *forward.arena);
    return;
  }
  const StatePointers<float> state = pointers_of(forward.state);
  kernels::causal_backward(problem, forward.inputs[0], forward.inputs[1], forward.inputs[2],
                           forward.out, forward.saved, {state.s, state.z}, args.dout,
                           pointers_of(args.dfinal), gradients, *forward.arena);
}

/// Per token and head S is updated and read: 2·F·V each. Backward rebuilds it, builds its gradient,
/// and reads each for two of dq, dk, dv and the row sums: 12·F·V, whatever `causal` is.
double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const Config& config = config_of(&base);
  const double state = static_cast<double>(config.num_heads) *
                       static_cast<double>(config.shape_of_map.feature_dim) *
                       static_cast<double>(config.value_dim);
  if (pass == OpPass::kStep) return 4 * state;
  return (pass == OpPass::kForward ? 4 : 12) * state * static_cast<double>(tokens);
}

LayerProgram layer(const MixerConfig& base) {
  const Config& config = config_of(&base);
  if (config.learned == LearnedMap::kNone) {
    return projected_layer(op_shape(base), state_specs(base), config.model_dim);
  }
  const int64_t keys = config.num_heads * config.key_dim;
  const int64_t values = config.num_heads * config.value_dim;
  LayerBuilder builder(op_shape(base), state_specs(base), config.model_dim);
  const Slice in = builder.linear("in", builder.x(), {keys, keys, values}, {.bias = true});
  const auto map = [&](const char* name, int64_t column) {
    return learned_map(builder, name, config.learned,
                       in.part(column, config.num_heads, config.key_dim), config.operator_dim());
  };
  const Slice q = map("map_q", 0);
  const Slice k = map("map_k", keys);
  const Slice v = in.part(2 * keys, config.num_heads, config.value_dim);
  return builder.finish("out", builder.op({q, k, v}), {.bias = true});
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32})",
          R"({"num_heads": 2, "key_dim": 5, "value_dim": 3})",
          R"({"num_heads": 1, "key_dim": 33, "value_dim": 72})",
          R"({"num_heads": 2, "key_dim": 6, "value_dim": 7, "feature_map": "relu"})",
          R"({"num_heads": 2, "key_dim": 8, "feature_map": "squared_relu"})",
          R"({"num_heads": 2, "key_dim": 6, "feature_map": "favor", "num_features": 10})",
          R"({"num_heads": 2, "key_dim": 5, "feature_map": "dpfp", "order": 3})",
          R"({"num_heads": 1, "key_dim": 6, "value_dim": 5, "feature_map": "taylor"})",
          R"({"num_heads": 2, "key_dim": 5, "feature_map": "t2r", "num_features": 7})",
          R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "feature_map": "hedgehog"})",
          R"({"num_heads": 3, "key_dim": 4, "feature_map": "hedgehog_apart"})",
          R"({"num_heads": 2, "key_dim": 8, "value_dim": 4, "normalise": false})",
          R"({"num_heads": 2, "key_dim": 9, "value_dim": 5, "causal": false})"};
}

}  // namespace

const MixerDef kDef{
    .name = "linear_attention",
    .summary = "causal or full attention with a kernel feature map, O(N) in the sequence length",
    .recurrence = "S += phi(k) (x) v; z += phi(k); o = S^T phi(q) / (phi(q).z + eps)",
    .source = "Katharopoulos 2020, arXiv 2006.16236, eqs. 4-20",
    .state_formula = "4*H*(F*V + F), F = feature dim (K unless favor)",
    .bounded_state = true,
    .read_config = read_config,
    .state_specs = state_specs,
    .op_shape = op_shape,
    .recurrent = recurrent,
    .parallel = parallel,
    .chunk = chunk,
    .step = step,
    .backward = backward,
    .chunk_bf16 = chunk_bf16,
    .flops = flops,
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::linear_attention
