"""tarn-train from outside: kills and interrupts at random moments lose nothing, bad input gives one
sentence and exit code 2."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

CONFIG = {
    "model": {
        "format": "tarn-model", "format_version": 1, "modality": "tokens", "vocabulary": 13,
        "start_token": 12, "model_dim": 16, "max_tokens": 33, "position": {"kind": "learned"},
        "norm": {"kind": "layer_norm", "placement": "pre"},
        "layers": [{"mixer": {"name": "linear_attention", "num_heads": 2, "key_dim": 8},
                    "mlp": {"hidden_dim": 32, "activation": "relu"}}],
        "head": {"kind": "categorical", "classes": 12}},
    "data": {"kind": "copy", "max_symbols": 16, "epoch_sequences": 64},
    "training": {"batch_size": 4, "updates": 4000,
                 "optimiser": {"kind": "adamw", "learning_rate": 0.003},
                 "evaluate_limit": 8, "log_every": 250, "checkpoint_every_seconds": 0.02}}


def start(program, config, out, *more):
    return subprocess.Popen([program, "train", config, "--out", out, "--threads", "1", *more],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def model_bytes(out):
    with open(os.path.join(out, "model.safetensors"), "rb") as file:
        return file.read()


def log_updates(out):
    with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    return [event["update"] for event in events if event["event"] == "train"]


def check_kills(program, config, folder, how, wanted):
    """Stops runs with signal `how` at random moments until one reaches the end."""
    out = os.path.join(folder, how.name)
    codes = []
    for attempt in range(13):
        process = start(program, config, out, "--resume")
        first_line = process.stderr.readline()  # training starts
        time.sleep(random.uniform(0.0, 0.3))
        if attempt < 12:
            process.send_signal(how)
        _, errors = process.communicate()
        codes.append(process.returncode)
        if process.returncode == 0:
            break
        assert process.returncode in (-how, 128 + how), (process.returncode, first_line, errors)
    assert codes[-1] == 0, codes
    assert len(codes) > 1, "no run was stopped"
    if how == signal.SIGINT:
        assert 130 in codes, codes
    assert model_bytes(out) == wanted, f"{how.name}: another model after {len(codes)} runs"
    updates = log_updates(out)
    assert updates == list(range(250, 4001, 250)), updates
    print(f"{how.name}: {len(codes)} runs, the same model")


def check_bad_input(program, config, folder):
    def write(name, content):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        return path

    out = os.path.join(folder, "bad")
    cases = [
        ["train"],
        ["train", config],
        ["train", os.path.join(folder, "missing.json"), "--out", out],
        ["train", write("empty.json", ""), "--out", out],
        ["train", write("list.json", "[]"), "--out", out],
        ["train", write("key.json", json.dumps({**CONFIG, "colour": 1})), "--out", out],
        ["train", config, "--out", out, "--threads", "0"],
        ["train", config, "--out", out, "--threads", "-1"],
        ["train", config, "--out", out, "--device", "cuda"],
        ["train", config, "--out", out, "--set", "training.updates"],
        ["train", config, "--out", out, "--set", "training.updates=-1"],
        ["train", config, "--out", out, "--set", "training.updates=1000000000000000000000"],
        ["train", config, "--out", out, "--set", "training.batch_size=65"],
        ["train", config, "--out", out, "--set", 'data={"kind":"mnist"}'],
        ["train", config, "--out", out, "--unknown"],
        ["train", config, "--out", out, "--data", folder],
        ["swim"],
    ]
    for words in cases:
        result = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        assert result.returncode == 2, (words, result.returncode, result.stderr)
        assert len(result.stderr.strip().splitlines()) == 1, (words, result.stderr)
    assert not os.path.exists(os.path.join(out, "checkpoint"))
    print(f"{len(cases)} bad inputs: exit code 2 and one sentence each")


def check_memory(program, config, folder):
    """An allocation that fails ends the program with one sentence."""
    with open(program, "rb") as file:
        if b"__asan_init" in file.read():  # reserves terabytes of addresses
            return
    wide = ["--set", "model.model_dim=4096", "--set", "model.layers[0].mlp.hidden_dim=65536"]
    result = subprocess.run(
        ["bash", "-c", 'ulimit -v 3000000; exec "$@"', "bash", program, "train", config, "--out",
         os.path.join(folder, "wide"), "--threads", "1", "--json", *wide],
        capture_output=True, text=True, check=False)
    error = json.loads(result.stdout.splitlines()[-1])["error"]
    assert result.returncode == 1, (result.returncode, result.stderr)
    assert error["code"] == "resource" and error["message"] == "not enough memory", error
    assert result.stderr.splitlines()[-1] == "tarn-train: not enough memory", result.stderr


def check_profiles(program, config):
    """Both print where a step's time goes; the parts are the whole, and nothing is written."""
    for words in (["train", config, "--profile", "4"],
                  ["bench", "--config", config, "--steps", "4", "--precision", "bf16"]):
        command = [program, *words, "--threads", "1"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "mlp backward" in text and "tokens/s" in text, text
        result = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True,
                                           check=True).stdout)
        assert result["steps"] == 4 and result["precision"] == ("f32" if words[0] == "train" else "bf16")
        times = result["ms_per_step"]
        assert 0 < times["min"] <= times["median"] <= times["max"], times
        tokens = result["batch"] * result["tokens"]
        assert abs(result["tokens_per_second"] * times["median"] / 1e3 / tokens - 1) < 1e-9, result
        assert abs(sum(part["share"] for part in result["parts"]) - 1) < 1e-9, result["parts"]
        assert result["parts"][-1]["name"] == "other", result["parts"]
    print("2 profiles: the parts are the whole step")


def check_ends(program, config):
    """Output that cannot be written, flags that do not go together, and a stop each say so."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run([program, "bench", "--config", config, "--steps", "1"], stdout=full,
                                stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1 and "cannot write" in result.stderr, result
    for words in (["train", config, "--profile", "1", "--out", "x"],
                  ["train", config, "--profile", "1", "--resume"]):
        result = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        assert result.returncode == 2 and "--profile" in result.stderr, result
    process = subprocess.Popen([program, "bench", "--config", config, "--steps", "1000000", "--json"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(2)  # past loading libtorch, after which signals are handled
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert process.returncode == 1 and "stopped" in errors, (process.returncode, errors)
    assert json.loads(output)["error"]["code"] == "cancelled", output


def check_help(program):
    """The program goes by its name, not by the path it was started with; --device has its choices."""
    for words in (["--help"], ["train", "--help"], ["bench", "--help"]):
        text = subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout
        assert "Usage: tarn-train " in text, text
    assert "cpu (default)" in text, text
    result = subprocess.run([program, "train", "--json=true"], capture_output=True, text=True,
                            check=False)
    assert json.loads(result.stdout)["error"]["code"] == "invalid_argument", result.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", required=True)
    parser.add_argument("--build", required=True)
    arguments = parser.parse_args()
    program = os.path.join(arguments.build, "tarn-train")
    if not os.path.exists(program):
        print("not tested: this build has no tarn-train (TARN_TRAIN=OFF)")
        return 0
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config.json")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(CONFIG, file)
        whole = os.path.join(folder, "whole")
        process = start(program, config, whole)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        wanted = model_bytes(whole)
        check_kills(program, config, folder, signal.SIGKILL, wanted)
        check_kills(program, config, folder, signal.SIGINT, wanted)
        check_bad_input(program, config, folder)
        check_memory(program, config, folder)
        check_profiles(program, config)
        check_ends(program, config)
        check_help(program)
    return 0


if __name__ == "__main__":
    sys.exit(main())
