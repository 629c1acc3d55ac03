"""Peers of `tarn bench generate`, timed in a Python process of their own:

    python generation.py PEER CONFIG BATCH THREADS DTYPE ROUNDS

Prints one JSON document {"peer", "config", …, "images_per_second": one figure per round}. The shape is
that of a training config of Tarn, the weights are random. Before anything is timed, the recurrent
encoder must compute what the library's parallel encoder computes with the same weights.

Steps are timed at POSITIONS prefix lengths, with a state of that length, and integrated by trapezoids
over the image ("integrated": true): a whole image of a growing state would take minutes. A step draws
from the mixture of logistics and embeds what was drawn, as generation does.

PEER: fast_transformers (the library of Katharopoulos et al.: its recurrent encoder, "linear", or "full"
with a memory of keys and values, as the config's mixer says); fast_transformers_whole (its parallel
encoder over the whole prefix for every token, without any memory: the paper's softmax baseline)."""

import json
import math
import sys
import time

import torch

from paper_model import causal_masks, parallel_encoder, recurrent_encoder, sinusoids

POSITIONS = 5
STEPS = 8  # timed at each position


class Generator:
    def __init__(self, model, batch):
        self.dim, self.levels = model["model_dim"], model["head"]["levels"]
        self.tokens, self.batch = model["max_tokens"], batch
        self.grows = model["layers"][0]["mixer"]["name"] == "softmax_attention"
        self.embedding = torch.nn.Embedding(model["vocabulary"], self.dim)
        self.position = sinusoids(self.tokens, self.dim)
        self.encoder = recurrent_encoder(model).eval()
        self.steps = STEPS
        self.head = torch.nn.Linear(self.dim, 3 * model["head"]["components"])

    def step(self, token, t, state):
        x = self.embedding(token) * math.sqrt(self.dim) + self.position[t]
        x, state = self.encoder(x, state)
        return self.draw(x), state

    def draw(self, x):
        logits, means, log_scales = self.head(x).chunk(3, dim=-1)
        chosen = torch.multinomial(torch.softmax(logits, -1), 1)
        mean, log_scale = means.gather(1, chosen), log_scales.gather(1, chosen).clamp(min=-7.0)
        uniform = torch.rand_like(mean).clamp(1e-5, 1.0 - 1e-5)
        value = mean + log_scale.exp() * (uniform.log() - (1.0 - uniform).log())
        level = ((value.clamp(-1.0, 1.0) + 1.0) * 0.5 * (self.levels - 1)).round().long()
        return level.squeeze(1)

    def state_at(self, position):
        """A token and the state after `position` tokens; a growing one is filled with noise."""
        token, state = self.step(torch.zeros(self.batch, dtype=torch.int64), 0, None)
        if self.grows:
            state = [[torch.randn(*x.shape[:2], max(1, position), x.shape[3]) for x in layer]
                     for layer in state]
        return token, state

    def seconds_at(self, position):
        token, state = self.state_at(position)
        start = time.perf_counter()
        for i in range(self.steps):
            token, state = self.step(token, position + i, state)
        return (time.perf_counter() - start) / self.steps

    def seconds_per_image(self):
        last = self.tokens - self.steps
        places = [last * i // (POSITIONS - 1) for i in range(POSITIONS)]
        seconds = [self.seconds_at(place) for place in places]
        area = sum((b - a) * (x + y) / 2 for a, b, x, y in
                   zip(places, places[1:], seconds, seconds[1:]))
        return area * self.tokens / last


class WholePrefix(Generator):
    """The state is the prefix itself, and every step goes through all of it. A step is long: one is timed."""

    def __init__(self, model, batch):
        super().__init__(model, batch)
        self.parallel = parallel_encoder(model).eval()
        self.parallel.load_state_dict(self.encoder.state_dict())
        self.steps = 1

    def state_at(self, position):
        return (torch.zeros(self.batch, dtype=torch.int64),
                torch.zeros(self.batch, position, dtype=torch.int64))

    def step(self, token, t, state):
        state = torch.cat([state, token.unsqueeze(1)], dim=1)
        x = self.embedding(state) * math.sqrt(self.dim) + self.position[:t + 1]
        x = self.parallel(x, **causal_masks(self.batch, t + 1))
        return self.draw(x[:, -1]), state


PEERS = {"fast_transformers": Generator, "fast_transformers_whole": WholePrefix}


def relative_error(model, recurrent):
    """The recurrent encoder, token by token, against the parallel one with its weights."""
    tokens = 24
    parallel = parallel_encoder(model).eval()
    parallel.load_state_dict(recurrent.state_dict())
    x = torch.randn(2, tokens, model["model_dim"])
    wanted = parallel(x, **causal_masks(2, tokens))
    state, got = None, []
    for t in range(tokens):
        y, state = recurrent(x[:, t], state)
        got.append(y)
    return ((torch.stack(got, 1) - wanted).norm() / wanted.norm()).item()


def main():
    peer, path, batch, threads, dtype, rounds = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        model = json.load(file)["model"]
    batch, threads, rounds = int(batch), int(threads), int(rounds)
    if peer not in PEERS or dtype != "f32":
        raise SystemExit(f"generation.py: no peer {peer} in {dtype}")
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    with torch.no_grad():
        generator = PEERS[peer](model, batch)
        error = relative_error(model, generator.encoder)
        if not error < 1e-4:
            raise SystemExit(f"generation.py: {peer} is off by {error:.2e}, refusing to time it")
        generator.seconds_at(0)  # warm-up
        rates = [batch / generator.seconds_per_image() for _ in range(rounds)]
    print(json.dumps({"peer": peer, "config": path, "batch": batch, "tokens": generator.tokens,
                      "threads": threads, "dtype": dtype, "torch": torch.__version__,
                      "error": error, "integrated": True, "timed_positions": POSITIONS,
                      "images_per_second": rates}))


if __name__ == "__main__":
    main()
