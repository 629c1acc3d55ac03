"""Kills a process with signal 9 again and again while it saves: nothing acknowledged may be lost,
nothing torn may be found."""

import argparse
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import databases


def numbers(lines, word):
    return [int(line.split()[1]) for line in lines if line.startswith(word + " ")]


def kill_once(program, store, delay):
    """Runs a writer for a while; (number it started from, numbers of acknowledged saves)."""
    writer = subprocess.Popen([program, "write", store, "victim"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    first = writer.stdout.readline()  # the delay counts from when the store is open
    time.sleep(delay)
    writer.kill()
    rest, errors = writer.communicate()
    if errors or writer.returncode != -9:
        sys.exit(f"{store}: the writer failed by itself: {errors}")
    return numbers([first], "started")[0], numbers(rest.splitlines(), "saved")


def kill_writers(program, store, kills, chance):
    """Kills that many writers of one store, one after another; the line that tells of it."""
    acknowledged, unheard = 0, 0
    for index in range(kills):
        started, saved = kill_once(program, store, chance.uniform(0, 0.06))
        if started < acknowledged:
            sys.exit(f"{store}: kill {index}: save {acknowledged} is lost, found {started}")
        unheard += started - acknowledged
        acknowledged = max([started] + saved)
    check = subprocess.run([program, "check", store, "victim"], capture_output=True,
                           text=True, check=False)
    if check.returncode != 0:
        sys.exit(f"{store}: after {kills} kills: {check.stderr}")
    found = numbers(check.stdout.splitlines(), "found")[0]
    if found < acknowledged or found > acknowledged + 1:
        sys.exit(f"{store}: acknowledged {acknowledged}, found {found}")
    if acknowledged == 0:
        sys.exit(f"{store}: no save was ever acknowledged, so nothing was tested")
    return (f"{store.split(':')[0]}: {kills} kills, {acknowledged} saves, 0 lost, 0 torn, "
            f"{unheard} committed but not heard of")


def run(kills):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    program = options.build.resolve() / "session_writer"
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="tarn-kill-") as folder:
        for store in (f"dir:{folder}/sessions", f"sqlite:{folder}/sessions.db"):
            print(kill_writers(program, store, kills, chance), flush=True)
    for database in (databases.postgres, databases.redis):
        with database() as store:
            if store is None:
                print(f"{database.__name__}: NOT TESTED, its programs are not installed", flush=True)
            else:
                print(kill_writers(program, store, kills, chance), flush=True)
