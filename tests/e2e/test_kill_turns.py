#!/usr/bin/env python3
"""Kills a server with signal 9 in its turns, again and again: turns whose end was told are there, no
half turn is, and after the last restart one more token is what an uninterrupted run draws."""

import argparse
import pathlib
import random
import subprocess
import sys
import tempfile
import time

KILLS = 20


def run_once(program, store, delay):
    """Runs a writer for a while; (version it started from, {version: tokens} that it told)."""
    writer = subprocess.Popen([program, "write", store], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    first = writer.stdout.readline()  # the delay counts from when the session is there
    time.sleep(delay)
    writer.kill()
    rest, errors = writer.communicate()
    if errors or writer.returncode != -9:
        sys.exit(f"{store}: the writer failed by itself: {errors}")
    told = dict(line.split()[1:] for line in rest.splitlines())
    return int(first.split()[1]), {int(seq): tokens for seq, tokens in told.items()}


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[1]}: {done.stderr}")
    return done.stdout.splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    program = options.build.resolve() / "turn_writer"
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="tarn-kill-") as folder:
        for store in (f"dir:{folder}/sessions", f"sqlite:{folder}/sessions.db"):
            told, last = {}, 1
            for index in range(KILLS):
                started, turns = run_once(program, store, chance.uniform(0, 0.25))
                if started not in (last, last + 1):
                    sys.exit(f"{store}: kill {index}: told {last}, found {started}")
                told.update(turns)
                last = max([started, *turns])
            if len(told) < KILLS // 4:
                sys.exit(f"{store}: only {len(told)} turns were told, so little was tested")
            resumed = output(program, "resume", store)[0].split()
            if int(resumed[1]) not in (last, last + 1):
                sys.exit(f"{store}: told {last}, resumed {resumed[1]}")
            control = output(program, "control", resumed[1])
            if resumed != control.pop().split():
                sys.exit(f"{store}: {resumed} is not what an uninterrupted run does")
            wanted = {int(line.split()[1]): line.split()[2] for line in control}
            for seq, tokens in told.items():
                if wanted[seq] != tokens:
                    sys.exit(f"{store}: turn {seq} differs from an uninterrupted run")
            print(f"{store.split(':')[0]}: {KILLS} kills, {len(told)} turns told of "
                  f"{int(resumed[1]) - 1}, 0 lost, 0 different")


if __name__ == "__main__":
    main()
