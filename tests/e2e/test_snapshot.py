#!/usr/bin/env python3
"""A session saved in one process and resumed in another continues as if it had never stopped, and
no damaged snapshot is ever accepted."""

import concurrent.futures
import os

import e2e

HYBRID = [e2e.LINEAR, e2e.SOFTMAX]


def resumes_exactly(suite, name, model, prompt):
    sampler = ["--seed", "7", "--temperature", "0.9"]
    whole = suite.json("state", "save", model, *prompt, *sampler, "-n", "40", "--out", "whole.bin")
    first = suite.json("state", "save", model, *prompt, *sampler, "-n", "17", "--out", "half.bin")
    second = suite.json("state", "resume", model, "half.bin", "-n", "23", "--out", "again.bin")
    suite.expect(first["tokens"] + second["tokens"] == whole["tokens"],
                 f"{name}: resumed tokens differ from those of an uninterrupted run")
    suite.expect(second["evaluated_inputs"] == 23,
                 f"{name}: evaluated {second['evaluated_inputs']} inputs for 23 tokens")
    whole_bytes = (suite.folder / "whole.bin").read_bytes()
    again_bytes = (suite.folder / "again.bin").read_bytes()
    suite.expect(whole_bytes == again_bytes, f"{name}: the final snapshots differ")
    nothing = suite.json("state", "resume", model, "half.bin", "-n", "0", "--out", "same.bin")
    suite.expect(nothing["evaluated_inputs"] == 0, f"{name}: resuming alone evaluates inputs")
    suite.expect((suite.folder / "same.bin").read_bytes() ==
                 (suite.folder / "half.bin").read_bytes(), f"{name}: saving again changes bytes")
    for threads in (1, 2):
        other = suite.json("state", "resume", model, "half.bin", "-n", "23", "--threads", threads)
        suite.expect(other["tokens"] == second["tokens"], f"{name}: tokens depend on threads")
    info = suite.json("state", "show", "half.bin")
    suite.expect(info["token_count"] == first["token_count"], f"{name}: show miscounts tokens")


def refuses_damage(suite, model):
    """Every truncation and every flipped byte of a small snapshot."""
    suite.json("state", "save", model, "-n", "3", "--out", "small.bin")
    good = (suite.folder / "small.bin").read_bytes()
    damaged = [(f"cut to {size} bytes", good[:size]) for size in range(len(good))]
    damaged += [(f"byte {at} flipped", good[:at] + bytes([good[at] ^ mask]) + good[at + 1:])
                for at in range(len(good)) for mask in (0x01, 0x80)]
    damaged.append(("a byte more", good + b"\0"))

    def attempt(item):
        index, (name, content) = item
        path = suite.write(f"damaged/{index}.bin", content)
        # Most are refused without a model; now and then the whole way is tried.
        command = (["state", "resume", model, path, "-n", "1"] if index % 16 == 0
                   else ["state", "show", path])
        suite.refuse(f"snapshot {name}", *command)
        path.unlink()

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(attempt, enumerate(damaged)))
    after = suite.json("state", "resume", model, "small.bin", "-n", "2")
    suite.expect(len(after["tokens"]) == 2, "the undamaged snapshot still resumes")


def refuses_other_models(suite, model):
    suite.json("state", "save", model, "-n", "3", "--out", "mine.bin")
    same_shape = suite.model("other-weights", [e2e.LINEAR], seed=2, modality="bytes", max_tokens=64)
    other_kind = suite.model("other-kind", [e2e.SOFTMAX], modality="bytes", max_tokens=64)
    for other in (same_shape, other_kind):
        suite.refuse(f"snapshot of another model than {other.name}", "state", "resume", other,
                     "mine.bin", "-n", "1")


def main():
    suite = e2e.Suite(__doc__)
    hybrid = suite.model("hybrid", HYBRID, modality="bytes", max_tokens=64)
    tiny = suite.model("tiny", [{"name": "linear_attention", "num_heads": 1, "key_dim": 2}],
                       width=4, height=4, model_dim=2)
    image = suite.model("image", HYBRID, width=8, height=8)
    linear = suite.model("linear", [e2e.LINEAR], modality="bytes", max_tokens=64)
    resumes_exactly(suite, "bytes", hybrid, ["--prompt", "gr\u00fc\u00dfe"])
    resumes_exactly(suite, "no prompt", hybrid, [])
    resumes_exactly(suite, "image", image, ["--tokens", "1,2,3"])
    refuses_other_models(suite, linear)
    refuses_damage(suite, tiny)
    suite.finish()


if __name__ == "__main__":
    main()
