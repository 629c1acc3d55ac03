"""What the golden scripts share: drawing a case, running its two computations in double precision,
comparing them and writing the files.

A case is a config of one mechanism. Parameters, x, initial states and the gradients that arrive are
drawn in f32 and computed on in f64. The numbers that are written come from the reference; the
definition (matrix_states.py, vector_states.py) must agree with them, gradients included."""

import contextlib
import importlib.metadata
import json
import pathlib
import zlib

import numpy
import safetensors.torch
import torch
from torch.overrides import TorchFunctionMode

import attention
import matrix_states
import vector_states

DEFINITIONS = (matrix_states.DEFINITIONS | vector_states.DEFINITIONS | attention.DEFINITIONS)
ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH, TOKENS = 2, 37  # longer than two chunks of 16, and odd
TOLERANCE = 1e-9  # of a difference, relative to the largest number of the tensor
LIMIT_BYTES = 200_000


class Widen(TorchFunctionMode):
    """References cast to float32 inside; within this mode every such cast is one to float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            # A cast makes a new tensor; some references then overwrite the old one.
            return args[0].double().clone()
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        kwargs = {name: torch.float64 if value is torch.float32 else value
                  for name, value in (kwargs or {}).items()}
        return function(*args, **kwargs)


@contextlib.contextmanager
def double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widen():
            yield
    finally:
        torch.set_default_dtype(before)


def version(package):
    return f"{package} {importlib.metadata.version(package).partition('+')[0]}"


class Draw:
    """Random f32 tensors, seeded by the case's name."""

    def __init__(self, name):
        self.generator = numpy.random.Generator(numpy.random.PCG64(zlib.crc32(name.encode())))

    def __call__(self, shape, scale=1.0, mean=0.0):
        values = mean + scale * self.generator.standard_normal(shape)
        return torch.from_numpy(values.astype(numpy.float32))


def widen(tensors):
    """Leaves of the double-precision computation."""
    return {name: tensor.double().requires_grad_() for name, tensor in tensors.items()}


def gradients(compute, drawn):
    """Outputs of compute(parameters, x, states, extra) and the gradients of
    sum(y*dy) + sum(final*dfinal) with respect to everything that was drawn."""
    inputs = {part: widen(drawn[part]) for part in ("parameter", "initial", "input")}
    extra = {name: tensor for name, tensor in inputs["input"].items() if name != "x"}
    y, final = compute(inputs["parameter"], inputs["input"]["x"], inputs["initial"], **extra)
    outputs = {"y": y, **{f"final.{name}": tensor for name, tensor in final.items()}}
    assert set(final) == set(drawn["initial"]) | {n for n in final if n.startswith("output.")}
    loss = sum((outputs[name] * d.double()).sum() for name, d in drawn["arriving"].items())
    leaves = {}
    for part, prefix in (("input", "d"), ("parameter", "dparameter."), ("initial", "dinitial.")):
        leaves |= {prefix + name: tensor for name, tensor in inputs[part].items()}
    outputs |= dict(zip(leaves, torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True)))
    return {name: tensor.detach() for name, tensor in outputs.items()}


def check_equal(got, wanted, name, tolerance=TOLERANCE):
    """Fails unless `got` is `wanted` up to rounding; the relative difference."""
    assert got.dtype == wanted.dtype == torch.float64, f"{name}: {got.dtype}, {wanted.dtype}"
    assert got.shape == wanted.shape, f"{name}: {tuple(got.shape)}, wanted {tuple(wanted.shape)}"
    assert torch.isfinite(wanted).all(), f"{name} is not finite"
    difference = ((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3)).item()
    assert difference <= tolerance, f"{name}: relative difference {difference:.3g}"
    return difference


def write(case, config, model_dim, source, reference, inputs=(), factors=None, batch=BATCH,
          tokens=TOKENS, choose=None):
    """Writes src/mixers/<name>/golden/<case>.{json,safetensors}.

    reference(config, parameters, x, states, **inputs) -> (y, final states). `inputs` names further
    tensors [B, T, model_dim] that the layer takes; `factors` scale parameters of those names.
    choose(config, parameters, x, draw) -> x takes the place of the drawn input."""
    name = config["name"]
    definition = DEFINITIONS[name]
    draw = Draw(f"{name}/{case}")
    parameters, states = definition.tensors(config, model_dim)
    states = {n: spec if isinstance(spec[0], tuple) else (spec, 0.5, 0.0)
              for n, spec in states.items()}
    stream = (batch, tokens, model_dim)
    drawn = {
        "input": {n: draw(stream) for n in ("x", *inputs)},
        "parameter": {n: draw(*spec) for n, spec in parameters.items()},
        "initial": {n: draw((batch, *shape), scale, mean)
                    for n, (shape, scale, mean) in states.items()},
    }
    for n, factor in (factors or {}).items():
        drawn["parameter"][n] *= factor
    if choose is not None:
        drawn["input"]["x"] = choose(config, drawn["parameter"], drawn["input"]["x"], draw)
    drawn["arriving"] = {"y": draw(stream)}
    drawn["arriving"] |= {f"final.{n}": draw((batch, *shape)) for n, (shape, *_) in states.items()}

    with double_precision():
        wanted = gradients(lambda *a, **k: reference(config, *a, **k), drawn)
    found = gradients(lambda *a, **k: definition.layer(config, *a, **k), drawn)
    assert set(found) == set(wanted), set(found) ^ set(wanted)
    worst = max(check_equal(found[n], wanted[n], f"{name}/{case}: {n}") for n in wanted)

    tensors = dict(drawn["input"])
    tensors |= {f"parameter.{n}": tensor for n, tensor in drawn["parameter"].items()}
    tensors |= {f"initial.{n}": tensor for n, tensor in drawn["initial"].items()}
    tensors |= {f"d{n}": tensor for n, tensor in drawn["arriving"].items()}
    tensors |= {n.replace("final.output.", "output."): tensor for n, tensor in wanted.items()}
    document = {"mixer": config, "model_dim": model_dim, "source": source, "batch": batch,
                "tokens": tokens}
    folder = ROOT / "src/mixers" / name / "golden"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{case}.json").write_text(json.dumps(document, indent=2) + "\n")
    path = folder / f"{case}.safetensors"
    safetensors.torch.save_file({n: t.contiguous() for n, t in tensors.items()}, path)
    size = path.stat().st_size
    assert size <= LIMIT_BYTES, f"{path} has {size} bytes, the limit is {LIMIT_BYTES}"
    print(f"{name + '/' + case:40s} {size:7d} bytes, largest difference {worst:.1e}", flush=True)
