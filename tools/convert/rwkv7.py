#!/usr/bin/env python3
"""Makes a Tarn model folder of an RWKV-7 model in rwkv.cpp's file format with f32 data.

    tools/convert/rwkv7.py MODEL.bin FOLDER [--logits LOGITS.bin]

The format: six int32 (magic 0x67676d66, version 101, vocabulary, width, layers, data type 0 = f32), then
per tensor int32 dimensions, length of the name, data type, the shape with the fastest dimension first,
the name, the data; little-endian. Models of 256 symbols become byte models. The format has no start
token; RWKV models are trained with symbol 0 between documents, so that is what Tarn starts from.
With --logits, the expected f32 logits of that file go to FOLDER/expected.safetensors."""

import argparse
import json
import math
import pathlib
import struct
import sys

MAGIC, VERSION, F32 = 0x67676D66, 101, 0

# Names of a time mixing layer's parameters: Tarn's, the file's.
TIME_MIX = {
    "mix": "x_rwkvag", "receptance.weight": "receptance.weight", "key.weight": "key.weight",
    "value.weight": "value.weight", "out.weight": "output.weight", "norm.weight": "ln_x.weight",
    "norm.bias": "ln_x.bias", **{name: name for name in (
        "w0", "w1", "w2", "a0", "a1", "a2", "g1", "g2", "k_k", "k_a", "r_k")}}
VALUE_MIX = {name: name for name in ("v0", "v1", "v2")}
CHANNEL_MIX = {"mix": "x_k", "key.weight": "key.weight", "value.weight": "value.weight"}
VECTORS = {"w0", "a0", "v0", "k_k", "k_a", "r_k", "x_k"}  # stored with dimensions of 1


class Failure(Exception):
    """The file is not what this program can convert."""


def read_ints(data, offset, count):
    if offset + 4 * count > len(data):
        raise Failure(f"the file ends within a header, at byte {len(data)}")
    return struct.unpack_from(f"<{count}i", data, offset), offset + 4 * count


def read_file(path):
    """(vocabulary, width, layers) and {name: (shape, bytes)}; shapes with the fastest dimension last."""
    data = path.read_bytes()
    (magic, version, vocabulary, width, layers, dtype), offset = read_ints(data, 0, 6)
    if (magic, version, dtype) != (MAGIC, VERSION, F32):
        raise Failure(f"magic, version and data type are {magic:#x}, {version}, {dtype}, wanted "
                      f"{MAGIC:#x}, {VERSION}, {F32}")
    tensors = {}
    while offset < len(data):
        (dimensions, length, dtype), offset = read_ints(data, offset, 3)
        if not 1 <= dimensions <= 4 or length < 1 or dtype != F32:
            raise Failure(f"a tensor has {dimensions} dimensions, a name of {length} bytes and data "
                          f"type {dtype}, wanted at most 4 and data type {F32}")
        shape, offset = read_ints(data, offset, dimensions)
        size = 4 * math.prod(shape)
        if min(shape) < 1 or offset + length + size > len(data):
            raise Failure(f"a tensor of shape {shape} does not fit the file")
        name = data[offset:offset + length].decode()
        offset += length
        tensors[name] = (tuple(reversed(shape)), data[offset:offset + size])
        offset += size
    return (vocabulary, width, layers), tensors


def safetensors(tensors):
    """The bytes of a file of these f32 tensors, [(name, shape, data)]."""
    header, begin = {}, 0
    for name, shape, data in tensors:
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, begin + len(data)]}
        begin += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors)


class Converter:
    """Takes tensors of the file one by one; all must be taken."""

    def __init__(self, sizes, tensors):
        self.vocabulary, self.width, self.layers = sizes
        self.left = dict(tensors)
        self.taken = []
        self.groups = []

    def shape_of(self, name):
        if name not in self.left:
            raise Failure(f"tensor {name} is missing")
        return self.left[name][0]

    def take(self, ours, name):
        shape = self.shape_of(name)
        data = self.left.pop(name)[1]
        if name.split(".")[-1] in VECTORS:
            shape = (math.prod(shape),)
        if name.endswith(".x_rwkvag"):
            shape = (6, self.width)
        self.taken.append((ours, list(shape), data))

    def take_norm(self, ours, name):
        for part in ("weight", "bias"):
            self.take(f"{ours}.{part}", f"{name}.{part}")

    def add_layer(self, norm, prefix, mixer, names):
        ours = f"layers.{len(self.groups)}."
        self.take_norm(ours + "norm1", norm)
        for name, theirs in names.items():
            self.take(f"{ours}mixer.{name}", f"{prefix}.{theirs}")
        self.groups.append({"mixer": mixer, "mlp": None})

    def add_block(self, index):
        block = f"blocks.{index}"
        place = {"layer_index": index, "num_layers": self.layers}
        heads, key_dim = self.shape_of(f"{block}.att.r_k")[-2:]
        first = index == 0
        mixer = {"name": "rwkv7", "num_heads": heads, "key_dim": key_dim}
        # The first layer has no value gate; the rank that it would have is as good as any.
        ranks = {"decay_rank": "w1", "learning_rate_rank": "a1",
                 "value_rank": "a1" if first else "v1", "gate_rank": "g1"}
        mixer |= {key: self.shape_of(f"{block}.att.{name}")[0] for key, name in ranks.items()}
        mixer |= {"value_residual": "source" if first else "mixed"} | place
        for name in VALUE_MIX if first else ():
            self.left.pop(f"{block}.att.{name}", None)  # some writers keep unused ones
        self.add_layer(f"{block}.ln1", f"{block}.att", mixer,
                       TIME_MIX if first else TIME_MIX | VALUE_MIX)
        hidden = self.shape_of(f"{block}.ffn.key.weight")[0]
        self.add_layer(f"{block}.ln2", f"{block}.ffn",
                       {"name": "channel_mix", "hidden_dim": hidden} | place, CHANNEL_MIX)

    def run(self):
        self.take("embedding.token.weight", "emb.weight")
        self.take_norm("embedding.norm", "blocks.0.ln0")
        for index in range(self.layers):
            self.add_block(index)
        self.take_norm("final_norm", "ln_out")
        self.take("head.weight", "head.weight")
        self.taken.append(("head.bias", [self.vocabulary], bytes(4 * self.vocabulary)))
        if self.left:
            raise Failure(f"nobody knows tensor {sorted(self.left)[0]}")
        return {
            "format": "tarn-model", "format_version": 1,
            "modality": "bytes" if self.vocabulary == 256 else "tokens",
            "vocabulary": self.vocabulary, "start_token": 0, "model_dim": self.width,
            "max_tokens": 0, "position": {"kind": "none"}, "embedding_norm": True,
            "norm": {"kind": "layer_norm", "placement": "pre", "eps": 1e-5, "final": True},
            "layers": self.groups,
            "head": {"kind": "categorical", "classes": self.vocabulary}}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, metavar="MODEL.bin")
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--logits", type=pathlib.Path, metavar="LOGITS.bin")
    options = parser.parse_args()
    try:
        converter = Converter(*read_file(options.model))
        config = converter.run()
        logits = options.logits.read_bytes() if options.logits else None
        if logits is not None and len(logits) != 4 * converter.vocabulary:
            raise Failure(f"{options.logits} has {len(logits)} bytes, wanted four per symbol")
    except (Failure, OSError, UnicodeDecodeError) as error:
        sys.exit(f"{options.model}: {error}")
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (options.folder / "model.safetensors").write_bytes(safetensors(converter.taken))
    if logits is not None:
        expected = safetensors([("logits", [converter.vocabulary], logits)])
        (options.folder / "expected.safetensors").write_bytes(expected)
    print(f"{options.folder}: {len(converter.groups)} layers, {len(converter.taken)} tensors")


if __name__ == "__main__":
    main()
