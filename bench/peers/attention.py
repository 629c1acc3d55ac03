"""Peers of `tarn bench attention`, timed in a Python process of their own:

    python attention.py PEER FORM N HEADS KEY_DIM VALUE_DIM BATCH THREADS DTYPE ROUNDS

Prints one JSON document {"peer", "form", "n", …, "ms": [times], "error": relative error}. A peer is
compared with the definition in double precision before it is timed; a wrong one is an error.

PEER: torch_chunk (causal linear attention as torch products over chunks of 128 tokens),
torch_compile (the same through torch.compile), torch_softmax (torch's scaled dot-product attention,
causal), fast_transformers (the library of Katharopoulos et al., its causal linear attention),
fast_transformers_softmax (its full attention under a triangular mask)."""

import json
import pathlib
import re
import sys
import time

import torch

CHUNK = 128
EPS = 1e-6


def elu_plus_one(x):
    return torch.nn.functional.elu(x) + 1


def definition(q, k, v):
    """Katharopoulos 2020, eqs. 8-9, as masked products; [B, H, N, D]."""
    fq, fk = elu_plus_one(q), elu_plus_one(k)
    scores = torch.tril(fq @ fk.transpose(-1, -2))
    return (scores @ v) / (scores.sum(-1, keepdim=True) + EPS)


def torch_chunk(q, k, v):
    """State before each chunk by a running sum, products inside the chunk; [B, H, N, D]."""
    batch, heads, tokens, key_dim = q.shape
    chunk = min(CHUNK, tokens)
    shape = (batch, heads, tokens // chunk, chunk)
    fq = elu_plus_one(q).reshape(*shape, key_dim)
    fk = elu_plus_one(k).reshape(*shape, key_dim)
    vc = v.reshape(*shape, v.shape[-1])
    states = fk.transpose(-1, -2) @ vc
    before = states.cumsum(2) - states
    sums = fk.sum(3)
    sums_before = sums.cumsum(2) - sums
    scores = torch.tril(fq @ fk.transpose(-1, -2))
    numerator = scores @ vc + fq @ before
    denominator = scores.sum(-1) + (fq @ sums_before.unsqueeze(-1)).squeeze(-1) + EPS
    return (numerator / denominator.unsqueeze(-1)).reshape(batch, heads, tokens, -1)


def softmax_definition(q, k, v):
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def torch_softmax(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def fast_transformers(make):
    """An attention module of the library, called as its transformer calls it. `make`: from the module
    `attention` and the keys' width."""
    import fast_transformers.attention as modules
    from fast_transformers.masking import LengthMask, TriangularCausalMask

    def run(q, k, v):
        attention = make(modules, q.shape[-1])
        tokens = q.shape[2]
        lengths = LengthMask(torch.full((q.shape[0],), tokens, dtype=torch.int64))
        mask = TriangularCausalMask(tokens)
        rows = [x.transpose(1, 2) for x in (q, k, v)]
        return attention(*rows, mask, lengths, lengths).transpose(1, 2)

    return run


def choose(peer):
    if peer == "torch_chunk":
        return torch_chunk, definition
    if peer == "torch_compile":
        return torch.compile(torch_chunk), definition
    if peer == "torch_softmax":
        return torch_softmax, softmax_definition
    if peer == "fast_transformers":
        return fast_transformers(lambda modules, dim: modules.CausalLinearAttention(dim)), definition
    if peer == "fast_transformers_softmax":
        return (fast_transformers(lambda modules, dim: modules.FullAttention(attention_dropout=0.0)),
                softmax_definition)
    raise SystemExit(f"attention.py: no peer {peer}")


def inputs(batch, heads, tokens, key_dim, value_dim, dtype):
    """As the kernels read them: [B, N, H, D] in memory, seen as [B, H, N, D]."""
    make = lambda dim: torch.randn(batch, tokens, heads, dim).to(dtype).transpose(1, 2)
    return make(key_dim), make(key_dim), make(value_dim)


def memory(kind):
    """Bytes: VmRSS (resident now) or VmHWM (the most so far)."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{kind}:\s*(\d+)", status).group(1))


def relative_error(run, wanted, heads, key_dim, value_dim, dtype):
    q, k, v = inputs(1, heads, 512, key_dim, value_dim, dtype)
    got = run(q, k, v).double()
    truth = wanted(q.double(), k.double(), v.double())
    return ((got - truth).norm() / truth.norm()).item()


def main():
    peer, form = sys.argv[1:3]
    tokens, heads, key_dim, value_dim, batch, threads = map(int, sys.argv[3:9])
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[sys.argv[9]]
    rounds = int(sys.argv[10])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    run, wanted = choose(peer)
    error = relative_error(run, wanted, heads, key_dim, value_dim, dtype)
    if not error < (1e-4 if dtype == torch.float32 else 3e-2):
        raise SystemExit(f"attention.py: {peer} is off by {error:.2e}, refusing to time it")
    q, k, v = inputs(batch, heads, tokens, key_dim, value_dim, dtype)
    backward = form == "forward_backward"
    gradient = torch.randn(batch, tokens, heads, value_dim).to(dtype).transpose(1, 2)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak so far was the check's
    before, times = memory("VmRSS"), []
    for _ in range(rounds + 1):
        leaves = [x.detach().requires_grad_(backward) for x in (q, k, v)]
        start = time.perf_counter()
        out = run(*leaves)
        if backward:
            out.backward(gradient)
        times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"peer": peer, "form": form, "n": tokens, "heads": heads, "key_dim": key_dim,
                      "value_dim": value_dim, "batch": batch, "threads": threads,
                      "dtype": sys.argv[9], "torch": torch.__version__, "error": error,
                      "peak_growth_bytes": memory("VmHWM") - before,
                      "tensor_bytes": 2 * sum(x.numel() * x.element_size() for x in (q, k, v, gradient)),
                      "ms": times[1:]}))  # the first is a warm-up


if __name__ == "__main__":
    main()
