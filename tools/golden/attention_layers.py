"""Golden files of attention: torch's scaled_dot_product_attention under masks, and the attention of
transformers' Reformer, BigBird and Perceiver where it coincides with Tarn's. Every reference says
when it does."""

import functools
import sys
from unittest import mock

# transformers would call this package's kernels in place of its own functions.
sys.modules["fla"] = None

import torch
from torch.func import functional_call
from torch.nn import functional
from transformers.models.big_bird.configuration_big_bird import BigBirdConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
from transformers.models.perceiver.configuration_perceiver import PerceiverConfig
from transformers.models.perceiver.modeling_perceiver import PerceiverSelfAttention
from transformers.models.reformer.configuration_reformer import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

import attention
import golden
from matrix_states import head_sizes

TRANSFORMERS = f"{golden.version('transformers')} in float64, models/"
MASKED = (f"{golden.version('torch')}, torch.nn.functional.scaled_dot_product_attention in float64 "
          "under the mask of the definition")
REEXPRESSED = f"definition re-expressed in {golden.version('torch')}, float64: "


def finished(p, o):
    """The output projection of heads [B, H, T, V]."""
    return functional.linear(o.transpose(1, 2).flatten(2), p["out.weight"], p["out.bias"])


def masked_attention(c, p, x, _):
    """Every query against every key under the mask of the visible ones."""
    q, key, value = (rows.transpose(1, 2) for rows in attention.projected(c, p, x))
    tokens = x.shape[1]
    mask = torch.tensor([[[attention.visible(c, t, j, h, tokens) for j in range(tokens)]
                          for t in range(tokens)] for h in range(q.shape[1])])
    o = functional.scaled_dot_product_attention(q, key, value, attn_mask=mask, enable_gqa=True,
                                                scale=c.get("scale"))
    return finished(p, o), {}


def big_bird(c, p, x, _):
    """BigBird's layer has its first and its last block as global ones, a window of three blocks and
    random blocks of its own. It is Tarn's with two global blocks when block 1 goes to its end
    (nothing but the window knows an order, and block 1 sees all and is seen by all without it) and
    its random blocks are Tarn's."""
    size, tokens = c["block_size"], x.shape[1]
    count = tokens // size
    assert tokens % size == 0 and c["global_blocks"] == 2 and c["window_blocks"] == 3
    order = [0, *range(2, count), 1]
    layer = BigBirdBlockSparseAttention(BigBirdConfig(
        hidden_size=x.shape[-1], num_attention_heads=c["num_heads"], block_size=size,
        num_random_blocks=c["random_blocks"], use_bias=True))
    drawn = [[[order.index(b) for b in attention.random_blocks(c, h, block, tokens)]
              for block in order[1:-1]] for h in range(c["num_heads"])]
    layer._bigbird_block_rand_mask_with_head = lambda **_: drawn
    layer._get_rand_attn_plan = lambda *_: (None, None)
    weights = {f"{name}.{part}": tensor for part in ("weight", "bias") for name, tensor in
               zip(("query", "key", "value"), p[f"in.{part}"].chunk(3))}
    blocks = x.new_ones(x.shape[0], count, size)
    masks = whole_masks(blocks)
    rows = x.unflatten(1, (count, size))[:, order].flatten(1, 2)
    o, _ = functional_call(layer, weights, (rows,), masks)
    o = o.unflatten(1, (count, size))[:, [order.index(b) for b in range(count)]].flatten(1, 2)
    return functional.linear(o, p["out.weight"], p["out.bias"]), {}


def whole_masks(blocks):
    """Masks of sequences without padding, as BigBirdModel makes them."""
    batch, count, size = blocks.shape
    return {"band_mask": blocks.new_ones(batch, 1, count - 4, size, 3 * size),
            "from_mask": blocks.new_ones(batch, 1, count * size, 1),
            "to_mask": blocks.new_ones(batch, 1, 1, count * size),
            "from_blocked_mask": blocks, "to_blocked_mask": blocks}


def margins(c, p, x):
    """Buckets [B, T, H, rounds] and by how much the largest projection exceeds the next."""
    q, _ = attention.lsh_rows(c, {n: tensor.double() for n, tensor in p.items()}, x.double())
    largest = attention.projections(c, q).topk(2, -1)
    return largest.indices[..., 0], largest.values[..., 0] - largest.values[..., 1]


def clear(c, p, x, draw):
    """Tokens whose buckets no rounding changes."""
    while (unclear := (margins(c, p, x)[1] < 1e-3).any(-1).any(-1)).any():
        x[unclear] = draw(x[unclear].shape)
    return x


def balanced(c, p, x, draw):
    """Such tokens that every bucket of every sequence, head and round holds as many."""
    capacity = x.shape[1] // c["num_buckets"]
    sequences = []
    for _ in x:
        counts, kept = 0, []
        while len(kept) < x.shape[1]:
            pool = clear(c, p, draw((1, 20000, x.shape[2])), draw)
            buckets = functional.one_hot(margins(c, p, pool)[0][0], c["num_buckets"])
            while (fits := (counts + buckets <= capacity).flatten(1).all(-1)).any():
                first = fits.nonzero()[0, 0]
                counts = counts + buckets[first]
                kept.append(pool[0, first])
        sequences.append(torch.stack(kept))
    return torch.stack(sequences)


def reformer(c, p, x, _):
    """Reformer's layer sorts the tokens by bucket and cuts them into chunks. Without neighbouring
    chunks and with buckets that are all as large as a chunk a query sees the earlier tokens of its
    bucket, as Tarn's does with that `chunk`. Query times key is not scaled further there (scale 1);
    the 1e-6 that it adds to the mean square of a key is taken out, its projections get biases.
    Rounds are joined by their sums in both, tokens found twice counting twice."""
    h, k, _ = head_sizes(c)
    assert c["scale"] == 1.0 and c["chunk"] * c["num_buckets"] == x.shape[1]
    layer = LSHSelfAttention(ReformerConfig(
        hidden_size=x.shape[-1], num_attention_heads=h, attention_head_size=k, is_decoder=True,
        lsh_attn_chunk_length=c["chunk"], lsh_num_chunks_before=0, lsh_num_chunks_after=0,
        num_hashes=c["rounds"], num_buckets=c["num_buckets"], hash_seed=None,
        lsh_attention_probs_dropout_prob=0.0))
    layer.query_key = torch.nn.Linear(x.shape[-1], h * k)
    layer.value = torch.nn.Linear(x.shape[-1], h * k)
    layer._len_norm = functools.partial(layer._len_norm, epsilon=0.0)
    weights = {f"{name}.{part}": tensor for part in ("weight", "bias") for name, tensor in
               zip(("query_key", "value"), p[f"in.{part}"].chunk(2))}

    def randn(shape, **_):
        drawn = attention.rotations(c).transpose(0, 1).expand(h, -1, -1, -1)  # [H, K, rounds, N/2]
        assert drawn.shape == shape
        return drawn

    with mock.patch.object(torch, "randn", randn):
        o = functional_call(layer, weights, (x,)).hidden_states
    return functional.linear(o, p["out.weight"], p["out.bias"]), {}


def counted_attention(c, p, x, _):
    """All pairs at once: a score gains the logarithm of the number of rounds that find the key."""
    q, value = (rows.transpose(1, 2) for rows in attention.lsh_rows(c, p, x))
    buckets = attention.projections(c, q.transpose(1, 2)).argmax(-1).permute(0, 2, 3, 1)
    same = (buckets.unsqueeze(-1) == buckets.unsqueeze(-2)).tril(-1)  # [B, H, rounds, T, T]
    later = same.flip(-1).cumsum(-1).flip(-1)  # that key and later ones of the bucket
    count = (same & (later <= c["chunk"])).sum(2).to(x.dtype)
    alone = count.sum(-1) == 0
    count = count + torch.diag_embed(alone.to(x.dtype))
    o = functional.scaled_dot_product_attention(q, functional.normalize(q, dim=-1), value,
                                                attn_mask=count.log(), scale=c.get("scale"))
    return finished(p, o), {}


def compressed_keys(c, p, x, s):
    """All pairs at once: tokens and torch's pools (or grouped convolutions) of blocks of them as
    keys, visible by their number and the query's position."""
    window, block, memory = c["window"], c["compression"], c["memory"]
    q, *inputs = (rows.transpose(1, 2) for rows in attention.projected(c, p, x))
    tokens = x.shape[1]
    blocks = ((torch.arange(tokens) + 1 - window).clamp(min=0) // block).unsqueeze(-1)
    last = int(blocks[-1])
    pools, finals = [], {}
    for name, rows in zip("kv", inputs):
        groups, width = rows.shape[1], rows.shape[3]
        channels = rows.transpose(2, 3).flatten(1, 2)  # [B, Hkv·C, T]
        if c.get("pooling") == "convolution":
            kernel = p[f"compress_{name}.weight"].transpose(1, 2).flatten(0, 1).unsqueeze(1)
            entries = functional.conv1d(channels, kernel, stride=block, groups=groups * width)
        elif c.get("pooling") == "max":
            entries = functional.max_pool1d(channels, block)
        else:
            entries = functional.avg_pool1d(channels, block)
        entries = entries[..., :last].unflatten(1, (groups, width)).transpose(2, 3)
        pools.append(torch.cat([entries, rows], 2))
        ring = window + block
        final = s[name].clone()
        kept = torch.arange(max(0, last - memory), last)
        final[:, kept % memory] = entries.transpose(1, 2)[:, kept]
        kept = torch.arange(max(0, tokens - ring), tokens)
        final[:, memory + kept % ring] = rows.transpose(1, 2)[:, kept]
        finals[name] = final
    entry, token = torch.arange(last), torch.arange(tokens)
    mask = torch.cat([(entry < blocks) & (entry >= blocks - memory),
                      (token >= blocks * block) & (token <= token.unsqueeze(-1))], -1)
    o = functional.scaled_dot_product_attention(q, *pools, attn_mask=mask, enable_gqa=True,
                                                scale=c.get("scale"))
    return finished(p, o), finals


def perceiver(c, p, x, _):
    """Perceiver's cross-attention twice, its layer norms left out: latents as queries gather keys
    and values side by side with the same weights, then tokens as queries read what was gathered."""
    h, k, v = head_sizes(c)

    def attend(queries, inputs, v_channels, query, key, value):
        layer = PerceiverSelfAttention(
            PerceiverConfig(attention_probs_dropout_prob=0.0), True, h * k, v_channels, h,
            queries.shape[-1], inputs.shape[-1])
        layer.layernorm1 = layer.layernorm2 = torch.nn.Identity()
        weights = {f"{name}.{part}": tensor for name, tensors in
                   (("query", query), ("key", key), ("value", value))
                   for part, tensor in zip(("weight", "bias"), tensors)}
        return functional_call(layer, weights, (queries,), {"inputs": inputs})[0]

    def side_by_side(first, second):
        """Rows of both, head by head."""
        return torch.cat([first.unflatten(0, (h, k)), second.unflatten(0, (h, v))], 1).flatten(0, 1)

    query, key, value = zip(*(p[f"in.{part}"].split([h * k, h * k, h * v])
                              for part in ("weight", "bias")))
    both = [side_by_side(*parts) for parts in zip(key, value)]
    own = torch.eye(h * k), torch.zeros(h * k)
    latents = p["latents"].transpose(0, 1).flatten(1).expand(x.shape[0], -1, -1)
    gathered = attend(latents, x, h * (k + v), own, key, both)
    picked = torch.eye(h * (k + v)).unflatten(0, (h, k + v))
    o = attend(x, gathered, h * v, query, (picked[:, :k].flatten(0, 1), torch.zeros(h * k)),
               (picked[:, k:].flatten(0, 1), torch.zeros(h * v)))
    return functional.linear(o, p["out.weight"], p["out.bias"]), {}


def gathered_moments(c, p, x, s):
    """All tokens' latents at once: softmax under a mask, the initial state as one more token before
    the first, whose score is its log_sum."""
    q, key, value = (rows.transpose(1, 2) for rows in attention.projected(c, p, x))
    scale = c.get("scale", c["key_dim"] ** -0.5)
    tokens = x.shape[1]
    score = scale * p["latents"] @ key.transpose(-1, -2)  # [B, H, L, T]
    score = torch.cat([s["log_sum"].unsqueeze(-1), score], -1).unsqueeze(2)
    masked = score.expand(-1, -1, tokens, -1, -1).masked_fill(
        torch.ones(tokens, tokens + 1, dtype=torch.bool).triu(2).unsqueeze(1), -torch.inf)
    weights = masked.softmax(-1)  # [B, H, T, L, 1 + T]

    def mean(initial, rows):
        return (weights[..., :1] * initial.unsqueeze(2)
                + torch.einsum("bhtlj,bhjc->bhtlc", weights[..., 1:], rows))

    k, v = mean(s["k"], key), mean(s["v"], value)
    read = (scale * torch.einsum("bhtk,bhtlk->bhtl", q, k)).softmax(-1)
    o = torch.einsum("bhtl,bhtlv->bhtv", read, v)
    return finished(p, o), {"log_sum": score[:, :, 0].logsumexp(-1), "k": k[:, :, -1],
                            "v": v[:, :, -1]}


def main():
    grouped = {"num_heads": 4, "num_kv_heads": 2, "key_dim": 6, "value_dim": 5}
    golden.write("torch", {"name": "softmax_attention", **grouped, "rotary_dim": 4}, 15, MASKED,
                 masked_attention)
    golden.write("torch", {"name": "sliding_window_attention", **grouped, "window": 7, "sinks": 2,
                           "rotary_dim": 6, "rotary_base": 100}, 15, MASKED, masked_attention)
    for pattern, options in (("strided", {}), ("fixed", {"columns": 2})):
        golden.write(f"torch_{pattern}", {"name": "strided_sparse_attention", **grouped,
                                          "stride": 5, "pattern": pattern, **options}, 15, MASKED,
                     masked_attention)

    sparse = {"name": "block_sparse_attention", "num_heads": 2, "key_dim": 4}
    golden.write("big_bird", sparse | {"block_size": 4, "global_blocks": 2, "window_blocks": 3,
                                       "random_blocks": 2, "seed": 11, "causal": False}, 8,
                 TRANSFORMERS + "big_bird/modeling_big_bird.py BigBirdBlockSparseAttention, "
                 "block 1 as its last block, its random blocks replaced by the definition's",
                 big_bird, tokens=36, batch=1)
    golden.write("causal", sparse | {"num_heads": 4, "num_kv_heads": 2, "value_dim": 3,
                                     "block_size": 3, "window_blocks": 2, "random_blocks": 2,
                                     "seed": 5, "scale": 0.7, "rotary_dim": 2}, 7,
                 "definition re-expressed: " + MASKED, masked_attention, batch=1)

    lsh = {"name": "lsh_attention", "num_heads": 2, "key_dim": 4}
    golden.write("reformer", lsh | {"rounds": 2, "num_buckets": 4, "chunk": 9, "seed": 3,
                                    "scale": 1.0}, 7,
                 TRANSFORMERS + "reformer/modeling_reformer.py LSHSelfAttention with the "
                 "definition's rotations, biases, no term in the norm of keys; all buckets as "
                 "large as its chunks",
                 reformer, tokens=36, batch=1, choose=balanced)
    golden.write("rounds", lsh | {"value_dim": 3, "rounds": 3, "num_buckets": 6, "chunk": 2,
                                  "seed": 2 ** 40 + 7}, 7,
                 REEXPRESSED + "all pairs under a mask of counts", counted_attention, batch=1,
                 choose=clear)

    compressive = {"name": "compressive_attention", "num_heads": 2, "key_dim": 4, "value_dim": 3,
                   "compression": 3}
    pooled = REEXPRESSED + "all pairs of tokens and "
    golden.write("mean", compressive | {"window": 7, "memory": 4}, 6, pooled + "avg_pool1d",
                 compressed_keys, batch=1, tokens=25)
    golden.write("max", compressive | {"num_kv_heads": 1, "window": 5, "memory": 13,
                                       "pooling": "max"}, 6, pooled + "max_pool1d", compressed_keys,
                 batch=1)
    golden.write("convolution", compressive | {"window": 4, "memory": 3, "pooling": "convolution",
                                               "scale": 0.8}, 6, pooled + "grouped conv1d",
                 compressed_keys, batch=1)

    latent = {"name": "latent_attention", "num_heads": 2, "num_latents": 3, "key_dim": 4,
              "value_dim": 3}
    golden.write("perceiver", latent | {"causal": False}, 7, TRANSFORMERS + "perceiver/"
                 "modeling_perceiver.py PerceiverSelfAttention twice, without its layer norms",
                 perceiver, batch=1)
    golden.write("causal", latent, 7, REEXPRESSED + "all pairs under a mask", gathered_moments,
                 batch=1)


if __name__ == "__main__":
    main()
