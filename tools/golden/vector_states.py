"""Definitions of the layers that keep a vector per channel or of channels, as matrix_states.py."""

import torch
from torch.nn import functional

from matrix_states import Definition, linear, matrix, short_conv, vector

# 9. Selective scan


def selective_scan_tensors(c, d):
    e, n, r, width = c["inner_dim"], c["state_dim"], c["dt_rank"], c.get("conv_width", 4)
    return ({"in.weight": matrix(2 * e, d), "conv.weight": vector(e, width), "conv.bias": vector(e),
             "x_proj.weight": matrix(r + 2 * n, e), "dt_proj.weight": matrix(e, r),
             "dt_proj.bias": vector(e), "a_log": vector(e, n), "d": vector(e),
             "out.weight": matrix(d, e)}, {"s": (e, n), "conv": (width - 1, e)})


def selective_scan(c, p, x, s):
    n, r = c["state_dim"], c["dt_rank"]
    u, z = linear(x, p["in.weight"]).chunk(2, -1)
    u, conv = short_conv(u, s["conv"], p["conv.weight"], p["conv.bias"])
    dt, b, read = linear(u, p["x_proj.weight"], [r, n, n])
    dt = functional.softplus(linear(dt, p["dt_proj.weight"]) + p["dt_proj.bias"])
    rate = -torch.exp(p["a_log"])
    state, outputs = s["s"], []
    for t in range(x.shape[1]):
        state = (torch.exp(dt[:, t].unsqueeze(-1) * rate) * state
                 + (dt[:, t] * u[:, t]).unsqueeze(-1) * b[:, t].unsqueeze(1))
        outputs.append((state * read[:, t].unsqueeze(1)).sum(-1))
    o = (torch.stack(outputs, 1) + p["d"] * u) * functional.silu(z)
    return linear(o, p["out.weight"]), {"s": state, "conv": conv}


# 10. Diagonal state space


def diagonal_state_space_tensors(c, d):
    e, n = c["inner_dim"], c["state_dim"]
    return ({"in.weight": matrix(e, d), "log_dt": vector(e, mean=-2.0),
             "a_log_real": vector(e, n, mean=-0.7), "a_imag": vector(e, n, scale=3.0),
             "c": vector(e, n, 2, scale=0.7), "d": vector(e), "out.weight": matrix(d, e)},
            {"s": (e, n, 2)})


def diagonal_state_space(c, p, x, s):
    """Token by token in real arithmetic; the reference convolves with complex kernels."""
    u = linear(x, p["in.weight"])
    dt = torch.exp(p["log_dt"]).unsqueeze(-1)
    real, imaginary = -torch.exp(p["a_log_real"]), p["a_imag"]
    size = torch.exp(dt * real)
    step_re, step_im = size * torch.cos(dt * imaginary), size * torch.sin(dt * imaginary)
    # (e^{ΔA} − 1) / A
    square = real * real + imaginary * imaginary
    in_re = ((step_re - 1) * real + step_im * imaginary) / square
    in_im = (step_im * real - (step_re - 1) * imaginary) / square
    re, im = s["s"].unbind(-1)
    outputs = []
    for t in range(x.shape[1]):
        driven = u[:, t].unsqueeze(-1)
        re, im = (step_re * re - step_im * im + in_re * driven,
                  step_re * im + step_im * re + in_im * driven)
        outputs.append(2 * (p["c"][..., 0] * re - p["c"][..., 1] * im).sum(-1))
    o = functional.gelu(torch.stack(outputs, 1) + p["d"] * u)
    return linear(o, p["out.weight"]), {"s": torch.stack([re, im], -1)}


# 11. LSTM and GRU


def gated_tensors(gates, states):
    def tensors(c, d):
        e, both = c["hidden_dim"], c.get("bidirectional", False)
        parameters = {}
        for suffix in ("", "_reverse") if both else ("",):
            parameters |= {f"in{suffix}.weight": matrix(gates * e, d),
                           f"in{suffix}.bias": vector(gates * e),
                           f"recurrent{suffix}.weight": matrix(gates * e, e),
                           f"recurrent{suffix}.bias": vector(gates * e)}
        parameters |= {"out.weight": matrix(d, 2 * e if both else e), "out.bias": vector(d)}
        return parameters, {} if both else {name: (e,) for name in states}
    return tensors


def lstm_cell(driven, recurrent, s):
    i, f, g, o = (driven + recurrent).chunk(4, -1)
    c = torch.sigmoid(f) * s["c"] + torch.sigmoid(i) * torch.tanh(g)
    return {"h": torch.sigmoid(o) * torch.tanh(c), "c": c}


def gru_cell(driven, recurrent, s):
    xr, xz, xn = driven.chunk(3, -1)
    hr, hz, hn = recurrent.chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    return {"h": (1 - z) * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + z * s["h"]}


def gated_layer(cell, states):
    def direction(p, suffix, x, s):
        driven = linear(x, p[f"in{suffix}.weight"]) + p[f"in{suffix}.bias"]
        outputs = []
        for t in range(x.shape[1]):
            recurrent = linear(s["h"], p[f"recurrent{suffix}.weight"]) + p[f"recurrent{suffix}.bias"]
            s = cell(driven[:, t], recurrent, s)
            outputs.append(s["h"])
        return torch.stack(outputs, 1), s

    def layer(c, p, x, s):
        if not c.get("bidirectional", False):
            h, s = direction(p, "", x, s)
            return linear(h, p["out.weight"]) + p["out.bias"], s
        zeros = {name: x.new_zeros(x.shape[0], c["hidden_dim"]) for name in states}
        forward, _ = direction(p, "", x, zeros)
        backward, _ = direction(p, "_reverse", x.flip(1), zeros)
        h = torch.cat([forward, backward.flip(1)], -1)
        return linear(h, p["out.weight"]) + p["out.bias"], {}
    return layer


DEFINITIONS = {
    "selective_scan": Definition(selective_scan_tensors, selective_scan),
    "diagonal_state_space": Definition(diagonal_state_space_tensors, diagonal_state_space),
    "lstm": Definition(gated_tensors(4, ("h", "c")), gated_layer(lstm_cell, ("h", "c"))),
    "gru": Definition(gated_tensors(3, ("h",)), gated_layer(gru_cell, ("h",))),
}
