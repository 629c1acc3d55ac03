"""Definitions of attention over some of the keys or what was made of them, as matrix_states.py: one
query at a time."""

import functools

import torch

from matrix_states import Definition, matrix, head_sizes, heads, linear, vector
from philox import Stream


@functools.cache
def drawn_blocks(seed, head, block, candidates, count):
    """Floyd's sample of `count` of the candidates."""
    stream, members = Stream(seed, head << 40 | block), set()
    for last in range(max(0, len(candidates) - count), len(candidates)):
        drawn = stream.below(last + 1)
        members.add(last if drawn in members else drawn)
    return sorted(candidates[m] for m in members)


def random_blocks(c, head, block, tokens):
    """The random blocks of a block of queries that is not global itself."""
    size, causal = c["block_size"], c.get("causal", True)
    end = block + 1 if causal else -(-tokens // size)
    left = tuple(b for b in range(c.get("global_blocks", 1), end) if not in_window(c, block, b))
    return drawn_blocks(c.get("seed", 0), head, block, left, c.get("random_blocks", 2))


def in_window(c, block, other):
    width = c.get("window_blocks", 3)
    return abs(block - other) <= (width - 1 if c.get("causal", True) else width // 2)


def visible(c, query, key, head, tokens):
    """Whether `query` sees `key`, by their positions."""
    if key > query and c.get("causal", True):
        return False
    if c["name"] == "block_sparse_attention":
        block, other = query // c["block_size"], key // c["block_size"]
        return (min(block, other) < c.get("global_blocks", 1) or in_window(c, block, other)
                or other in random_blocks(c, head, block, tokens))
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
    tokens = x.shape[1]
    for t in range(tokens):
        out = []
        for h in range(q.shape[2]):
            seen = [j for j in range(tokens) if visible(c, t, j, h, tokens)]
            out.append(attend(c, q[:, t, h], key[:, seen, h // group], value[:, seen, h // group]))
        rows.append(torch.cat(out, -1))
    return linear(torch.stack(rows, 1), p["out.weight"]) + p["out.bias"], {}


def attend(c, q, keys, values):
    """One query [B, K] over keys [B, N, K] and values [B, N, V]."""
    scores = (keys * q.unsqueeze(1)).sum(-1) * c.get("scale", q.shape[-1] ** -0.5)
    weights = torch.exp(scores - scores.max(-1, keepdim=True).values)
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights.unsqueeze(-1) * values).sum(1)


# Attention within hash buckets


def lsh_tensors(c, d):
    h, k, v = head_sizes(c)
    return {"in.weight": matrix(h * (k + v), d), "in.bias": vector(h * (k + v)),
            "out.weight": matrix(d, h * v), "out.bias": vector(d)}, {}


def rotations(c):
    """[rounds, K, num_buckets/2], the same for all heads."""
    return torch.stack([
        torch.from_numpy(Stream(c.get("seed", 0), r).normals(c["key_dim"], c["num_buckets"] // 2))
        for r in range(c.get("rounds", 1))])


def projections(c, q):
    """[q·R, -q·R] [B, T, H, rounds, num_buckets], whose largest entry names the bucket."""
    projected = torch.einsum("bthk,rkn->bthrn", q.detach(), rotations(c))
    return torch.cat([projected, -projected], -1)


def lsh_rows(c, p, x):
    h, k, v = head_sizes(c)
    q, value = (linear(x, p["in.weight"]) + p["in.bias"]).split([h * k, h * v], -1)
    return heads(q, h), heads(value, h)


def found(buckets, t, chunk):
    """The latest `chunk` earlier tokens in the bucket of token t."""
    return [j for j in range(t) if buckets[j] == buckets[t]][-chunk:]


def lsh_layer(c, p, x, _):
    q, value = lsh_rows(c, p, x)
    buckets = projections(c, q).argmax(-1)
    keys = q / q.norm(dim=-1, keepdim=True)
    outputs = []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            for h in range(q.shape[2]):
                seen = [j for r in range(buckets.shape[-1])
                        for j in found(buckets[b, :, h, r].tolist(), t, c["chunk"])]
                outputs.append(value[b, t, h] if not seen else attend(
                    c, q[b, None, t, h], keys[b, None, seen, h], value[b, None, seen, h])[0])
    o = torch.stack(outputs).unflatten(0, value.shape[:3]).flatten(2)
    return linear(o, p["out.weight"]) + p["out.bias"], {}


# Attention to a window and a memory of compressed blocks


def compressive_tensors(c, d):
    h, k, v = head_sizes(c)
    groups, block = c.get("num_kv_heads", h), c["compression"]
    parameters, _ = tensors(c, d)
    if c.get("pooling") == "convolution":
        parameters |= {"compress_k.weight": vector(groups, block, k),
                       "compress_v.weight": vector(groups, block, v)}
    slots = c["memory"] + c["window"] + block
    return parameters, {"k": (slots, groups, k), "v": (slots, groups, v)}


def pooled(c, weight, block):
    """An entry [B, Hkv, C] of a block's rows [B, c, Hkv, C]."""
    if weight is not None:
        return (block * weight.transpose(0, 1)).sum(1)
    return block.amax(1) if c.get("pooling") == "max" else block.sum(1) / block.shape[1]


def compressive_layer(c, p, x, s):
    q, *inputs = projected(c, p, x)
    block, memory, ring = c["compression"], c["memory"], c["window"] + c["compression"]
    group = q.shape[2] // inputs[0].shape[2]
    slots = [list(s[name].unbind(1)) for name in "kv"]
    weights = [p.get(f"compress_{name}.weight") for name in "kv"]
    compressed, rows = 0, []
    for t in range(x.shape[1]):
        for rows_in, held, weight in zip(inputs, slots, weights):
            held[memory + t % ring] = rows_in[:, t]
            if (t + 1 - c["window"]) // block > compressed:
                tokens = range(compressed * block, (compressed + 1) * block)
                held[compressed % memory] = pooled(
                    c, weight, torch.stack([held[memory + j % ring] for j in tokens], 1))
        compressed = max(compressed, (t + 1 - c["window"]) // block)
        seen = [b % memory for b in range(max(0, compressed - memory), compressed)]
        seen += [memory + j % ring for j in range(compressed * block, t + 1)]
        keys, values = (torch.stack([held[slot] for slot in seen], 1) for held in slots)
        read = [attend(c, q[:, t, h], keys[:, :, h // group], values[:, :, h // group])
                for h in range(q.shape[2])]
        rows.append(torch.cat(read, -1))
    y = linear(torch.stack(rows, 1), p["out.weight"]) + p["out.bias"]
    return y, {name: torch.stack(held, 1) for name, held in zip("kv", slots)}


# Latents that gather the tokens


def latent_tensors(c, d):
    h, k, v = head_sizes(c)
    latents = c["num_latents"]
    parameters, _ = tensors(c, d)
    parameters["latents"] = (h, latents, k), 1.0, 0.0
    states = {"log_sum": vector(h, latents, scale=0.7, mean=0.5), "k": (h, latents, k),
              "v": (h, latents, v)}
    return parameters, states if c.get("causal", True) else {}


def latent_layer(c, p, x, s):
    """The recurrence; without `causal` a pass that writes, then one that reads."""
    q, key, value = projected(c, p, x)
    scale, causal = c.get("scale", c["key_dim"] ** -0.5), c.get("causal", True)
    shape = x.shape[0], *p["latents"].shape[:2]
    log_sum = s["log_sum"] if causal else x.new_full(shape, -1e30)
    k = s["k"] if causal else x.new_zeros(*shape, key.shape[-1])
    v = s["v"] if causal else x.new_zeros(*shape, value.shape[-1])
    states, rows = [], []
    for t in range(x.shape[1]):
        score = scale * (p["latents"] * key[:, t, :, None]).sum(-1)
        log_sum = torch.logaddexp(log_sum, score)
        share = torch.exp(score - log_sum).unsqueeze(-1)
        k = k + share * (key[:, t, :, None] - k)
        v = v + share * (value[:, t, :, None] - v)
        states.append((k, v))
    for t in range(x.shape[1]):
        k_t, v_t = states[t if causal else -1]
        read = torch.softmax(scale * (q[:, t, :, None] * k_t).sum(-1), -1)
        rows.append((read.unsqueeze(-1) * v_t).sum(2).flatten(1))
    y = linear(torch.stack(rows, 1), p["out.weight"]) + p["out.bias"]
    return y, {"log_sum": log_sum, "k": k, "v": v} if causal else {}


DEFINITIONS = {name: Definition(tensors, layer) for name in
               ("softmax_attention", "sliding_window_attention", "strided_sparse_attention",
                "block_sparse_attention")}
DEFINITIONS |= {"lsh_attention": Definition(lsh_tensors, lsh_layer),
                "compressive_attention": Definition(compressive_tensors, compressive_layer),
                "latent_attention": Definition(latent_tensors, latent_layer)}
