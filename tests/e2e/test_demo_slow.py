#!/usr/bin/env python3
"""scripts/demo runs from end to end, in its short form and with untrained models, and its page holds
what it promises. Needs tarn-train beside tarn; without it there is nothing to run."""

import json
import subprocess
import sys

import e2e


def main():
    suite = e2e.Suite(__doc__)
    if not (suite.tarn.parent / "tarn-train").exists():
        print("skipped: this build has no tarn-train")
        sys.exit(0)
    for name in ("mnist-linear", "mnist-softmax"):
        config = suite.source / f"configs/{name}-cpu.json"
        made = suite.run("init", config, suite.folder / "models" / name)
        suite.expect(made.returncode == 0, f"init {name}: {made.stderr}")
    out = suite.folder / "demo"
    demo = subprocess.run([suite.source / "scripts/demo", "--quick", "--tarn", suite.tarn, "--out",
                           out, "--models", suite.folder / "models"],
                          capture_output=True, text=True, timeout=3000, check=False)
    suite.expect(demo.returncode == 0, f"demo: exit {demo.returncode}: {demo.stderr[-500:]}")
    if demo.returncode == 0:
        page = (out / "report.html").read_text()
        for part in ("linear, as RNN", "softmax, with cache", "softmax, no cache", "integrated",
                     "data:image/png;base64", "<svg", "bits/dim"):
            suite.expect(part in page, f"the page lacks {part!r}")
        suite.expect("http" not in page.replace("http-equiv", "").replace(
            "http://www.w3.org/2000/svg", ""), "the page refers to something outside itself")
        rows = json.loads((out / "bench.json").read_text())["rows"]
        suite.expect([row["integrated"] for row in rows] == [False, False, True],
                     f"the table has the methods {[row['method'] for row in rows]}")
        suite.expect(demo.stdout.count("  ") and "generate" in demo.stdout.splitlines()[-3],
                     "the demo ends with commands to try")
    suite.finish()


if __name__ == "__main__":
    main()
