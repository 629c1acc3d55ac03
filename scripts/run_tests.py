#!/usr/bin/env python3
"""Runs the tests of a built preset with ctest and ends with "N passed, N failed".

A test counts as failed when ctest could not start it, too. Skipped tests are named before the last
line and count as neither. Exit status: 0 when something passed and nothing failed.
"""

import argparse
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", help="folder below build/")
    parser.add_argument("--label", help="only tests with this label (a regular expression)")
    parser.add_argument("--jobs", default="1")
    options = parser.parse_args()

    build = pathlib.Path(__file__).resolve().parent.parent / "build" / options.preset
    junit = build / "tests.xml"
    junit.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", str(build), "--output-on-failure", "--parallel",
               options.jobs, "--output-junit", str(junit)]
    if options.label:
        command += ["--label-regex", f"^{options.label}$"]
    status = subprocess.run(command, check=False).returncode

    if not junit.exists():
        sys.exit(f"run_tests: ctest wrote no result to {junit}")
    passed, failed, skipped = 0, 0, []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        outcome, skip = case.get("status"), case.find("skipped")
        if outcome == "run" and case.find("failure") is None:
            passed += 1
        elif outcome == "disabled" or (skip is not None and skip.get("message", "").startswith("SKIP_")):
            skipped.append(case.get("name"))
        else:
            failed += 1
    if failed == 0 and status != 0:
        sys.exit(f"run_tests: ctest failed with exit status {status}, but names no failed test")
    for name in skipped:
        print(f"not run: {name}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and passed > 0 else 1)


if __name__ == "__main__":
    main()
