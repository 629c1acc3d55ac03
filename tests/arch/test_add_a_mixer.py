#!/usr/bin/env python3
"""Executes docs/how-to-add-a-mixer.md: in a copy of the sources, scripts/new_mixer makes a mechanism
from the template, and it builds and passes the whole conformance suite with no other change.

The copy and its build stay in the build folder, so that later runs only compile what changed."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import arch

NAME = "copied_from_the_template"
FOLDERS = ("cmake", "configs", "scripts", "src", "tests")
# Enough of these must run for the new mechanism, or the suite has lost sight of it.
WANTED_TESTS = 20


def run(command, **options):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False,
                            **options)
    if result.returncode != 0:
        print(result.stdout[-6000:] + result.stderr[-3000:])
        sys.exit(f"failed with exit status {result.returncode}: {' '.join(map(str, command))}")
    return result.stdout


def copy_if_changed(origin, target):
    """Keeps the old file, and so its time stamp, where the content is the same."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_bytes() != origin.read_bytes():
        shutil.copy(origin, target)


def copy_tree(source, target):
    wanted = {pathlib.Path("CMakeLists.txt")}
    for folder in FOLDERS:
        wanted |= {p.relative_to(source) for p in (source / folder).rglob("*")
                   if p.is_file() and "__pycache__" not in p.parts}
    shutil.rmtree(target / "src/mixers" / NAME, ignore_errors=True)
    for folder in FOLDERS:
        for path in list((target / folder).rglob("*")):
            if path.is_file() and path.relative_to(target) not in wanted:
                path.unlink()
    for path in wanted:
        copy_if_changed(source / path, target / path)


def build_flags(build):
    """The compiler of the build under test, and its sanitizers. Its SIMD targets are tested
    there: here the baseline target and little optimisation keep a first build short."""
    cache = (build / "CMakeCache.txt").read_text()
    flags = ["-DTARN_TRAIN=OFF", "-DCMAKE_BUILD_TYPE=Sanitize",
             "-DCMAKE_CXX_FLAGS=-DHWY_COMPILE_ONLY_STATIC -g0"]
    for variable in ("CMAKE_CXX_COMPILER", "CMAKE_TOOLCHAIN_FILE", "TARN_SANITIZE", "TARN_WERROR",
                     "CMAKE_CXX_COMPILER_LAUNCHER"):
        value = re.search(rf"^{variable}:\w+=(.+)$", cache, re.MULTILINE)
        if value:
            flags.append(f"-D{variable}={value.group(1)}")
    return flags


def main():
    options = arch.arguments(__doc__)
    place = options.build / "add_a_mixer"
    tree, build = place / "tree", place / "build"
    copy_tree(options.source, tree)
    run([tree / "scripts/new_mixer", NAME])
    again = subprocess.run([tree / "scripts/new_mixer", NAME], capture_output=True, check=False)
    problems = [] if again.returncode == 2 else ["new_mixer accepted a name that is taken"]

    run(["cmake", "-S", tree, "-B", build, "-G", "Ninja", *build_flags(options.build)])
    run(["cmake", "--build", build, "--target", "test_mixers", "--parallel", os.cpu_count()])
    output = run([build / "test_mixers", f"--gtest_filter=*{NAME}*"])
    print(output[-600:])
    passed = re.search(r"\[  PASSED  \] (\d+) tests?\.", output)
    if not passed or int(passed.group(1)) < WANTED_TESTS:
        problems.append(f"wanted at least {WANTED_TESTS} tests of {NAME} to pass: {output[-300:]}")
    arch.finish(problems, 1)


if __name__ == "__main__":
    main()
