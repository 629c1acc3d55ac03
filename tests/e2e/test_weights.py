#!/usr/bin/env python3
"""Models in bf16 and int8: as good as in f32 up to rounding, same pixels whatever the batch."""

import e2e


def quality(suite, model, data):
    bits = {}
    for weights in ("f32", "bf16", "int8"):
        bits[weights] = suite.json("eval", model, "--data", data, "--split", "test", "--limit",
                                   "20", "--weights", weights)["bits_per_dim"]
    for weights, most in (("bf16", 0.005), ("int8", 0.05)):
        difference = abs(bits[weights] - bits["f32"])
        suite.expect(0 < difference < most,
                     f"{weights} changes bits/dim by {difference}, wanted above 0, below {most}")


def same_pixels(suite, model, weights):
    pixels = []
    for extra in (["--batch", "30", "--threads", "2"], ["--batch", "1"], ["--batch", "7"]):
        suite.json("generate", model, "-n", "30", "--seed", "1", "--length", "100", "--weights",
                   weights, *extra, "--out", "sheet.png")
        pixels.append((suite.folder / "sheet.png").read_bytes())
    suite.expect(len(set(pixels)) == 1, f"{weights}: pixels depend on batch or threads")
    return pixels[0]


def recurrent_matrices(suite):
    """The matrix of a recurrent cell is held once, and in bf16 with reduced weights."""
    for name, gates in (("lstm", 4), ("gru", 3)):
        document = e2e.config([{"name": name, "hidden_dim": 256}], modality="bytes", max_tokens=64)
        suite.write("cell.json", document)
        suite.json("init", "cell.json", name)
        matrix = gates * 256 * 256  # by far the most of the parameters
        for weights, size in (("f32", 4), ("bf16", 2), ("int8", 2)):
            info = suite.json("info", name, "--weights", weights)
            least = size * matrix
            suite.expect(least < info["weight_bytes"] < least + 4 * info["parameters"] - 3 * matrix,
                         f"{name} in {weights}: {info['weight_bytes']} bytes of {info['parameters']}")
        texts = [suite.json("generate", name, "-n", "3", "--weights", "bf16", "--threads", threads,
                            "--batch", batch)["texts"] for threads, batch in ((1, 3), (2, 1))]
        suite.expect(texts[0] == texts[1], f"{name}: bf16 texts depend on batch or threads")
        suite.expect(texts[0] != suite.json("generate", name, "-n", "3")["texts"],
                     f"{name}: bf16 draws what f32 draws")


def main():
    suite = e2e.Suite(__doc__)
    model = suite.source / "models/mnist-linear"
    quality(suite, model, suite.source / "data/mnist")
    sheets = {same_pixels(suite, model, weights) for weights in ("f32", "bf16", "int8")}
    suite.expect(len(sheets) > 1, "the formats draw the same pixels: --weights does nothing")
    sizes = [suite.json("info", model, "--weights", weights)["weight_bytes"]
             for weights in ("f32", "bf16", "int8")]
    suite.expect(sizes[0] > sizes[1] > sizes[2], f"weight_bytes do not shrink: {sizes}")
    recurrent_matrices(suite)
    suite.refuse("onednn with bf16", "eval", model, "--data", suite.source / "data/mnist",
                 "--gemm", "onednn", "--weights", "bf16", says=("--gemm", "packed", "onednn"))
    suite.refuse("unknown weights", "info", model, "--weights", "int3", says=("--weights", "int8"))
    suite.finish()


if __name__ == "__main__":
    main()
