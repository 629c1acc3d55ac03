"""What the end-to-end tests share: the built program, tiny models, and how a refusal must look."""

import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

LINEAR = {"name": "linear_attention", "num_heads": 2, "key_dim": 4}
SOFTMAX = {"name": "softmax_attention", "num_heads": 2, "key_dim": 4}


def config(mixers, modality="image", width=28, height=28, max_tokens=None, model_dim=8):
    """A model config with one layer per mixer."""
    document = {
        "format": "tarn-model", "format_version": 1, "modality": modality,
        "vocabulary": 257, "start_token": 256, "model_dim": model_dim,
        "max_tokens": width * height if max_tokens is None else max_tokens,
        "position": {"kind": "none" if max_tokens == 0 else "learned"}, "embedding_scale": 1.0,
        "norm": {"kind": "layer_norm", "placement": "post"},
        "layers": [{"mixer": mixer, "mlp": {"hidden_dim": 16, "activation": "relu"}}
                   for mixer in mixers],
    }
    if modality == "image":
        document["image"] = {"width": width, "height": height}
        document["head"] = {"kind": "discretised_logistic_mixture", "components": 3}
    else:
        document["head"] = {"kind": "categorical", "classes": 256}
    return document


class Suite:
    """Runs tarn in a scratch folder and counts what is wrong."""

    def __init__(self, description):
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--source", type=pathlib.Path, required=True)
        parser.add_argument("--build", type=pathlib.Path, required=True)
        options = parser.parse_args()
        self.source = options.source.resolve()
        self.tarn = options.build.resolve() / "tarn"
        if not self.tarn.exists():
            sys.exit(f"{self.tarn} does not exist; build it first")
        # Sanitizers reserve terabytes of addresses: no limit on those can be set.
        program = self.tarn.read_bytes()
        self.sanitized = b"__asan_init" in program or b"__tsan_init" in program
        self.scratch = tempfile.TemporaryDirectory(prefix="tarn-e2e-")
        self.folder = pathlib.Path(self.scratch.name)
        self.problems = []
        self.checks = 0

    def run(self, *arguments, timeout=300, **environment):
        return subprocess.run([self.tarn, *map(str, arguments)], capture_output=True, text=True,
                              errors="replace", timeout=timeout, cwd=self.folder, check=False,
                              env=os.environ | environment)

    def expect(self, condition, message):
        self.checks += 1
        if not condition:
            self.problems.append(message)
            print(f"FAILED: {message}", flush=True)

    def json(self, *arguments):
        """The JSON document that a command prints; stops the suite when it fails."""
        result = self.run(*arguments, "--json")
        if result.returncode != 0:
            sys.exit(f"tarn {' '.join(map(str, arguments))}: exit {result.returncode}: "
                     f"{result.stderr.strip()}")
        return json.loads(result.stdout)

    def refuse(self, name, *arguments, says=()):
        """The command must exit 2 with one sentence on stderr that has the words of `says`."""
        result = self.run(*arguments)
        lines = result.stderr.splitlines()
        self.expect(result.returncode == 2, f"{name}: exit {result.returncode}, wanted 2; stderr: "
                                            f"{result.stderr[:300]!r}")
        self.expect(len(lines) == 1, f"{name}: {len(lines)} lines on stderr, wanted 1: {lines[:4]}")
        for word in says:
            self.expect(word in result.stderr, f"{name}: no {word!r} in {result.stderr.strip()!r}")

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def model(self, name, *arguments, seed=1, **keywords):
        """A model folder with initial weights."""
        self.write(f"{name}.json", config(*arguments, **keywords))
        result = self.run("init", f"{name}.json", name, "--seed", seed)
        if result.returncode != 0:
            sys.exit(f"cannot make the model {name}: {result.stderr}")
        return self.folder / name

    def finish(self):
        self.scratch.cleanup()
        if self.problems:
            sys.exit(f"{len(self.problems)} of {self.checks} checks failed")
        print(f"{self.checks} checks passed")


def split_safetensors(content):
    """(header as a dict, data bytes) of a safetensors file."""
    size, = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + size]), content[8 + size:]


def join_safetensors(header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data
