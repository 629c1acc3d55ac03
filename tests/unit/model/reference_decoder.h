#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/arena.h"
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "model/config.h"
#include "model/parameters.h"
#include "model/position.h"

namespace tarn::model {

/// The decoder over one sequence in double precision, straight from the definitions; for mixers
/// whose parameters are the four of a projected layer (in.*, out.*).
class ReferenceDecoder {
 public:
  /// `values` are those of the parameter table, in its order.
  ReferenceDecoder(const ModelConfig& config, const std::vector<std::vector<float>>& values)
      : config_(config) {
    const std::vector<mixers::ParamSpec> table = parameter_table(config);
    for (size_t i = 0; i < table.size(); ++i) {
      values_[table[i].name].assign(values[i].begin(), values[i].end());
    }
  }

  /// [tokens, output_dim]
  std::vector<double> run(const std::vector<int32_t>& tokens) const {
    const size_t dim = static_cast<size_t>(config_.model_dim);
    std::vector<double> x;
    for (size_t t = 0; t < tokens.size(); ++t) {
      std::vector<float> sinusoid(dim);
      sinusoidal_row(static_cast<int64_t>(t), config_.model_dim, sinusoid_amplitude(config_),
                     sinusoid.data());
      for (size_t c = 0; c < dim; ++c) {
        double value = at("embedding.token.weight")[static_cast<size_t>(tokens[t]) * dim + c];
        if (config_.position == PositionKind::kLearned) {
          value += at("embedding.position.weight")[t * dim + c];
        }
        if (config_.position == PositionKind::kSinusoidal) value += double{sinusoid[c]};
        for (const int64_t lag : config_.embedding_lags) {
          const auto back = static_cast<size_t>(lag);
          const int64_t input = back <= t ? tokens[t - back] : config_.start_token;
          value += at("embedding.lag_" + std::to_string(lag) +
                      ".weight")[static_cast<size_t>(input) * dim + c];
        }
        x.push_back(value);
      }
    }
    return decode(std::move(x));
  }

  /// The same over frames [rows, input_width].
  std::vector<double> run_frames(const std::vector<float>& frames) const {
    const size_t dim = static_cast<size_t>(config_.model_dim);
    std::vector<double> x = linear("embedding.input", {frames.begin(), frames.end()},
                                   static_cast<size_t>(config_.input_width()));
    for (size_t i = 0; i < x.size() && config_.position == PositionKind::kLearned; ++i) {
      x[i] += at("embedding.position.weight")[i];
    }
    std::vector<float> sinusoid(dim);
    for (size_t row = 0; row < x.size() / dim && config_.position == PositionKind::kSinusoidal;
         ++row) {
      sinusoidal_row(static_cast<int64_t>(row), config_.model_dim, sinusoid_amplitude(config_),
                     sinusoid.data());
      for (size_t c = 0; c < dim; ++c) x[row * dim + c] += double{sinusoid[c]};
    }
    return decode(std::move(x));
  }

 private:
  using Values = std::vector<double>;

  Values decode(Values x) const {
    const size_t dim = static_cast<size_t>(config_.model_dim);
    if (config_.embedding_norm) x = norm("embedding.norm", x);
    const bool pre = config_.placement == NormPlacement::kPre;
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      const std::string name = "layers." + std::to_string(i) + ".";
      x = pre ? sum(x, mixer(i, norm(name + "norm1", x)))
              : norm(name + "norm1", sum(x, mixer(i, x)));
      if (!config_.layers[i].has_mlp()) continue;
      x = pre ? sum(x, mlp(i, norm(name + "norm2", x))) : norm(name + "norm2", sum(x, mlp(i, x)));
    }
    if (config_.final_norm) x = norm("final_norm", x);
    return linear("head", x, dim);
  }

  const Values& at(const std::string& name) const { return values_.at(name); }

  static Values sum(Values a, const Values& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }

  Values norm(const std::string& name, const Values& x) const {
    const size_t dim = static_cast<size_t>(config_.model_dim);
    Values out(x.size());
    for (size_t row = 0; row < x.size(); row += dim) {
      if (config_.norm == NormKind::kLayerNorm) {
        kernels::reference::layer_norm(config_.model_dim, &x[row], at(name + ".weight").data(),
                                       at(name + ".bias").data(), double{config_.norm_eps},
                                       &out[row]);
      } else {
        kernels::reference::rms_norm(config_.model_dim, &x[row], at(name + ".weight").data(),
                                     double{config_.norm_eps}, &out[row]);
      }
    }
    return out;
  }

  Values linear(const std::string& name, const Values& x, size_t in_dim) const {
    const Values& weight = at(name + ".weight");
    const Values& bias = at(name + ".bias");
    Values out;
    for (size_t row = 0; row < x.size(); row += in_dim) {
      for (size_t o = 0; o < bias.size(); ++o) {
        double value = bias[o];
        for (size_t i = 0; i < in_dim; ++i) value += weight[o * in_dim + i] * x[row + i];
        out.push_back(value);
      }
    }
    return out;
  }

  Values mlp(size_t i, const Values& x) const {
    const std::string name = "layers." + std::to_string(i) + ".mlp.";
    const LayerConfig& layer = config_.layers[i];
    Values hidden = linear(name + "up", x, static_cast<size_t>(config_.model_dim));
    for (double& h : hidden) h = kernels::reference::activation(layer.mlp_activation, h);
    return linear(name + "down", hidden, static_cast<size_t>(layer.mlp_hidden_dim));
  }

  Values mixer(size_t i, const Values& x) const {
    const std::string name = "layers." + std::to_string(i) + ".mixer.";
    const LayerConfig& layer = config_.layers[i];
    const mixers::OpShape shape = layer.mixer->op_shape(*layer.mixer_config);
    const int64_t rows = static_cast<int64_t>(x.size()) / config_.model_dim;
    const Values projected = linear(name + "in", x, static_cast<size_t>(config_.model_dim));
    const int64_t width = static_cast<int64_t>(projected.size()) / rows;
    std::vector<kernels::Heads<const double>> inputs;
    int64_t column = 0;
    for (const mixers::OpInput& input : shape.inputs) {
      inputs.push_back({projected.data() + column, width, input.dim});
      column += input.heads * input.dim;
    }
    Values mixed(static_cast<size_t>(rows * shape.out_heads * shape.out_dim));
    const int64_t begin = 0;
    Arena arena;
    mixers::OpArgs<double> args;
    args.config = layer.mixer_config.get();
    args.sequences = {1, &begin, &rows};
    args.inputs = inputs;
    args.out = {mixed.data(), shape.out_heads * shape.out_dim, shape.out_dim};
    args.arena = &arena;
    layer.mixer->recurrent(args);
    return linear(name + "out", mixed, static_cast<size_t>(shape.out_heads * shape.out_dim));
  }

  const ModelConfig& config_;
  std::map<std::string, Values> values_;
};

}  // namespace tarn::model
