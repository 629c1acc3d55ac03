#!/usr/bin/env python3
"""The experiments of experiments/transformers_are_rnns run from training to table, curve and page in their
smallest form; finished results are skipped; what the folders hold is a page with a verdict per claim."""

import json
import random
import shutil
import subprocess
import sys

import e2e

FOLDER = "experiments/transformers_are_rnns"
VERDICTS = ("holds", "holds partly", "does not hold", "not measured yet")


def cifar10(folder):
    """Batches of six random pictures each, in the format of the data set."""
    folder.mkdir()
    rng = random.Random(1)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(b"".join(bytes([i]) + rng.randbytes(3072) for i in range(6)))
    return folder


def run(suite, name, *words):
    """Runs the experiment; the folder with its results."""
    source, out = suite.source / FOLDER / name, suite.folder / name
    out.mkdir(exist_ok=True)
    shutil.copy(source / "README.md", out)
    result = subprocess.run([sys.executable, source / "run", "--smoke", "--tarn", suite.tarn, "--results", out,
                             "--work", suite.folder / "work", *map(str, words)],
                            capture_output=True, text=True, check=False)
    suite.expect(result.returncode == 0, f"{name} {words}: exit {result.returncode}: {result.stderr[-500:]}")
    return out, result.stdout


def checked(suite, name, *words, files):
    out, _ = run(suite, name, *words)
    have = {path.name for path in (out / "results").glob("*.json")}
    suite.expect(set(files) <= have, f"{name}: results {sorted(have)}, wanted {files}")
    verdict = json.loads((out / "results/verdict.json").read_text())
    suite.expect(verdict["verdict"] in VERDICTS, f"{name}: {verdict}")
    suite.expect("| --- |" in (out / "README.md").read_text(), f"{name}: no table in README.md")
    page = suite.json("report", out, "--figures", out / "drawn")
    suite.expect(page["bytes"] > 2000, f"{name}: {page}")
    before = {path: path.stat().st_mtime_ns for path in (out / "results").glob("*.json") if path.name in files}
    run(suite, name, *words)
    suite.expect(all(path.stat().st_mtime_ns == time for path, time in before.items()),
                 f"{name}: finished results were measured again")
    return out


def trained(suite):
    out = checked(suite, "copy", "--seeds", 1, 2, "--only", "softmax", "linear",
                  files=["softmax-1.json", "softmax-2.json", "linear-1.json", "linear-2.json"])
    sizes = [json.loads(path.read_text())["parameters"] for path in out.glob("results/[ls]*.json")]
    suite.expect(max(sizes) < 1.01 * min(sizes), f"copy: parameters {sizes}")
    run(suite, "copy", "--time", "--only", "softmax", "linear")
    seconds = json.loads((out / "results/seconds_per_update.json").read_text())["seconds"]
    suite.expect(set(seconds) == {"softmax", "linear"}, f"copy: times {seconds}")
    suite.expect("against time" in (out / "report.json").read_text(), "copy: no curve against time")
    checked(suite, "mnist", "--only", "linear", "hybrid", files=["linear.json", "hybrid.json"])
    out, _ = run(suite, "mnist", "--mechanisms", "--only", "linear", "hybrid")
    rows = json.loads((out / "results/speed_of_mechanisms.json").read_text())["rows"]
    suite.expect([(row["model"], row["mode"]) for row in rows] ==
                 [("linear", "recurrent"), ("hybrid", "recurrent"), ("hybrid", "parallel")], f"mnist: {rows}")
    suite.expect("Speed of every mechanism" in (out / "README.md").read_text(), "mnist: no table of the mechanisms' speed")
    checked(suite, "cifar10", "--data", cifar10(suite.folder / "pictures"), "--only", "linear",
            files=["linear.json"])
    text = suite.write("text.txt", "".join(random.Random(2).choice("abcde \n") for _ in range(40_000)))
    checked(suite, "text", "--data", suite.folder / text, "--only", "gated delta rule", "RWKV-7",
            files=["gated-delta-rule.json", "RWKV-7.json"])


def page(suite):
    """The committed folder builds into one page; its summary has every chapter."""
    document = suite.json("report", suite.source / FOLDER, "--out", "page.html")
    suite.expect(document["bytes"] > 5000, f"{document}")
    text = (suite.folder / "page.html").read_text()
    summary = (suite.source / "docs/reproduction.md").read_text()
    for claim in (suite.source / FOLDER).glob("*/claim.json"):
        title = json.loads(claim.read_text())["title"]
        suite.expect(title in text, f"no chapter on {title} in the page")
        suite.expect(f"## {title}: " in summary, f"no chapter on {title} in docs/reproduction.md")


def serving(suite):
    out = suite.folder / "serving"
    result = subprocess.run([sys.executable, suite.source / "experiments/serving/run", "--smoke", "--tarn", suite.tarn,
                             "--results", out], capture_output=True, text=True, check=False)
    suite.expect(result.returncode == 0, f"serving: exit {result.returncode}: {result.stderr[-500:]}")
    rows = {path.stem: json.loads(path.read_text())["result"] for path in (out / "results").glob("*.json")}
    suite.expect(len(rows) == 7, f"serving: {sorted(rows)}")
    waited = rows.get("a-server-of-text-bytes-5-064-streams-of-which-64-run", {})
    suite.expect((waited.get("requests"), waited.get("wrong"), waited.get("errors")) == (40, 0, {}), f"serving: {waited}")
    for name in ("mnist-linear", "mnist-linear-in-SQLite", "text-bytes"):
        suite.expect(rows.get(name, {}).get("different") == 0, f"serving: {name}: {rows.get(name)}")


def main():
    suite = e2e.Suite(__doc__)
    checked(suite, "scaling", "--only", "linear", "softmax", files=["linear.json", "softmax.json"])
    checked(suite, "crossover", "--only", "16 x 16", files=["16-x-16.json"])
    refused = subprocess.run([sys.executable, suite.source / FOLDER / "crossover/run", "--smoke"],
                             capture_output=True, text=True, check=False)
    suite.expect(refused.returncode == 2 and "--results" in refused.stderr, f"smoke results: {refused}")
    serving(suite)
    if suite.tarn.with_name("tarn-train").exists():
        trained(suite)
    page(suite)
    suite.finish()


if __name__ == "__main__":
    main()
