"""Golden files of flash-linear-attention's layers. A layer's own forward runs, in double precision;
the Triton kernels that it calls give way to the package's naive references and plain torch."""

import contextlib
import math
import warnings
from unittest import mock

import torch
from fla.layers.delta_net import DeltaNet
from fla.layers.gla import GatedLinearAttention
from fla.layers.kda import KimiDeltaAttention
from fla.layers.multiscale_retention import MultiScaleRetention
from fla.layers.rwkv7 import RWKV7Attention
from fla.modules import feature_map
from fla.modules.feature_map import (DPFPFeatureMap, HedgehogFeatureMap, T2RFeatureMap,
                                     TaylorFeatureMap)
from fla.modules.norm.layernorm import rms_norm_ref
from fla.modules.rotary.ops import rotary_embedding_ref
from fla.modules.token_shift import token_shift_ref
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.retention.naive import naive_retention
from fla.ops.rwkv7.fused_addcmul import torch_addcmul_rwkv7
from fla.ops.rwkv7.fused_k_update import k_update_ref
from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref
from torch.func import functional_call
from torch.nn import functional

import golden
import matrix_states

SOURCE = f"{golden.version('flash-linear-attention')} in float64, "
ACTIVATIONS = {"silu": functional.silu, "swish": functional.silu, "sigmoid": torch.sigmoid}


class Cache:
    """A layer's states, as the package's layers ask for them; the position is 0."""

    def __init__(self, recurrent_state, conv_state=None):
        self.states = {"recurrent_state": recurrent_state, "conv_state": conv_state}

    def __len__(self):
        return 2  # layers: a first one and another

    def __getitem__(self, layer):
        return self.states

    def get_seq_length(self, layer):
        return 0

    def update(self, layer_idx, recurrent_state, conv_state=None, offset=0):
        self.states = {"recurrent_state": recurrent_state, "conv_state": conv_state}


# Plain torch for kernels that have no reference in the package.


def rms_norm(x, weight, bias, residual, eps, prenorm, residual_in_fp32):
    return rms_norm_ref(x, weight, bias, residual, eps, prenorm)


def rms_norm_gated(x, g, weight, bias, activation, eps, **_):
    return rms_norm_ref(x, weight, bias, eps=eps) * ACTIVATIONS[activation](g)


def causal_conv1d(x, weight, bias, initial_state, activation, **_):
    """The state is [N, D, W]: one input more than the convolution looks back."""
    padded = torch.cat([initial_state, x.transpose(1, 2)], -1)
    total = functional.conv1d(padded[..., 1:], weight.unsqueeze(1), bias, groups=weight.shape[0])
    return ACTIVATIONS[activation](total).transpose(1, 2), padded[..., -weight.shape[1]:]


def l2_norm(x):
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def rotary_embedding(x, cos, sin, interleaved, seqlen_offsets, **_):
    tokens = x.shape[1]
    return rotary_embedding_ref(x, cos[seqlen_offsets:][:tokens], sin[seqlen_offsets:][:tokens],
                                interleaved)


def swap(*tensors):
    return [tensor.transpose(1, 2) for tensor in tensors]


def chunk_retention(q, k, v, initial_state, **_):
    """naive_retention starts from nothing and returns no state: what the initial state adds to the
    output, and the final state, are sums over all tokens."""
    size, tokens = q.shape[-1], q.shape[1]
    log_decay = torch.log1p(-torch.exp2(-5.0 - torch.arange(q.shape[2])))
    o = naive_retention(*swap(q, k, v))
    grown = torch.exp(log_decay[:, None] * (torch.arange(tokens) + 1))[..., None]
    o = o + grown * (swap(q)[0] * size ** -0.5) @ initial_state
    left = torch.exp(log_decay[:, None] * (tokens - 1 - torch.arange(tokens)))[..., None]
    state = grown[:, -1:] * initial_state + (left * swap(k)[0]).transpose(-1, -2) @ swap(v)[0]
    return swap(o)[0], state


def fused_recurrent_gla(q, k, v, gk, initial_state, output_final_state, **_):
    """The layer's state is value first."""
    o, state = naive_recurrent_gla(q, k, v, gk, initial_state.mT, output_final_state)
    return o, state.mT


def fused_recurrent_delta_rule(q, k, v, beta, initial_state, use_qk_l2norm_in_kernel, **_):
    assert use_qk_l2norm_in_kernel
    o, state = delta_rule_recurrence(*swap(l2_norm(q), l2_norm(k), v, beta), initial_state)
    return swap(o)[0], state


def chunk_kda(q, k, v, g, beta, A_log, dt_bias, initial_state, lower_bound, **_):
    """The layer's state is value first."""
    if lower_bound is None:
        g = naive_kda_gate(g, A_log, dt_bias)
    else:
        g = naive_kda_lowerbound_gate(g, A_log, dt_bias, lower_bound)
    o, state = naive_recurrent_kda(l2_norm(q), l2_norm(k), v, g, torch.sigmoid(beta),
                                   initial_state=initial_state.mT, output_final_state=True)
    return o, state.mT


def chunk_rwkv7(r, w, k, v, a, b, scale, initial_state, **_):
    """dplr_recurrence scales by K^-1/2."""
    o, state = dplr_recurrence(*swap(r * scale * r.shape[-1] ** 0.5, k, v, a, b, w), initial_state)
    return swap(o)[0], state


def token_shift(x, cu_seqlens, output_cache, cache):
    shifted = torch.cat([cache.unsqueeze(1), x], 1)
    return token_shift_ref(shifted)[:, 1:], x[:, -1]


REPLACED = {
    "fla.modules.norm.layernorm.rms_norm": rms_norm,
    "fla.modules.norm.fused_norm_gate.rms_norm_gated": rms_norm_gated,
    "fla.modules.causal_conv1d.ops.causal_conv1d": causal_conv1d,
    "fla.modules.rotary.ops.rotary_embedding": rotary_embedding,
    "fla.layers.multiscale_retention.chunk_retention": chunk_retention,
    "fla.layers.gla.fused_recurrent_gla": fused_recurrent_gla,
    "fla.layers.delta_net.fused_recurrent_delta_rule": fused_recurrent_delta_rule,
    "fla.layers.kda.chunk_kda": chunk_kda,
    "fla.layers.rwkv7.chunk_rwkv7": chunk_rwkv7,
    "fla.layers.rwkv7.token_shift": token_shift,
    "fla.layers.rwkv7.fused_addcmul_rwkv7": torch_addcmul_rwkv7,
    "fla.layers.rwkv7.fused_k_rwkv7": k_update_ref,
    "fla.layers.rwkv7.gate_output_correction": gate_output_correction_ref,
}


def run(layer, weights, x, cache, **keywords):
    """The layer's forward with these weights; all of its parameters must be among them."""
    missing = {name for name, _ in layer.named_parameters()} ^ set(weights)
    assert not missing, missing
    with contextlib.ExitStack() as stack:
        for target, replacement in REPLACED.items():
            stack.enter_context(mock.patch(target, replacement))
        return functional_call(layer, weights, (x,), {"past_key_values": cache, "use_cache": True,
                                                      **keywords})


def sizes(c):
    return c["num_heads"], c["key_dim"], c.get("value_dim", c["key_dim"])


def rows(weight, names, counts):
    return {f"{name}.weight": part for name, part in zip(names, weight.split(counts))}


def conv_weights(p, counts):
    names = [f"{letter}_conv1d" for letter in "qkv"]
    return rows(p["conv.weight"].unsqueeze(1), names, counts)


def conv_states(s, counts):
    """[B, W-1, channels of q, k and v] as the layer's three states; their oldest input is idle."""
    return tuple(functional.pad(part.transpose(1, 2), (1, 0), value=math.pi)
                 for part in s["conv"].split(counts, -1))


def joined(states):
    return torch.cat([state[..., 1:].transpose(1, 2) for state in states], -1)


def retention(c, p, x, s):
    h, k, v = sizes(c)
    d = x.shape[-1]
    layer = MultiScaleRetention(hidden_size=d, expand_k=h * k / d, expand_v=h * v / d, num_heads=h,
                                norm_eps=c.get("norm_eps", 1e-5), layer_idx=0)
    layer.rotary.base = float(c.get("rotary_base", 10000))
    weights = rows(p["in.weight"], ("q_proj", "k_proj", "v_proj", "g_proj"),
                   [h * k, h * k, h * v, h * v])
    weights |= {"g_norm_swish_gate.weight": p["norm.weight"], "o_proj.weight": p["out.weight"]}
    cache = Cache(s["s"])
    y, _, _ = run(layer, weights, x, cache)
    return y, {"s": cache.states["recurrent_state"]}


def gated_linear_attention(c, p, x, s):
    h, k, v = sizes(c)
    d = x.shape[-1]
    layer = GatedLinearAttention(
        hidden_size=d, expand_k=h * k / d, expand_v=h * v / d, num_heads=h, layer_idx=0,
        norm_eps=c.get("norm_eps", 1e-5), gate_low_rank_dim=c.get("decay_rank", 16),
        gate_logit_normalizer=c.get("decay_divisor", 16))
    weights = rows(p["in.weight"], ("q_proj", "k_proj", "v_proj", "g_proj", "gk_proj.0"),
                   [h * k, h * k, h * v, h * v, c.get("decay_rank", 16)])
    weights |= {"gk_proj.1.weight": p["decay.weight"], "gk_proj.1.bias": p["decay.bias"],
                "g_norm_swish_gate.weight": p["norm.weight"], "o_proj.weight": p["out.weight"]}
    cache = Cache(s["s"].mT)
    y, _, _ = run(layer, weights, x, cache)
    return y, {"s": cache.states["recurrent_state"].mT}


def delta_rule(c, p, x, s):
    h, k, v = sizes(c)
    d = x.shape[-1]
    layer = DeltaNet(hidden_size=d, expand_k=h * k / d, expand_v=h * v / d, num_heads=h,
                     conv_size=c.get("conv_width", 4), norm_eps=c.get("norm_eps", 1e-5),
                     allow_neg_eigval=c.get("negative_eigenvalues", False), layer_idx=0)
    counts = [h * k, h * k, h * v]
    weights = rows(p["in.weight"], ("q_proj", "k_proj", "v_proj", "b_proj"), counts + [h])
    weights |= conv_weights(p, counts)
    weights |= {"o_norm.weight": p["norm.weight"], "o_proj.weight": p["out.weight"]}
    cache = Cache(s["s"], conv_states(s, counts))
    y, _, _ = run(layer, weights, x, cache)
    return y, {"s": cache.states["recurrent_state"], "conv": joined(cache.states["conv_state"])}


def kimi_delta_attention(c, p, x, s):
    h, k, v = sizes(c)
    bound = c.get("decay_lower_bound")
    layer = KimiDeltaAttention(hidden_size=x.shape[-1], expand_v=v / k, head_dim=k, num_heads=h,
                               conv_size=c.get("conv_width", 4), norm_eps=c.get("norm_eps", 1e-5),
                               safe_gate=bound is not None, lower_bound=bound, layer_idx=0)
    counts = [h * k, h * k, h * v]
    weights = rows(p["in.weight"],
                   ("q_proj", "k_proj", "v_proj", "b_proj", "f_proj.0", "g_proj.0"),
                   counts + [h, v, v])
    weights |= conv_weights(p, counts)
    weights |= {"f_proj.1.weight": p["decay.weight"], "A_log": p["a_log"], "dt_bias": p["dt_bias"],
                "g_proj.1.weight": p["gate.weight"], "g_proj.1.bias": p["gate.bias"],
                "o_norm.weight": p["norm.weight"], "o_proj.weight": p["out.weight"]}
    cache = Cache(s["s"].mT, conv_states(s, counts))
    y, _, _ = run(layer, weights, x, cache)
    return y, {"s": cache.states["recurrent_state"].mT,
               "conv": joined(cache.states["conv_state"])}


def rwkv7(c, p, x, s, value_first=None):
    h, k, _ = sizes(c)
    first = c["value_residual"] == "source"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the layer's own doubts about itself
        layer = RWKV7Attention(
            hidden_size=x.shape[-1], head_dim=k, decay_low_rank_dim=c["decay_rank"],
            gate_low_rank_dim=c["gate_rank"], a_low_rank_dim=c["learning_rate_rank"],
            v_low_rank_dim=c["value_rank"], norm_eps=c.get("norm_eps", 64e-5) / k,
            layer_idx=0 if first else 1, num_hidden_layers=2)
    weights = {f"x_{letter}": mix.view(1, 1, -1) for letter, mix in zip("rwkvag", p["mix"])}
    weights |= {f"{ours}_proj.weight": p[f"{name}.weight"] for ours, name in
                (("r", "receptance"), ("k", "key"), ("v", "value"), ("o", "out"))}
    for letter in "wa" if first else "wav":
        weights |= {f"{letter}_lora.lora.0.weight": p[f"{letter}1"],
                    f"{letter}_lora.lora.2.weight": p[f"{letter}2"],
                    f"{letter}_lora.lora.2.bias": p[f"{letter}0"]}
    weights |= {"g_lora.lora.0.weight": p["g1"], "g_lora.lora.2.weight": p["g2"],
                "k_k": p["k_k"], "k_a": p["k_a"], "r_k": p["r_k"].view(h, k),
                "g_norm.weight": p["norm.weight"], "g_norm.bias": p["norm.bias"]}
    cache = Cache(s["s"], s["shift"])
    y, _, _, value = run(layer, weights, x, cache, v_first=value_first)
    final = {"s": cache.states["recurrent_state"], "shift": cache.states["conv_state"]}
    return y, final | ({"output.value_first": value} if first else {})


def expanded_taylor(k):
    """The package's Taylor features in Tarn's order: it has a product x_i*x_j of two channels once,
    times the root of 2."""
    pairs = torch.triu_indices(k, k, 1)
    place = torch.zeros(1 + 2 * k + pairs.shape[1], k, k)
    place[1 + k + torch.arange(k), torch.arange(k), torch.arange(k)] = 1
    half = 1 + 2 * k + torch.arange(pairs.shape[1])
    place[half, pairs[0], pairs[1]] = place[half, pairs[1], pairs[0]] = 0.5 ** 0.5
    module = TaylorFeatureMap(k)
    outer = feature_map.flatten_diag_outer_product_off1
    # Recomputing checkpoints refuse torch.autograd.grad: the function within.
    feature_map.flatten_diag_outer_product_off1 = getattr(outer, "__wrapped__", outer)
    return lambda rows: torch.cat([(f := module(rows))[..., :1 + k], f @ place.flatten(1)], -1)


def favor_kernel(c, q, k):
    """Lemma 1 of arXiv 2009.14794: the mean over omega of cosh(omega·(q + k)) exp(-(q² + k²)/2)."""
    q, k = (rows * c["key_dim"] ** -0.25 for rows in (q, k))
    both = (q.unsqueeze(-2) + k.unsqueeze(-3)) @ matrix_states.favor_directions(c)
    squares = (q * q).sum(-1).unsqueeze(-1) + (k * k).sum(-1).unsqueeze(-2)
    return torch.cosh(both).mean(-1) * torch.exp(-squares / 2)


def lolcats(weight):
    """LoLCATs' feature map: softmaxes of both signs, no smaller than 1e-12."""
    def phi(rows):
        y = torch.einsum("bhtk,hfk->bhtf", rows, weight)
        return torch.cat([functional.softmax(y, -1), functional.softmax(-y, -1)], -1).clamp(1e-12)
    return phi


def linear_attention(c, p, x, s):
    """Every query against every key at once, under a mask; the package's feature maps."""
    h, k = c["num_heads"], c["key_dim"]
    v = c.get("value_dim", k)
    kind = c.get("feature_map", "elu_plus_one")
    q, key, value = (part.unflatten(-1, (h, -1)).transpose(1, 2) for part in functional.linear(
        x, p["in.weight"], p["in.bias"]).split([h * k, h * k, h * v], -1))
    # The package's DPFP pairs channel m with m - j, Tarn's with m + j: the same, turned by j.
    turned = lambda f: torch.cat([part.roll(-1 - j, -1)
                                  for j, part in enumerate(f.chunk(c["order"], -1))], -1)
    plain = {"elu_plus_one": lambda rows: functional.elu(rows) + 1, "relu": functional.relu,
             "squared_relu": lambda rows: functional.relu(rows).square(),
             "favor": lambda rows: matrix_states.favor(c, rows),
             "taylor": expanded_taylor(k),
             "dpfp": lambda rows: turned(DPFPFeatureMap(k, c["order"])(rows))}
    if kind in plain:
        fq, fk = plain[kind](q), plain[kind](key)
    elif kind == "hedgehog_apart":
        fq, fk = lolcats(p["map_q.weight"])(q), lolcats(p["map_k.weight"])(key)
    else:
        module = T2RFeatureMap(k, c["num_features"]) if kind == "t2r" else HedgehogFeatureMap(k)
        weights = [{n.replace(f"map_{row}.", "layer."): tensor for n, tensor in p.items()
                    if n.startswith(f"map_{row}.")} for row in "qk"]
        fq, fk = functional_call(module, weights[0], q), functional_call(module, weights[1], key)
    scores = favor_kernel(c, q, key) if kind == "favor" else fq @ fk.transpose(-1, -2)
    scores = scores.tril()
    total = scores.sum(-1, keepdim=True) + (fq @ s["z"].unsqueeze(-1)) + 1e-6
    o = (scores @ value + fq @ s["s"]) / total
    y = functional.linear(o.transpose(1, 2).flatten(2), p["out.weight"], p["out.bias"])
    return y, {"s": s["s"] + fk.transpose(-1, -2) @ value, "z": s["z"] + fk.sum(2)}


def main():
    kernels = ", its Triton kernels replaced by "
    layers = SOURCE + "fla/layers/"
    source = (layers + "multiscale_retention.py MultiScaleRetention" + kernels
              + "fla/ops/retention/naive.py naive_retention (positions 0 to T-1, whatever the "
              "initial state; its part of the output is added)")
    golden.write("fla", {"name": "retention", "num_heads": 3, "key_dim": 6, "value_dim": 5}, 16,
                 source, retention)
    golden.write("fla_base", {"name": "retention", "num_heads": 2, "key_dim": 10, "value_dim": 13,
                              "rotary_base": 100, "norm_eps": 0.01}, 13, source, retention)

    source = f"masked products in torch, float64, with {SOURCE}fla/modules/feature_map.py "
    sizes = {"name": "linear_attention", "num_heads": 2, "key_dim": 5, "value_dim": 7}
    golden.write("elu", sizes, 16, "masked products in torch, float64", linear_attention)
    golden.write("t2r", sizes | {"feature_map": "t2r", "num_features": 9}, 15,
                 source + "T2RFeatureMap", linear_attention)
    golden.write("hedgehog", sizes | {"feature_map": "hedgehog"}, 15,
                 source + "HedgehogFeatureMap", linear_attention)
    golden.write("dpfp", sizes | {"feature_map": "dpfp", "order": 2}, 15,
                 source + "DPFPFeatureMap", linear_attention)
    sizes = {"name": "linear_attention", "num_heads": 2, "key_dim": 3, "value_dim": 2}
    golden.write("taylor", sizes | {"feature_map": "taylor"}, 6, source + "TaylorFeatureMap, its "
                 "features of two channels twice", linear_attention, batch=1)
    source = "definition re-expressed: masked products in torch, float64, "
    golden.write("favor", sizes | {"feature_map": "favor", "num_features": 10, "feature_seed": 21},
                 6, source + "of the kernel cosh(omega (q + k)) exp(-(q^2 + k^2)/2), arXiv "
                 "2009.14794, lemma 1", linear_attention, batch=1)
    for kind in ("relu", "squared_relu", "hedgehog_apart"):
        golden.write(kind, sizes | {"feature_map": kind}, 6, source + "of torch's relu and softmax",
                     linear_attention, batch=1, tokens=25)

    source = layers + "gla.py GatedLinearAttention" + kernels + "fla/ops/gla/naive.py " \
        "naive_recurrent_gla"
    golden.write("fla", {"name": "gated_linear_attention", "num_heads": 2, "key_dim": 5,
                         "value_dim": 7, "decay_rank": 3}, 16, source, gated_linear_attention)
    golden.write("fla_divisor", {"name": "gated_linear_attention", "num_heads": 3, "key_dim": 7,
                                 "value_dim": 3, "decay_rank": 4, "decay_divisor": 2,
                                 "norm_eps": 0.01}, 15, source, gated_linear_attention)

    # Small enough for the terms that keep divisions by norms finite to be seen.
    small = {"conv.weight": 2e-3}
    source = layers + "delta_net.py DeltaNet" + kernels + "fla/ops/delta_rule/naive.py " \
        "delta_rule_recurrence"
    sizes_delta = {"name": "delta_rule", "num_heads": 2, "key_dim": 5, "value_dim": 7}
    golden.write("fla", sizes_delta, 16, source, delta_rule)
    golden.write("fla_small", sizes_delta, 12, source, delta_rule, factors=small)
    golden.write("fla_negative", {"name": "delta_rule", "num_heads": 3, "key_dim": 7,
                                  "value_dim": 5, "conv_width": 3, "negative_eigenvalues": True},
                 13, source, delta_rule)

    source = layers + "kda.py KimiDeltaAttention" + kernels + "fla/ops/kda/naive.py " \
        "naive_recurrent_kda and fla/ops/kda/gate.py "
    sizes_kda = {"name": "kimi_delta_attention", "num_heads": 3, "key_dim": 5, "value_dim": 7}
    golden.write("fla", sizes_kda, 16, source + "naive_kda_gate", kimi_delta_attention)
    golden.write("fla_small", sizes_kda | {"num_heads": 2}, 12, source + "naive_kda_gate",
                 kimi_delta_attention, factors=small)
    golden.write("fla_lower_bound", sizes_kda | {"decay_lower_bound": -5, "norm_eps": 0.01}, 14,
                 source + "naive_kda_lowerbound_gate", kimi_delta_attention)

    source = layers + "rwkv7.py RWKV7Attention" + kernels + "fla/ops/generalized_delta_rule/dplr/" \
        "naive.py dplr_recurrence"
    sizes_rwkv = {"name": "rwkv7", "num_heads": 3, "key_dim": 5, "decay_rank": 4,
                  "learning_rate_rank": 3, "value_rank": 2, "gate_rank": 6}
    golden.write("fla_source", sizes_rwkv | {"value_residual": "source"}, 15, source, rwkv7)
    golden.write("fla_mixed", sizes_rwkv | {"value_residual": "mixed"}, 15, source, rwkv7,
                 inputs=("value_first",))


if __name__ == "__main__":
    main()
