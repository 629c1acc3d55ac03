"""Peers of `tarn bench attention` for mechanisms with gates and erasure, timed in a Python process of
their own:

    python transition.py PEER FORM N HEADS KEY_DIM VALUE_DIM BATCH THREADS DTYPE ROUNDS

Prints one JSON document {"peer", "form", "n", …, "ms": [times], "error": relative error}. A peer is
compared with the recurrence in double precision before it is timed; a wrong one is an error.

PEER: transformers_gated_delta (torch_chunk_gated_delta_rule, the path that Qwen3-Next takes on a CPU),
transformers_mamba2 (mamba2_chunk_scan, that of Mamba-2, chunks of 256 tokens as its config has them)."""

import json
import sys
import time

import torch

MAMBA2_CHUNK = 256


def gated_delta_definition(q, k, v, g, beta):
    """Yang 2024 (arXiv 2412.06464), eq. 10, token by token; rows [B, N, H, D]."""
    state = torch.zeros(*q.shape[:1], q.shape[2], q.shape[3], v.shape[3], dtype=q.dtype)
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        answer = (state * k[:, t][..., None]).sum(-2)
        write = (v[:, t] - answer) * beta[:, t][..., None]
        state = state + k[:, t][..., None] * write[..., None, :]
        outputs.append((state * q[:, t][..., None]).sum(-2) / q.shape[3] ** 0.5)
    return torch.stack(outputs, 1)


def transformers_gated_delta():
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    return lambda q, k, v, g, beta: torch_chunk_gated_delta_rule(q, k, v, g, beta)[0]


def gated_delta_inputs(batch, tokens, heads, key_dim, value_dim):
    unit = lambda x: torch.nn.functional.normalize(x, dim=-1)
    return (unit(torch.randn(batch, tokens, heads, key_dim)),
            unit(torch.randn(batch, tokens, heads, key_dim)),
            torch.randn(batch, tokens, heads, value_dim), -torch.rand(batch, tokens, heads),
            torch.rand(batch, tokens, heads))


def mamba2_definition(x, step, b, c):
    """Dao 2024 (arXiv 2405.21060), eq. 1 with A = -1 and one group; rows [B, N, H, V], [B, N, H],
    [B, N, 1, K]."""
    state = torch.zeros(x.shape[0], x.shape[2], b.shape[3], x.shape[3], dtype=x.dtype)
    outputs = []
    for t in range(x.shape[1]):
        state = state * (-step[:, t]).exp()[..., None, None]
        state = state + b[:, t][..., None] * (x[:, t] * step[:, t][..., None])[..., None, :]
        outputs.append((state * c[:, t][..., None]).sum(-2))
    return torch.stack(outputs, 1)


def transformers_mamba2():
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    def run(x, step, b, c):
        rates = -torch.ones(x.shape[2], dtype=x.dtype)
        return mamba2_chunk_scan(x, step, rates, b, c, chunk_size=MAMBA2_CHUNK)

    return run


def mamba2_inputs(batch, tokens, heads, key_dim, value_dim):
    return (torch.randn(batch, tokens, heads, value_dim), torch.rand(batch, tokens, heads),
            torch.randn(batch, tokens, 1, key_dim), torch.randn(batch, tokens, 1, key_dim))


PEERS = {"transformers_gated_delta": (transformers_gated_delta, gated_delta_definition,
                                      gated_delta_inputs),
         "transformers_mamba2": (transformers_mamba2, mamba2_definition, mamba2_inputs)}


def main():
    peer, form = sys.argv[1:3]
    tokens, heads, key_dim, value_dim, batch, threads = map(int, sys.argv[3:9])
    rounds = int(sys.argv[10])
    if sys.argv[9] != "f32":
        raise SystemExit("transition.py: these peers compute in f32")
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    prepare, definition, make_inputs = PEERS[peer]
    run = prepare()
    small = make_inputs(1, 300, heads, key_dim, value_dim)
    truth = definition(*(x.double() for x in small))
    error = ((run(*small).double() - truth).norm() / truth.norm()).item()
    if not error < 1e-4:
        raise SystemExit(f"transition.py: {peer} is off by {error:.2e}, refusing to time it")
    inputs = make_inputs(batch, tokens, heads, key_dim, value_dim)
    backward = form == "forward_backward"
    gradient = torch.randn(batch, tokens, heads, value_dim)
    times = []
    for _ in range(rounds + 1):
        leaves = [x.detach().requires_grad_(backward) for x in inputs]
        start = time.perf_counter()
        with torch.set_grad_enabled(backward):
            out = run(*leaves)
        if backward:
            out.backward(gradient)
        times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"peer": peer, "form": form, "n": tokens, "heads": heads, "key_dim": key_dim,
                      "value_dim": value_dim, "batch": batch, "threads": threads,
                      "dtype": sys.argv[9], "torch": torch.__version__, "error": error,
                      "ms": times[1:]}))  # the first is a warm-up


if __name__ == "__main__":
    main()
