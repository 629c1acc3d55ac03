"""Definitions of softmax attention over some of the keys, as matrix_states.py: one query at a time."""

import torch

from matrix_states import Definition, matrix, head_sizes, heads, linear, vector


def visible(c, query, key):
    """Whether `query` sees `key`, by their positions."""
    if key > query:
        return False
    distance = query - key
    if c["name"] == "sliding_window_attention":
        return key < c.get("sinks", 0) or distance < c["window"]
    if c["name"] == "strided_sparse_attention":
        stride = c["stride"]
        if c.get("pattern") == "fixed":
            return key // stride == query // stride or key % stride >= stride - c.get("columns", 1)
        return distance < stride or distance % stride == 0
    return True


def rotated(x, size, base):
    """The first `size` channels of each head turned by angles that grow with the position; channel i
    goes with i + size/2. Rows [B, T, H, K]."""
    if size == 0:
        return x
    half = size // 2
    rates = torch.tensor([float(base) ** (-2.0 * i / size) for i in range(half)], dtype=x.dtype)
    angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * rates
    a, b, rest = x[..., :half], x[..., half:size], x[..., size:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos(),
                      rest], -1)


def projected(c, p, x):
    """q [B, T, H, K], k [B, T, Hkv, K], v, q and k rotated."""
    h, k, v = head_sizes(c)
    groups = c.get("num_kv_heads", h)
    parts = (linear(x, p["in.weight"]) + p["in.bias"]).split([h * k, groups * k, groups * v], -1)
    size, base = c.get("rotary_dim", 0), c.get("rotary_base", 10000)
    q, key = (rotated(heads(part, n), size, base) for part, n in zip(parts, (h, groups)))
    return q, key, heads(parts[2], groups)


def tensors(c, d):
    h, k, v = head_sizes(c)
    groups = c.get("num_kv_heads", h)
    width = h * k + groups * (k + v)
    return {"in.weight": matrix(width, d), "in.bias": vector(width),
            "out.weight": matrix(d, h * v), "out.bias": vector(d)}, {}


def layer(c, p, x, _):
    q, key, value = projected(c, p, x)
    group = q.shape[2] // key.shape[2]
    rows = []
    for t in range(x.shape[1]):
        seen = [j for j in range(t + 1) if visible(c, t, j)]
        out = []
        for h in range(q.shape[2]):
            scores = (key[:, seen, h // group] * q[:, t, None, h]).sum(-1) / q.shape[-1] ** 0.5
            weights = torch.exp(scores - scores.max(-1, keepdim=True).values)
            weights = weights / weights.sum(-1, keepdim=True)
            out.append((weights.unsqueeze(-1) * value[:, seen, h // group]).sum(1))
        rows.append(torch.cat(out, -1))
    return linear(torch.stack(rows, 1), p["out.weight"]) + p["out.bias"], {}


DEFINITIONS = {name: Definition(tensors, layer) for name in
               ("softmax_attention", "sliding_window_attention", "strided_sparse_attention")}
