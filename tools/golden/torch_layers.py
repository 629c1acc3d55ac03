"""Golden files of what torch itself computes: LSTM and GRU (torch.nn), and S4D as one convolution
with its complex Vandermonde kernel, which shares no arithmetic with a recurrence."""

import torch
from torch.func import functional_call
from torch.nn import functional

import golden


def recurrent_layer(kind):
    """torch.nn.LSTM or GRU; the second direction's tensors end in "_reverse"."""
    def reference(c, p, x, s):
        both = c.get("bidirectional", False)
        layer = kind(x.shape[-1], c["hidden_dim"], batch_first=True, bidirectional=both)
        weights = {}
        for suffix in ("", "_reverse") if both else ("",):
            for ours, theirs in (("in", "ih"), ("recurrent", "hh")):
                for part in ("weight", "bias"):
                    weights[f"{part}_{theirs}_l0{suffix}"] = p[f"{ours}{suffix}.{part}"]
        initial = tuple(state.unsqueeze(0) for state in s.values())
        arguments = (initial if len(initial) > 1 else initial[0],) if initial else ()
        h, final = functional_call(layer, weights, (x, *arguments))
        final = final if isinstance(final, tuple) else (final,)
        y = functional.linear(h, p["out.weight"], p["out.bias"])
        return y, {name: state.squeeze(0) for name, state in zip(s, final)}
    return reference


def vandermonde(c, p, x, s):
    tokens = x.shape[1]
    u = functional.linear(x, p["in.weight"]).transpose(1, 2)  # [B, E, T]
    rate = torch.complex(-torch.exp(p["a_log_real"]), p["a_imag"])
    dt_rate = rate * torch.exp(p["log_dt"]).unsqueeze(-1)
    read = torch.view_as_complex(p["c"])
    powers = torch.exp(dt_rate.unsqueeze(-1) * torch.arange(tokens))  # [E, N, T]
    driven = (torch.exp(dt_rate) - 1) / rate
    kernel = 2 * torch.einsum("en,ent->et", read * driven, powers).real
    lag = torch.arange(tokens)[:, None] - torch.arange(tokens)
    toeplitz = kernel[:, lag.clamp(min=0)] * (lag >= 0)
    initial = torch.view_as_complex(s["s"])
    decayed = powers * torch.exp(dt_rate).unsqueeze(-1)
    y = (torch.einsum("ets,bes->bet", toeplitz, u) + p["d"].unsqueeze(-1) * u
         + 2 * torch.einsum("ben,ent->bet", read * initial, decayed).real)
    final = decayed[..., -1] * initial + torch.einsum(
        "ent,bet->ben", driven.unsqueeze(-1) * powers.flip(-1), u.to(powers.dtype))
    y = functional.linear(functional.gelu(y.transpose(1, 2)), p["out.weight"])
    return y, {"s": torch.view_as_real(final)}


def main():
    torch_version = golden.version("torch")
    for name, kind in (("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)):
        source = (f"{torch_version}, torch.nn.{kind.__name__} (batch_first) in float64 and "
                  "torch.nn.functional.linear behind it")
        golden.write("torch", {"name": name, "hidden_dim": 13}, 11, source, recurrent_layer(kind))
        golden.write("torch_bidirectional",
                     {"name": name, "hidden_dim": 6, "bidirectional": True}, 7, source,
                     recurrent_layer(kind))
    source = ("definition re-expressed (state-spaces/s4, models/s4/s4d.py, S4DKernel and S4D with "
              "an output projection without gate): convolution with the kernel "
              "2 Re(C (exp(dt A) - 1)/A exp(dt A l)), what the initial state adds, exact gelu; "
              f"{torch_version}, float64")
    golden.write("vandermonde", {"name": "diagonal_state_space", "inner_dim": 9, "state_dim": 5},
                 12, source, vandermonde)


if __name__ == "__main__":
    main()
