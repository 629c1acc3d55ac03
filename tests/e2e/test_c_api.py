#!/usr/bin/env python3
"""libtarn as a C program sees it: installed header and library, the example built and run, and no
symbol but its own."""

import os
import shutil
import subprocess

import e2e


def command(suite, name, *words, **environment):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                            errors="replace", timeout=300, cwd=suite.folder, check=False,
                            env=os.environ | environment)
    suite.expect(result.returncode == 0, f"{name}: exit {result.returncode}: {result.stdout[-300:]}"
                                         f"{result.stderr[-600:]}")
    return result


def main():
    suite = e2e.Suite(__doc__)
    prefix = suite.folder / "installed"
    command(suite, "install", "cmake", "--install", suite.tarn.parent, "--prefix", prefix,
            "--component", "library")
    library = next(prefix.glob("lib*/**/libtarn.so"), None)
    suite.expect(library is not None, "libtarn.so is not installed")
    suite.expect((prefix / "include" / "tarn.h").exists(), "tarn.h is not installed")
    if suite.problems:
        suite.finish()

    symbols = command(suite, "nm", "nm", "-D", "--defined-only", library).stdout.split("\n")
    names = [line.split()[-1].split("@")[0] for line in symbols if line]
    declared = (prefix / "include" / "tarn.h").read_text()
    suite.expect("tarn_session_generate" in names, f"symbols: {names[:5]}")
    for name in names:
        suite.expect(name in declared or name == "TARN_1", f"libtarn.so exports {name}")

    suite.model("numbers", [e2e.LINEAR])
    suite.model("text", [e2e.SOFTMAX, e2e.LINEAR], modality="bytes", max_tokens=400)
    source = suite.source / "examples" / "c" / "main.c"
    compiler = os.environ.get("CC") or shutil.which("cc")
    # A sanitizer's runtime must be in the program, and that needs the compiler of the library.
    if compiler and not suite.sanitized:
        command(suite, "compile", compiler, "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
                "-I", prefix / "include", source, "-L", library.parent, "-ltarn", "-o", "example")
        path = {"LD_LIBRARY_PATH": str(library.parent)}
        example = suite.folder / "example"
        run = command(suite, "example", example, "text", "a.snapshot", "Once upon a time", **path)
        suite.expect("resumed at input 56, state of" in run.stdout, f"printed {run.stdout[-200:]!r}")
        command(suite, "example without prompt", example, "numbers", "b.snapshot", **path)
        described = suite.json("state", "show", "a.snapshot")
        suite.expect(described["token_count"] == 56, f"the snapshot holds {described}")
        refused = subprocess.run([example, "text", "c.snapshot", "x" * 401], capture_output=True,
                                 text=True, cwd=suite.folder, check=False, env=os.environ | path)
        suite.expect(refused.returncode == 1 and "invalid_argument" in refused.stderr
                     and "400" in refused.stderr, f"a long prompt: {refused.stderr!r}")
    suite.finish()


if __name__ == "__main__":
    main()
