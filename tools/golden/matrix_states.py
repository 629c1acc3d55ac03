"""Definitions of the layers that keep a matrix per head, in the writer's own words: plain token
loops over the tensors that Tarn names. They say what Tarn computes; the references say whether that
is what others compute."""

import collections
import math

import numpy
import torch
from torch.nn import functional

from philox import Stream

# tensors(config, model_dim) -> ({parameter: (shape, scale, mean)}, {state: shape or such a triple});
# layer(config, parameters, x, states) -> (y, final states).
Definition = collections.namedtuple("Definition", ("tensors", "layer"))


def matrix(rows, columns):
    return (rows, columns), columns ** -0.5, 0.0


def vector(*shape, scale=0.5, mean=0.0):
    return shape, scale, mean


def norm_weight(size):
    return vector(size, scale=0.2, mean=1.0)


def linear(x, weight, sizes=None):
    """x·Wᵀ, cut into parts of the given sizes."""
    product = x @ weight.T
    return product if sizes is None else product.split(sizes, -1)


def heads(x, count):
    return x.unflatten(-1, (count, -1))


def rms_norm(x, weight, eps):
    return weight * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


def l2_norm(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def short_conv(u, state, weight, bias=0.0):
    """Causal depthwise convolution and SiLU; the state holds the last inputs, oldest first."""
    tokens, width = u.shape[1], weight.shape[1]
    padded = torch.cat([state, u], 1)
    total = bias + sum(padded[:, i:i + tokens] * weight[:, i] for i in range(width))
    return functional.silu(total), padded[:, tokens:]


def recurrence(q, k, v, log_decay, state, beta=None):
    """S ← diag(e^g)·S, then S += k ⊗ v, or k ⊗ β(v − Sᵀk) with beta; o = Sᵀq. log_decay is
    [B, T, H, K or 1], beta [B, T, H]."""
    outputs = []
    for t in range(q.shape[1]):
        state = torch.exp(log_decay[:, t]).unsqueeze(-1) * state
        written = v[:, t]
        if beta is not None:
            read = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            written = beta[:, t].unsqueeze(-1) * (written - read)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], written)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1), state


def head_sizes(c):
    return c["num_heads"], c["key_dim"], c.get("value_dim", c["key_dim"])


# Linear attention


def hedgehog_apart(x, weight):
    y = torch.einsum("bthk,hfk->bthf", x, weight)
    return torch.cat([y.softmax(-1), (-y).softmax(-1)], -1).clamp(min=1e-12)


def dpfp(x, order):
    r = torch.cat([x.clamp(min=0), (-x).clamp(min=0)], -1)
    return torch.cat([r * r.roll(-i, -1) for i in range(1, order + 1)], -1)


def favor_directions(c):
    """omega [K, F/2]: blocks of K columns, each from a stream of its own; column j takes K pairs of
    normals (a_i, g_i) and points to where g is orthogonal to the block's earlier columns, with the
    length of a. An f32."""
    size, columns = c["key_dim"], c["num_features"] // 2
    blocks = []
    for block in range(-(-columns // size)):
        drawn = Stream(c.get("feature_seed", 0), block).normals(size, size, 2)
        lengths = numpy.sqrt((drawn[:, :, 0] ** 2).sum(1))
        directions, triangle = numpy.linalg.qr(drawn[:, :, 1].T)
        blocks.append(directions * numpy.sign(numpy.diag(triangle)) * lengths)
    omega = numpy.concatenate(blocks, 1)[:, :columns]
    return torch.from_numpy(omega.astype(numpy.float32).astype(numpy.float64))


def favor(c, x):
    x = x * c["key_dim"] ** -0.25
    u = torch.einsum("...k,kf->...f", x, favor_directions(c))
    h = (x * x).sum(-1, keepdim=True) / 2
    return torch.cat([torch.exp(u - h), torch.exp(-u - h)], -1) / c["num_features"] ** 0.5


def taylor(x):
    products = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)
    return torch.cat([torch.ones_like(x[..., :1]), x / x.shape[-1] ** 0.25,
                      products / (2 * x.shape[-1]) ** 0.5], -1)


def feature_map(c, p, name):
    """phi of the queries ("map_q") or the keys ("map_k"), a function of rows [B, T, H, K]."""
    kind = c.get("feature_map", "elu_plus_one")
    if kind == "t2r":
        return lambda x: (x @ p[name + ".weight"].T).clamp(min=0)
    if kind == "hedgehog":
        def joint(x):
            y = 2 * (x @ p[name + ".weight"].T + p[name + ".bias"])
            return torch.cat([y, -y], -1).softmax(-1)
        return joint
    if kind == "hedgehog_apart":
        return lambda x: hedgehog_apart(x, p[name + ".weight"])
    if kind == "dpfp":
        return lambda x: dpfp(x, c["order"])
    if kind == "favor":
        return lambda x: favor(c, x)
    if kind == "taylor":
        return taylor
    if kind == "relu":
        return lambda x: torch.where(x > 0, x, 0.0)
    if kind == "squared_relu":
        return lambda x: torch.where(x > 0, x * x, 0.0)
    return lambda x: torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def linear_attention_tensors(c, d):
    h, k, v = head_sizes(c)
    kind = c.get("feature_map", "elu_plus_one")
    features = {"t2r": c.get("num_features", k), "hedgehog": 2 * k, "hedgehog_apart": 2 * k,
                "dpfp": 2 * k * c.get("order", 1), "favor": c.get("num_features"),
                "taylor": 1 + k + k * k}.get(kind, k)
    maps = {"t2r": {"weight": matrix(features, k)},
            "hedgehog": {"weight": matrix(k, k), "bias": vector(k)},
            "hedgehog_apart": {"weight": ((h, k, k), k ** -0.5, 0.0)}}.get(kind, {})
    parameters = {"in.weight": matrix(h * (2 * k + v), d), "in.bias": vector(h * (2 * k + v)),
                  "out.weight": matrix(d, h * v), "out.bias": vector(d)}
    parameters |= {f"map_{row}.{name}": spec for row in "qk" for name, spec in maps.items()}
    # Sums of features are positive: so is what they start from. Taylor's are of any sign.
    scale, mean = (0.05, 0.0) if kind == "taylor" else (0.2, 2.0)
    z = vector(h, features, scale=scale, mean=mean)
    return parameters, {"s": (h, features, v), "z": z}


def linear_attention(c, p, x, s):
    h, k, v = head_sizes(c)
    q, key, value = (heads(part, h) for part in
                     (linear(x, p["in.weight"]) + p["in.bias"]).split([h * k, h * k, h * v], -1))
    fq, fk = feature_map(c, p, "map_q")(q), feature_map(c, p, "map_k")(key)
    state, z, outputs = s["s"], s["z"], []
    for t in range(x.shape[1]):
        state = state + torch.einsum("bhf,bhv->bhfv", fk[:, t], value[:, t])
        z = z + fk[:, t]
        total = (fq[:, t] * z).sum(-1, keepdim=True) + 1e-6
        outputs.append(torch.einsum("bhfv,bhf->bhv", state, fq[:, t]) / total)
    o = torch.stack(outputs, 1).flatten(2)
    return linear(o, p["out.weight"]) + p["out.bias"], {"s": state, "z": z}


# 1. Retention


def retention_tensors(c, d):
    h, k, v = head_sizes(c)
    return ({"in.weight": matrix(2 * h * (k + v), d), "norm.weight": norm_weight(v),
             "out.weight": matrix(d, h * v)}, {"s": (h, k, v)})


def rotate(x, base):
    """Rotary position embedding, the first half of the channels against the second."""
    tokens, half = x.shape[1], x.shape[-1] // 2
    frequency = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(tokens, dtype=torch.float64), frequency).unsqueeze(1)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(),
                      second * angle.cos() + first * angle.sin()], -1)


def retention(c, p, x, s):
    h, k, v = head_sizes(c)
    q, key, value, gate = (heads(part, h) for part in
                           linear(x, p["in.weight"], [h * k, h * k, h * v, h * v]))
    base = c.get("rotary_base", 10000)
    log_decay = torch.tensor([math.log1p(-2.0 ** (-5 - i)) for i in range(h)], dtype=torch.float64)
    log_decay = log_decay[:, None].expand(*x.shape[:2], h, 1)
    o, final = recurrence(rotate(q, base) * k ** -0.5, rotate(key, base), value, log_decay, s["s"])
    o = rms_norm(o, p["norm.weight"], c.get("norm_eps", 1e-5)) * functional.silu(gate)
    return linear(o.flatten(-2), p["out.weight"]), {"s": final}


# 2. Lightning attention


def lightning_attention_tensors(c, d):
    h, k, _ = head_sizes(c)
    return ({"in.weight": matrix(4 * h * k, d), "norm.weight": norm_weight(h * k),
             "out.weight": matrix(d, h * k)}, {"s": (h, k, k)})


def lightning_attention(c, p, x, s):
    h, k, _ = head_sizes(c)
    q, key, value, gate = linear(x, p["in.weight"], [h * k] * 4)
    q, key, value = (heads(functional.silu(part), h) for part in (q, key, value))
    depth = 1 - c["layer_index"] / (c["num_layers"] - 1 + 1e-5) + 1e-5
    slope = torch.tensor([2.0 ** (-8 * (i + 1) / h) * depth for i in range(h)], dtype=torch.float64)
    o, final = recurrence(q, key, value, -slope[:, None].expand(*x.shape[:2], h, 1), s["s"])
    o = rms_norm(o.flatten(-2), p["norm.weight"], c.get("norm_eps", 1e-6)) * torch.sigmoid(gate)
    return linear(o, p["out.weight"]), {"s": final}


# 3. Gated linear attention


def gated_linear_attention_tensors(c, d):
    h, k, v = head_sizes(c)
    rank = c.get("decay_rank", 16)
    return ({"in.weight": matrix(2 * h * (k + v) + rank, d), "decay.weight": matrix(h * k, rank),
             "decay.bias": vector(h * k), "norm.weight": norm_weight(v),
             "out.weight": matrix(d, h * v)}, {"s": (h, k, v)})


def gated_linear_attention(c, p, x, s):
    h, k, v = head_sizes(c)
    *parts, low = linear(x, p["in.weight"],
                         [h * k, h * k, h * v, h * v, c.get("decay_rank", 16)])
    q, key, value, gate = (heads(part, h) for part in parts)
    log_decay = functional.logsigmoid(linear(low, p["decay.weight"]) + p["decay.bias"])
    log_decay = heads(log_decay / c.get("decay_divisor", 16), h)
    o, final = recurrence(q * k ** -0.5, key, value, log_decay, s["s"])
    o = rms_norm(o, p["norm.weight"], c.get("norm_eps", 1e-5)) * functional.silu(gate)
    return linear(o.flatten(-2), p["out.weight"]), {"s": final}


# 4. State space dual


def state_space_dual_tensors(c, d):
    h, n, width = c["num_heads"], c["key_dim"], c.get("conv_width", 4)
    inner = h * c["value_dim"]
    channels = inner + 2 * c.get("num_groups", 1) * n
    return ({"in.weight": matrix(inner + channels + h, d),
             "conv.weight": vector(channels, width), "conv.bias": vector(channels),
             "dt_bias": vector(h), "a_log": vector(h), "d": vector(h),
             "norm.weight": norm_weight(inner), "out.weight": matrix(d, inner)},
            {"s": (h, n, c["value_dim"]), "conv": (width - 1, channels)})


def state_space_dual(c, p, x, s):
    h, n, groups = c["num_heads"], c["key_dim"], c.get("num_groups", 1)
    inner = h * c["value_dim"]
    z, mixed, dt = linear(x, p["in.weight"], [inner, inner + 2 * groups * n, h])
    mixed, conv = short_conv(mixed, s["conv"], p["conv.weight"], p["conv.bias"])
    u, b, read = mixed.split([inner, groups * n, groups * n], -1)
    u = heads(u, h)
    b, read = (heads(part, groups).repeat_interleave(h // groups, 2) for part in (b, read))
    dt = functional.softplus(dt + p["dt_bias"]).clamp(c.get("dt_min", 0), c.get("dt_max", math.inf))
    dt = dt.unsqueeze(-1)
    o, final = recurrence(read, b, dt * u, -dt * torch.exp(p["a_log"]).unsqueeze(-1), s["s"])
    o = (o + p["d"].unsqueeze(-1) * u).flatten(-2) * functional.silu(z)
    o = heads(o, c.get("norm_groups", 1))
    o = rms_norm(o, p["norm.weight"].view(o.shape[-2:]), c.get("norm_eps", 1e-5)).flatten(-2)
    return linear(o, p["out.weight"]), {"s": final, "conv": conv}


# 5. Delta rule


def delta_rule_tensors(c, d):
    h, k, v = head_sizes(c)
    width, channels = c.get("conv_width", 4), h * (2 * k + v)
    return ({"in.weight": matrix(channels + h, d), "conv.weight": vector(channels, width),
             "norm.weight": norm_weight(v), "out.weight": matrix(d, h * v)},
            {"s": (h, k, v), "conv": (width - 1, channels)})


def write_strength(c, beta):
    return torch.sigmoid(beta) * (2 if c.get("negative_eigenvalues") else 1)


def delta_rule(c, p, x, s):
    h, k, v = head_sizes(c)
    mixed, beta = linear(x, p["in.weight"], [h * (2 * k + v), h])
    mixed, conv = short_conv(mixed, s["conv"], p["conv.weight"])
    q, key, value = (heads(part, h) for part in mixed.split([h * k, h * k, h * v], -1))
    o, final = recurrence(l2_norm(q) * k ** -0.5, l2_norm(key), value, torch.zeros_like(q[..., :1]),
                          s["s"], write_strength(c, beta))
    o = rms_norm(o, p["norm.weight"], c.get("norm_eps", 1e-5))
    return linear(o.flatten(-2), p["out.weight"]), {"s": final, "conv": conv}


# 6. Gated delta rule


def gated_delta_rule_sizes(c):
    h, k, v = head_sizes(c)
    return h, c.get("num_key_heads", h), k, v


def gated_delta_rule_tensors(c, d):
    h, shared, k, v = gated_delta_rule_sizes(c)
    width, channels = c.get("conv_width", 4), 2 * shared * k + h * v
    return ({"in.weight": matrix(channels + h * v + 2 * h, d),
             "conv.weight": vector(channels, width), "a_log": vector(h), "dt_bias": vector(h),
             "norm.weight": norm_weight(v), "out.weight": matrix(d, h * v)},
            {"s": (h, k, v), "conv": (width - 1, channels)})


def gated_delta_rule(c, p, x, s):
    h, shared, k, v = gated_delta_rule_sizes(c)
    mixed, gate, beta, decay = linear(x, p["in.weight"], [2 * shared * k + h * v, h * v, h, h])
    mixed, conv = short_conv(mixed, s["conv"], p["conv.weight"])
    q, key, value = mixed.split([shared * k, shared * k, h * v], -1)
    q, key = (l2_norm(heads(part, shared)).repeat_interleave(h // shared, 2) for part in (q, key))
    log_decay = -torch.exp(p["a_log"]) * functional.softplus(decay + p["dt_bias"])
    o, final = recurrence(q * k ** -0.5, key, heads(value, h), log_decay.unsqueeze(-1), s["s"],
                          write_strength(c, beta))
    o = rms_norm(o, p["norm.weight"], c.get("norm_eps", 1e-6)) * functional.silu(heads(gate, h))
    return linear(o.flatten(-2), p["out.weight"]), {"s": final, "conv": conv}


# 7. Kimi delta attention


def kimi_delta_attention_sizes(c):
    h, k, v = head_sizes(c)
    return h, k, v, c.get("decay_rank", v), c.get("gate_rank", v)


def kimi_delta_attention_tensors(c, d):
    h, k, v, decay_rank, gate_rank = kimi_delta_attention_sizes(c)
    width, channels = c.get("conv_width", 4), h * (2 * k + v)
    return ({"in.weight": matrix(channels + h + decay_rank + gate_rank, d),
             "conv.weight": vector(channels, width), "decay.weight": matrix(h * k, decay_rank),
             "a_log": vector(h), "dt_bias": vector(h * k), "gate.weight": matrix(h * v, gate_rank),
             "gate.bias": vector(h * v), "norm.weight": norm_weight(v),
             "out.weight": matrix(d, h * v)},
            {"s": (h, k, v), "conv": (width - 1, channels)})


def kimi_delta_attention(c, p, x, s):
    h, k, v, decay_rank, gate_rank = kimi_delta_attention_sizes(c)
    mixed, beta, decay, gate = linear(x, p["in.weight"],
                                      [h * (2 * k + v), h, decay_rank, gate_rank])
    mixed, conv = short_conv(mixed, s["conv"], p["conv.weight"])
    q, key, value = (heads(part, h) for part in mixed.split([h * k, h * k, h * v], -1))
    decay = heads(linear(decay, p["decay.weight"]) + p["dt_bias"], h)
    rate = torch.exp(p["a_log"]).unsqueeze(-1)
    bound = c.get("decay_lower_bound", 0)
    log_decay = bound * torch.sigmoid(rate * decay) if bound else -rate * functional.softplus(decay)
    o, final = recurrence(l2_norm(q) * k ** -0.5, l2_norm(key), value, log_decay, s["s"],
                          torch.sigmoid(beta))
    gate = heads(linear(gate, p["gate.weight"]) + p["gate.bias"], h)
    o = rms_norm(o, p["norm.weight"], c.get("norm_eps", 1e-5)) * torch.sigmoid(gate)
    return linear(o.flatten(-2), p["out.weight"]), {"s": final, "conv": conv}


# 8. RWKV-7


def rwkv7_tensors(c, d):
    h, k, _ = head_sizes(c)
    low_rank = [("w", "decay_rank"), ("a", "learning_rate_rank")]
    if c["value_residual"] == "mixed":
        low_rank.append(("v", "value_rank"))
    parameters = {"mix": vector(6, d, scale=0.2, mean=0.5)}
    parameters |= {f"{name}.weight": matrix(d, d) for name in ("receptance", "key", "value")}
    for letter, rank in low_rank:
        parameters |= {f"{letter}0": vector(d), f"{letter}1": matrix(c[rank], d),
                       f"{letter}2": matrix(d, c[rank])}
    parameters |= {"g1": matrix(c["gate_rank"], d), "g2": matrix(d, c["gate_rank"]),
                   "k_k": vector(d, mean=1.0), "k_a": vector(d, mean=1.0), "r_k": vector(d),
                   "norm.weight": norm_weight(d), "norm.bias": vector(d),
                   "out.weight": matrix(d, d)}
    return parameters, {"s": (h, k, k), "shift": (d,)}


def rwkv7(c, p, x, s, value_first=None):
    h = c["num_heads"]
    before = torch.cat([s["shift"].unsqueeze(1), x[:, :-1]], 1)
    xr, xw, xk, xv, xa, xg = (x + m * (before - x) for m in p["mix"])
    r, k, v = (linear(u, p[f"{name}.weight"])
               for u, name in ((xr, "receptance"), (xk, "key"), (xv, "value")))
    low = linear(torch.tanh(linear(xw, p["w1"])), p["w2"])
    log_decay = -math.exp(-0.5) * torch.sigmoid(p["w0"] + low)
    a = torch.sigmoid(p["a0"] + linear(linear(xa, p["a1"]), p["a2"]))
    gate = linear(torch.sigmoid(linear(xg, p["g1"])), p["g2"])
    final = {}
    if c["value_residual"] == "mixed":
        share = torch.sigmoid(p["v0"] + linear(linear(xv, p["v1"]), p["v2"]))
        v = v + (value_first - v) * share
    else:
        final["output.value_first"] = v
    removed = heads(k * p["k_k"], h)
    removed = removed / removed.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    k = k * (1 + (a - 1) * p["k_a"])
    r, k, v, a, log_decay = (heads(part, h) for part in (r, k, v, a, log_decay))
    state, outputs = s["s"], []
    for t in range(x.shape[1]):
        read = torch.einsum("bhkv,bhk->bhv", state, removed[:, t])
        state = (torch.exp(log_decay[:, t]).unsqueeze(-1) * state
                 - torch.einsum("bhk,bhv->bhkv", removed[:, t] * a[:, t], read)
                 + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t]))
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, r[:, t]))
    o = torch.stack(outputs, 1)
    o = o - o.mean(-1, keepdim=True)
    o = o * torch.rsqrt((o * o).mean(-1, keepdim=True) + c.get("norm_eps", 64e-5))
    o = o.flatten(-2) * p["norm.weight"] + p["norm.bias"]
    bonus = (r * k * heads(p["r_k"], h)).sum(-1, keepdim=True) * v
    y = linear((o + bonus.flatten(-2)) * gate, p["out.weight"])
    return y, final | {"s": state, "shift": x[:, -1]}


DEFINITIONS = {
    "linear_attention": Definition(linear_attention_tensors, linear_attention),
    "retention": Definition(retention_tensors, retention),
    "lightning_attention": Definition(lightning_attention_tensors, lightning_attention),
    "gated_linear_attention": Definition(gated_linear_attention_tensors, gated_linear_attention),
    "state_space_dual": Definition(state_space_dual_tensors, state_space_dual),
    "delta_rule": Definition(delta_rule_tensors, delta_rule),
    "gated_delta_rule": Definition(gated_delta_rule_tensors, gated_delta_rule),
    "kimi_delta_attention": Definition(kimi_delta_attention_tensors, kimi_delta_attention),
    "rwkv7": Definition(rwkv7_tensors, rwkv7),
}
