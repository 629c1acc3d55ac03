#!/usr/bin/env python3
"""Recall: `tarn eval` on generated data says what counts, and experiments/recall runs from training to
figure in its smallest form."""

import json
import shutil
import subprocess
import sys

import e2e

DATA = {"kind": "recall", "keys": 4, "values": 3, "fillers": 2, "min_pairs": 2, "max_pairs": 3,
        "max_filler": 2}


def evaluation(suite):
    """On initial weights: the tokens that count follow from the data."""
    config = e2e.config([e2e.LINEAR], modality="tokens", max_tokens=16)
    config["vocabulary"], config["start_token"], config["head"]["classes"] = 11, 10, 10
    suite.write("model.json", config)
    suite.expect(suite.run("init", "model.json", "model").returncode == 0, "init of a token model")
    suite.write("data.json", DATA)
    suite.write("training.json", {"model": {}, "data": DATA, "training": {}})
    plain = suite.json("eval", "model", "--data", "data.json", "--set", "min_pairs=3", "--limit", "50")
    nested = suite.json("eval", "model", "--data", "training.json", "--set", "data.min_pairs=3",
                        "--limit", "50")
    for result in (plain, nested):
        suite.expect(result["count"] == 50 and result["tokens"] == 50 * 14, f"tokens: {result}")
        suite.expect(result["counted_tokens"] == 150, f"three answers a sequence: {result}")
        suite.expect(0 <= result["accuracy"] <= 1 and result["bits_per_token"] > 0, f"{result}")
    suite.expect(plain["accuracy"] == nested["accuracy"], "a data object is what a config holds")
    mixed = suite.json("eval", "model", "--data", "data.json", "--limit", "50")
    suite.expect(100 < mixed["counted_tokens"] < 150, f"two or three answers: {mixed}")
    suite.expect("accuracy" in suite.run("eval", "model", "--data", "data.json").stdout, "in the table")
    # 12 tokens a sequence are too many for a model of 16 with 5 pairs; other refusals name their cause.
    for name, words, says in (
            ("long", ["--data", "data.json", "--set", "max_filler=5"], "17 tokens"),
            ("pairs", ["--data", "data.json", "--set", "max_pairs=5"], "max_pairs"),
            ("key", ["--data", "data.json", "--set", "colour=1"], "colour"),
            ("set", ["--data", "data.json", "--set", "min_pairs"], "key=value"),
            ("folder data", ["--data", "training.json", "--set", "data.kind=mnist"], "data.json"),
            ("no file", ["--data", "nothing.json"], "nothing.json")):
        suite.refuse(name, "eval", "model", *words, says=() if name == "folder data" else (says,))
    suite.write("mnist.json", {"kind": "mnist"})
    suite.refuse("folder", "eval", "model", "--data", "mnist.json", says=("generated", "mnist.json"))
    image = suite.model("image", [e2e.LINEAR])
    suite.refuse("image", "eval", image, "--data", "data.json", "--set", "min_pairs=3", says=("--set",))


def experiment(suite):
    """Two mechanisms, three updates each: results, table and figure; finished runs are skipped."""
    source = suite.source / "experiments/recall"
    out = suite.folder / "recall"
    out.mkdir()
    shutil.copy(source / "README.md", out)
    command = [sys.executable, source / "run", "--tarn", suite.tarn, "--results", out, "--updates", "3",
               "--limit", "4", "--rates", "0.05", "--size", "2", "--only", "softmax_attention",
               "delta_rule"]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    suite.expect(first.returncode == 0, f"run: exit {first.returncode}: {first.stderr[-500:]}")
    files = sorted(path.name for path in out.glob("results/*.json"))
    suite.expect(files == ["delta_rule-2KiB.json", "softmax_attention-2KiB.json"], f"results: {files}")
    for file in files:
        result = json.loads((out / "results" / file).read_text())
        suite.expect(abs(result["parameters"] / 120_000 - 1) < 0.01, f"parameters: {result}")
        suite.expect(all(0 <= value <= 1 for value in result["recall"].values()), f"recall: {result}")
    table = (out / "README.md").read_text()
    suite.expect("| softmax_attention |" in table and "| retention |" not in table, "the table is new")
    suite.expect("</svg>" in (out / "recall-2KiB.svg").read_text(), "the figure")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    suite.expect(again.returncode == 0 and again.stdout == "", f"finished runs run again: {again}")


def main():
    suite = e2e.Suite(__doc__)
    evaluation(suite)
    if suite.tarn.with_name("tarn-train").exists():
        experiment(suite)
    suite.finish()


if __name__ == "__main__":
    main()
