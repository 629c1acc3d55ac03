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
        e = c["hidden_dim"]
        return ({"in.weight": matrix(gates * e, d), "in.bias": vector(gates * e),
                 "recurrent.weight": matrix(gates * e, e), "recurrent.bias": vector(gates * e),
                 "out.weight": matrix(d, e), "out.bias": vector(d)},
                {name: (e,) for name in states})
    return tensors


def lstm(_, p, x, s):
    h, c, outputs = s["h"], s["c"], []
    driven = linear(x, p["in.weight"]) + p["in.bias"]
    for t in range(x.shape[1]):
        total = driven[:, t] + linear(h, p["recurrent.weight"]) + p["recurrent.bias"]
        i, f, g, o = total.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return linear(torch.stack(outputs, 1), p["out.weight"]) + p["out.bias"], {"h": h, "c": c}


def gru(_, p, x, s):
    h, outputs = s["h"], []
    driven = linear(x, p["in.weight"]) + p["in.bias"]
    for t in range(x.shape[1]):
        xr, xz, xn = driven[:, t].chunk(3, -1)
        hr, hz, hn = (linear(h, p["recurrent.weight"]) + p["recurrent.bias"]).chunk(3, -1)
        z = torch.sigmoid(xz + hz)
        h = (1 - z) * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + z * h
        outputs.append(h)
    return linear(torch.stack(outputs, 1), p["out.weight"]) + p["out.bias"], {"h": h}


DEFINITIONS = {
    "selective_scan": Definition(selective_scan_tensors, selective_scan),
    "diagonal_state_space": Definition(diagonal_state_space_tensors, diagonal_state_space),
    "lstm": Definition(gated_tensors(4, ("h", "c")), lstm),
    "gru": Definition(gated_tensors(3, ("h",)), gru),
}
