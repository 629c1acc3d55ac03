"""Golden files of transformers' layers: their PyTorch paths, in double precision."""

import sys

# transformers would call this package's Triton kernels in place of its own PyTorch functions, so it
# must be hidden before the imports below.
sys.modules["fla"] = None

import torch
from torch.func import functional_call
from transformers import logging
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.mamba.configuration_mamba import MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.minimax.configuration_minimax import MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.olmo_hybrid.configuration_olmo_hybrid import OlmoHybridConfig
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

import golden

SOURCE = f"{golden.version('transformers')} in float64, models/"


class Cache:
    """One layer's states, as transformers' layers ask for them."""

    def __init__(self, recurrent=None, conv=None):
        self.recurrent = recurrent
        self.conv = conv  # [B, channels, W-1]

    def get_recurrent_state(self, layer_idx, state_idx):
        return self.recurrent

    def update_recurrent_state(self, state, layer_idx):
        self.recurrent = state

    def get_conv_state(self, layer_idx, state_idx):
        return self.conv

    def update_conv_state(self, inputs, layer_idx, conv_kernel_size):
        padded = torch.cat([self.conv, inputs], -1)
        self.conv = padded[..., 1 - conv_kernel_size:]
        return padded

    def is_recording_past(self, layer_idx):
        return False

    def get_linear_cache(self, layer_idx):
        return self.recurrent

    def set_linear_cache(self, layer_idx, state):
        self.recurrent = state


def run(layer, weights, x, cache, **keywords):
    """The layer's forward with these weights; all of its parameters must be among them."""
    missing = {name for name, _ in layer.named_parameters()} ^ set(weights)
    assert not missing, missing
    result = functional_call(layer, weights, (x,), {"cache": cache, **keywords})
    return result[0] if isinstance(result, tuple) else result


def rows(weight, names, counts):
    return {f"{name}.weight": part for name, part in zip(names, weight.split(counts))}


def states(cache, recurrent):
    return {"s": recurrent, "conv": cache.conv.transpose(1, 2)}


def delta_config(kind, c, model_dim, heads, **others):
    return kind(
        hidden_size=model_dim, num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"], linear_num_value_heads=c["num_heads"],
        linear_num_key_heads=heads, linear_key_head_dim=c["key_dim"],
        linear_value_head_dim=c["value_dim"], linear_conv_kernel_dim=c.get("conv_width", 4),
        hidden_act="silu", **others)


def interleave(parts, groups):
    """Rows of the parts, group by group: those of each part that belong to the group, in turn."""
    return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 1)


def qwen3_next(c, p, x, s):
    h, shared, k, v = c["num_heads"], c["num_key_heads"], c["key_dim"], c["value_dim"]
    config = delta_config(Qwen3NextConfig, c, x.shape[-1], shared,
                          rms_norm_eps=c.get("norm_eps", 1e-6))
    layer = Qwen3NextGatedDeltaNet(config, 0)
    q, key, value, gate, beta, decay = p["in.weight"].split(
        [shared * k, shared * k, h * v, h * v, h, h])
    weights = {"in_proj_qkvz.weight": interleave((q, key, value, gate), shared),
               "in_proj_ba.weight": interleave((beta, decay), shared),
               "conv1d.weight": p["conv.weight"].unsqueeze(1), "A_log": p["a_log"],
               "dt_bias": p["dt_bias"], "norm.weight": p["norm.weight"],
               "out_proj.weight": p["out.weight"]}
    cache = Cache(s["s"], s["conv"].transpose(1, 2))
    y = run(layer, weights, x, cache)
    return y, states(cache, cache.recurrent)


def olmo_hybrid(c, p, x, s):
    h, k, v = c["num_heads"], c["key_dim"], c["value_dim"]
    assert c["norm_eps"] == 1e-5, "the layer fixes it"
    config = delta_config(OlmoHybridConfig, c, x.shape[-1], h,
                          linear_allow_neg_eigval=c["negative_eigenvalues"])
    layer = OlmoHybridGatedDeltaNet(config, 0)
    weights = rows(p["in.weight"], ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj"),
                   [h * k, h * k, h * v, h * v, h, h])
    weights |= {"conv1d.weight": p["conv.weight"].unsqueeze(1), "A_log": p["a_log"],
                "dt_bias": p["dt_bias"], "o_norm.weight": p["norm.weight"],
                "o_proj.weight": p["out.weight"]}
    cache = Cache(s["s"], s["conv"].transpose(1, 2))
    y = run(layer, weights, x, cache)
    return y, states(cache, cache.recurrent)


def kimi_linear(c, p, x, s):
    """The layer has no bias in its output gate: gate.bias is added to what its projection makes."""
    h, k = c["num_heads"], c["key_dim"]
    config = KimiLinearConfig(
        hidden_size=x.shape[-1], num_hidden_layers=1, layer_types=["linear_attention"],
        linear_num_heads=h, linear_head_dim=k, linear_conv_kernel_dim=c.get("conv_width", 4),
        rms_norm_eps=c.get("norm_eps", 1e-5))
    layer = KimiLinearDeltaAttention(config, 0)
    layer.g_b_proj.bias = torch.nn.Parameter(torch.zeros(h * k))
    weights = rows(p["in.weight"], ("q_proj", "k_proj", "v_proj", "b_proj", "forget_gate.f_a_proj",
                                    "g_a_proj"), [h * k, h * k, h * k, h, k, k])
    weights |= {"conv1d.weight": p["conv.weight"].unsqueeze(1),
                "forget_gate.f_b_proj.weight": p["decay.weight"],
                "forget_gate.A_log": p["a_log"].view(1, 1, h, 1),
                "forget_gate.dt_bias": p["dt_bias"], "g_b_proj.weight": p["gate.weight"],
                "g_b_proj.bias": p["gate.bias"], "o_norm.weight": p["norm.weight"],
                "o_proj.weight": p["out.weight"]}
    cache = Cache(s["s"], s["conv"].transpose(1, 2))
    y = run(layer, weights, x, cache)
    return y, states(cache, cache.recurrent)


def mamba2(c, p, x, s):
    h, n, width = c["num_heads"], c["key_dim"], c["value_dim"]
    groups = c.get("num_groups", 1)
    config = Mamba2Config(
        hidden_size=x.shape[-1], num_heads=h, head_dim=width, expand=h * width // x.shape[-1],
        state_size=n, n_groups=groups, conv_kernel=c.get("conv_width", 4), use_conv_bias=True,
        use_bias=False, chunk_size=16, layer_norm_epsilon=c.get("norm_eps", 1e-5),
        time_step_limit=(c.get("dt_min", 0.0), c.get("dt_max", float("inf"))), num_hidden_layers=1)
    layer = Mamba2Mixer(config, 0)
    layer.norm.group_size = h * width // c.get("norm_groups", 1)
    weights = {"in_proj.weight": p["in.weight"], "conv1d.weight": p["conv.weight"].unsqueeze(1),
               "conv1d.bias": p["conv.bias"], "dt_bias": p["dt_bias"], "A_log": p["a_log"],
               "D": p["d"], "norm.weight": p["norm.weight"], "out_proj.weight": p["out.weight"]}
    cache = Cache(s["s"].mT, s["conv"].transpose(1, 2))
    y = run(layer, weights, x, cache)
    return y, states(cache, cache.recurrent.mT)


def mamba(c, p, x, s):
    """Whole sequences start from zeros there, so tokens go one by one."""
    config = MambaConfig(
        hidden_size=x.shape[-1], state_size=c["state_dim"], time_step_rank=c["dt_rank"],
        conv_kernel=c.get("conv_width", 4), use_conv_bias=True, use_bias=False, num_hidden_layers=1)
    config.intermediate_size = c["inner_dim"]
    layer = MambaMixer(config, 0)
    weights = {"in_proj.weight": p["in.weight"], "conv1d.weight": p["conv.weight"].unsqueeze(1),
               "conv1d.bias": p["conv.bias"], "x_proj.weight": p["x_proj.weight"],
               "dt_proj.weight": p["dt_proj.weight"], "dt_proj.bias": p["dt_proj.bias"],
               "A_log": p["a_log"], "D": p["d"], "out_proj.weight": p["out.weight"]}
    cache = Cache(s["s"].clone(), s["conv"].transpose(1, 2).clone())  # overwritten by each token
    y = torch.cat([run(layer, weights, token, cache) for token in x.split(1, 1)], 1)
    whole = Cache(None, torch.zeros_like(cache.conv))
    alone = Cache(torch.zeros_like(s["s"]), torch.zeros_like(cache.conv))
    with torch.no_grad():
        tokens = [run(layer, weights, token, alone) for token in x.split(1, 1)]
        golden.check_equal(torch.cat(tokens, 1), run(layer, weights, x, whole), "whole sequence")
        golden.check_equal(alone.recurrent, whole.recurrent, "state of the whole sequence")
    return y, states(cache, cache.recurrent)


def minimax(c, p, x, s):
    """Whole sequences start from zeros there; with a state the layer goes token by token."""
    h, k = c["num_heads"], c["key_dim"]
    config = MiniMaxConfig(
        hidden_size=x.shape[-1], num_attention_heads=h, num_key_value_heads=h, head_dim=2,
        num_hidden_layers=c["num_layers"], block_size=16, hidden_act="silu",
        layer_types=["linear_attention"] * c["num_layers"])
    config.head_dim = k  # odd: refused above for the sake of rotary layers
    layer = MiniMaxLightningAttention(config, c["layer_index"])
    layer.norm.variance_epsilon = c.get("norm_eps", 1e-6)
    *qkv, gate = p["in.weight"].split(h * k)
    weights = {"qkv_proj.weight": interleave(qkv, h), "output_gate.weight": gate,
               "norm.weight": p["norm.weight"], "out_proj.weight": p["out.weight"]}
    others = {"position_embeddings": None, "attention_mask": None}
    cache, whole, alone = Cache(s["s"]), Cache(), Cache(torch.zeros_like(s["s"]))
    y = run(layer, weights, x, cache, **others)
    with torch.no_grad():
        golden.check_equal(run(layer, weights, x, alone, **others),
                           run(layer, weights, x, whole, **others), "whole sequence")
        golden.check_equal(alone.recurrent, whole.recurrent, "state of the whole sequence")
    return y, {"s": cache.recurrent}


def main():
    logging.set_verbosity_error()
    gated = {"name": "gated_delta_rule", "num_heads": 4, "key_dim": 5, "value_dim": 7}
    source = SOURCE + "qwen3_next/modeling_qwen3_next.py Qwen3NextGatedDeltaNet"
    golden.write("qwen3_next", gated | {"num_key_heads": 2}, 16, source, qwen3_next)
    # Small enough for the terms that keep divisions by norms finite to be seen.
    golden.write("qwen3_next_small", gated | {"num_heads": 2, "num_key_heads": 1}, 12, source,
                 qwen3_next, factors={"conv.weight": 2e-3})
    golden.write("olmo_hybrid", gated | {"num_heads": 3, "conv_width": 3, "norm_eps": 1e-5,
                                         "negative_eigenvalues": True}, 14, SOURCE +
                 "olmo_hybrid/modeling_olmo_hybrid.py OlmoHybridGatedDeltaNet", olmo_hybrid)
    golden.write("kimi_linear", {"name": "kimi_delta_attention", "num_heads": 2, "key_dim": 7}, 13,
                 SOURCE + "kimi_linear/modeling_kimi_linear.py KimiLinearDeltaAttention, with a "
                 "bias added to g_b_proj", kimi_linear)
    dual = {"name": "state_space_dual", "num_heads": 4, "key_dim": 5, "value_dim": 7}
    source = SOURCE + "mamba2/modeling_mamba2.py Mamba2Mixer"
    golden.write("mamba2", dual, 14, source, mamba2)
    golden.write("mamba2_groups", dual | {"num_groups": 2, "norm_groups": 2, "dt_min": 0.4,
                                          "dt_max": 1.1, "conv_width": 3,
                                          "norm_eps": 0.01}, 14, source, mamba2)
    golden.write("mamba2_one_norm", dual | {"num_heads": 6, "value_dim": 5, "num_groups": 2,
                                            "norm_eps": 1e-4}, 15,
                 source + " with norm.group_size set to the whole width", mamba2)
    golden.write("mamba", {"name": "selective_scan", "inner_dim": 22, "state_dim": 5, "dt_rank": 3},
                 13, SOURCE + "mamba/modeling_mamba.py MambaMixer, token by token (whole sequences "
                 "from zero states agree)", mamba)
    source = (SOURCE + "minimax/modeling_minimax.py MiniMaxLightningAttention, token by token "
              "(blocks of 16 from a zero state agree)")
    lightning = {"name": "lightning_attention", "num_heads": 3, "key_dim": 5, "num_layers": 4}
    golden.write("minimax_first", lightning | {"layer_index": 0}, 16, source, minimax)
    golden.write("minimax_middle", lightning | {"num_heads": 4, "key_dim": 3, "layer_index": 2,
                                                "norm_eps": 0.01}, 13, source, minimax)


if __name__ == "__main__":
    main()
