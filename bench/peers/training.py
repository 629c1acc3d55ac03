"""Peers of `tarn bench train`, timed in a Python process of their own:

    python training.py PEER CONFIG BATCH THREADS DTYPE STEPS

Prints one JSON document {"peer", "config", …, "losses": of the warm-up, "ms": one time per step}.
The shape is that of a training config of Tarn; the data are random tokens. Before anything is
timed, three steps must give finite gradients and a loss that falls; a peer that fails is an error.

PEER: fast_transformers (the library of Katharopoulos et al.: its encoder from its builder, "linear"
or "full" attention as the config's mixer says), fast_transformers_compile (the same through
torch.compile). DTYPE: f32, or bf16 for torch's autocast."""

import json
import math
import sys
import time

import torch

from paper_model import causal_masks, parallel_encoder, sinusoids

WARM_UP = 3


class Decoder(torch.nn.Module):
    """Embedding, positions, the library's causal encoder, head: the model of a Tarn config."""

    def __init__(self, model, batch, tokens):
        super().__init__()
        self.dim = model["model_dim"]
        self.embedding = torch.nn.Embedding(model["vocabulary"], self.dim)
        self.register_buffer("position", sinusoids(tokens, self.dim))
        self.encoder = parallel_encoder(model)
        self.head = torch.nn.Linear(self.dim, 3 * model["head"]["components"])
        self.masks = causal_masks(batch, tokens)

    def forward(self, inputs):
        x = self.embedding(inputs) * math.sqrt(self.dim) + self.position
        return self.head(self.encoder(x, **self.masks))


def mixture_nats(outputs, targets, levels):
    """Mean of −log P of the discretised mixture of logistics (Salimans 2017, one channel)."""
    logits, means, log_scales = outputs.float().chunk(3, dim=-1)
    half = 1.0 / (levels - 1)
    x = (2.0 * half * targets - 1.0).unsqueeze(-1)
    inverse = torch.exp(-log_scales.clamp(min=-7.0))
    upper = (x + half - means) * inverse
    lower = (x - half - means) * inverse
    softplus = torch.nn.functional.softplus
    below, above = -softplus(-upper), -softplus(lower)  # log σ(upper), log (1 − σ(lower))
    inside = below + above + torch.log(-torch.expm1(-2.0 * half * inverse))
    edge = targets.unsqueeze(-1)
    bins = torch.where(edge == 0, below, torch.where(edge == levels - 1, above, inside))
    return -torch.logsumexp(torch.log_softmax(logits, -1) + bins, -1).mean()


def main():
    peer, path, batch, threads, dtype, steps = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    model, training = config["model"], config["training"]
    batch, threads, steps = int(batch), int(threads), int(steps)
    tokens, levels = model["max_tokens"], model["head"]["levels"]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    decoder = Decoder(model, batch, tokens)
    kind = {"radam": torch.optim.RAdam, "adamw": torch.optim.AdamW}[training["optimiser"]["kind"]]
    optimiser = kind(decoder.parameters(), lr=1e-3, foreach=True)
    targets = torch.randint(0, levels, (batch, tokens))
    inputs = torch.cat([torch.full((batch, 1), model["start_token"]), targets[:, :-1]], dim=1)
    if peer not in ("fast_transformers", "fast_transformers_compile"):
        raise SystemExit(f"training.py: no peer {peer}")
    run = torch.compile(decoder) if peer.endswith("_compile") else decoder

    def step():
        optimiser.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            outputs = run(inputs)
        loss = mixture_nats(outputs, targets, levels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), training["gradient_clip"])
        optimiser.step()
        return loss.item()

    losses = []
    for _ in range(WARM_UP):
        losses.append(step())
        if not all(p.grad.isfinite().all() for p in decoder.parameters()):
            raise SystemExit(f"training.py: {peer} has gradients that are not finite")
    if not losses[-1] < losses[0]:
        raise SystemExit(f"training.py: the loss of {peer} does not fall: {losses}")
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"peer": peer, "config": path, "batch": batch, "tokens": tokens,
                      "threads": threads, "dtype": dtype, "torch": torch.__version__,
                      "parameters": sum(p.numel() for p in decoder.parameters()),
                      "losses": losses, "ms": times}))


if __name__ == "__main__":
    main()
