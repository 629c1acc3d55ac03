#!/usr/bin/env python3
"""What people type is where people look: every make target and every fuzzer, which has a corpus, is in
CONTRIBUTING.md, and the readme and the demo name the same files in the same commands."""

import re

import arch


def main():
    source = arch.arguments(__doc__).source
    problems = []
    makefile = (source / "Makefile").read_text()
    targets = re.search(r"^\.PHONY:((?:.*\\\n)*.*)", makefile, re.M)[1].replace("\\", " ").split()
    contributing = (source / "CONTRIBUTING.md").read_text()
    listed = set(re.findall(r"`make ([a-z-]+)`", contributing))
    problems += [f"CONTRIBUTING.md does not list make {name}" for name in targets
                 if name not in listed]
    problems += [f"CONTRIBUTING.md lists make {name}, which does not exist"
                 for name in sorted(listed - set(targets))]
    fuzzers = {path.stem for path in (source / "tests/fuzz").glob("fuzz_*.cpp")}
    told = set(re.findall(r"`(fuzz_\w+)`", contributing))
    problems += [f"CONTRIBUTING.md and tests/fuzz differ in {name}" for name in sorted(fuzzers ^ told)]
    problems += [f"tests/fuzz/corpus/{name} has no input" for name in sorted(fuzzers)
                 if not any((source / "tests/fuzz/corpus" / name).glob("*"))]
    snapshots = {name: set(re.findall(r"\bhalf\.\w+", (source / name).read_text()))
                 for name in ("README.md", "scripts/demo")}
    if snapshots["README.md"] != snapshots["scripts/demo"]:
        problems.append(f"the readme and the demo name different snapshots: {snapshots}")
    arch.finish(problems, len(targets) + len(fuzzers) + len(snapshots))


if __name__ == "__main__":
    main()
