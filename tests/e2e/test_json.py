#!/usr/bin/env python3
"""With --json stdout holds one JSON document or JSON lines and nothing else, errors included;
without it there is text for people; commands start at once."""

import json
import shutil
import signal
import subprocess
import time

import e2e


def document(suite, name, arguments):
    result = suite.run(*arguments, "--json")
    suite.expect(result.returncode == 0, f"{name}: exit {result.returncode}: {result.stderr}")
    try:
        return json.loads(result.stdout)
    except json.JSONDecodeError as error:
        suite.expect(False, f"{name}: stdout is no JSON document: {error}: {result.stdout[:200]!r}")
        return {}


def lines(suite, name, arguments, **environment):
    result = suite.run(*arguments, "--json", **environment)
    suite.expect(result.returncode == 0, f"{name}: exit {result.returncode}: {result.stderr}")
    try:
        return [json.loads(line) for line in result.stdout.splitlines()]
    except json.JSONDecodeError as error:
        suite.expect(False, f"{name}: not JSON lines: {error}: {result.stdout[:200]!r}")
        return []


def split(suite):
    """Text is scored on what the model's training held back, as its training.json says."""
    suite.write("words", "It was the best of times. " * 4000)  # 104,000 bytes
    words = ["--data", "words", "--length", "100"]
    own = document(suite, "eval text", ["eval", suite.source / "models/text-bytes", *words])
    suite.expect((own.get("valid_fraction"), own.get("test_fraction"), own.get("count")) == (0.02, 0.02, 20), f"eval gave {own}")
    bare = suite.folder / "bare"
    shutil.copytree(suite.source / "models/text-bytes", bare)
    (bare / "training.json").unlink()
    other = document(suite, "eval text", ["eval", bare, *words])
    suite.expect((other.get("test_fraction"), other.get("count")) == (0.05, 52), f"eval gave {other}")
    held = document(suite, "eval text", ["eval", suite.source / "models/text-bytes", *words, "--split", "valid"])
    suite.expect(held.get("count") == 20, f"eval gave {held}")
    (bare / "training.json").write_text('{"data": {"kind": "text_bytes", "length": 8, "test_fraction": 7}}')
    suite.refuse("a broken training.json", "eval", bare, *words, says=["training.json", "test_fraction"])


def results(suite, image, text):
    data = suite.source / "data/mnist"
    names = {mixer["name"] for mixer in document(suite, "mixers", ["mixers"])}
    suite.expect({"linear_attention", "softmax_attention"} <= names, f"mixers lists {names}")
    doctor = document(suite, "doctor", ["doctor"])
    for key in ("version", "compiler", "cpu", "simd_compiled", "simd_chosen", "amx_bf16", "onednn",
                "libtorch", "threads"):
        suite.expect(key in doctor, f"doctor lacks {key}")
    document(suite, "info", ["info", image])
    document(suite, "generate", ["generate", image, "-n", "2", "--out", "x.png"])
    evaluation = document(suite, "eval", ["eval", image, "--data", data, "--limit", "3"])
    suite.expect(evaluation.get("count") == 3 and evaluation.get("bits_per_dim", 0) > 0,
                 f"eval gave {evaluation}")
    split(suite)
    document(suite, "generate text", ["generate", text, "-n", "2"])
    document(suite, "state save", ["state", "save", text, "-n", "3", "--out", "s.bin"])
    document(suite, "state show", ["state", "show", "s.bin"])
    document(suite, "state resume", ["state", "resume", text, "s.bin", "-n", "3"])
    document(suite, "init", ["init", "image.json", "fresh"])
    forms = document(suite, "check forms", ["check", "forms", text])
    suite.expect(forms.get("passed") is True, f"check forms: {forms}")
    generation = document(suite, "bench generate", [
        "bench", "generate", "--models", f"a={text}", "--batch", "1,2", "--repeats", "1"])
    suite.expect(len(generation.get("rows", [])) == 2, "a growing state is also timed without cache")
    document(suite, "bench crossover", ["bench", "crossover", "--batch", "1", "--heads", "1",
                                        "--key-dim", "4", "--value-dim", "4", "--repeats", "1"])
    suite.write("results/table.json", {"rows": [{"name": "a", "speed": 1.5}]})
    document(suite, "report", ["report", "results"])


def json_lines(suite):
    # AddressSanitizer keeps freed memory for a while, which would count as growth.
    freed = "quarantine_size_mb=0:thread_local_quarantine_size_kb=0"
    long = lines(suite, "check long", ["check", "long", "--tokens", "3000"], ASAN_OPTIONS=freed)
    suite.expect(long and all(line["passed"] for line in long), f"check long: {long}")
    some = lines(suite, "check long of two", ["check", "long", "--tokens", "2000", "--mixer",
                                              "retention,gru"], ASAN_OPTIONS=freed)
    suite.expect([line["mixer"] for line in some] == ["retention", "gru"], f"two mixers: {some}")
    bench = lines(suite, "bench attention", [
        "bench", "attention", "-n", "5,33", "--heads", "2", "--key-dim", "3", "--value-dim", "5",
        "--form", "forward,backward,forward_backward,step", "--repeats", "1", "--threads", "1"])
    wanted = {"mixer", "form", "dtype", "threads", "batch", "heads", "key_dim", "value_dim", "n",
              "ms_median", "ms_min", "ms_max", "peak_extra_bytes"}
    suite.expect(bench and all(wanted <= set(line) for line in bench), "bench lines lack keys")
    suite.expect(len({(line["mixer"], line["form"], line["n"]) for line in bench}) == len(bench),
                 "every case comes once")


def errors(suite, image):
    for name, arguments, code in (
            ("usage", ["generate", image, "-n", "-1"], "invalid_argument"),
            ("file", ["info", "nowhere"], "not_found"),
            ("corrupt", ["state", "show", image / "config.json"], "corrupt")):
        result = suite.run(*arguments, "--json")
        error = json.loads(result.stdout)["error"]
        suite.expect(result.returncode == 2, f"{name}: exit {result.returncode}")
        suite.expect(error["code"] == code, f"{name}: code {error['code']}, wanted {code}")
        suite.expect(error["message"] and "where" in error, f"{name}: {error}")
        suite.expect(len(result.stderr.splitlines()) == 1, f"{name}: stderr {result.stderr!r}")
    for flag, wanted in (("--json", True), ("--json=true", True), ("--json=maybe", True),
                         ("--json=false", False)):
        result = suite.run("generate", image, "-n", "-1", flag)
        suite.expect(result.stdout.startswith("{") == wanted,
                     f"usage error with {flag}: stdout {result.stdout!r}")


def mechanisms(suite):
    """tarn mixers NAME: the config keys, an example that a model accepts, the state and its letters."""
    for name in (mixer["name"] for mixer in document(suite, "mixers", ["mixers"])):
        one = document(suite, f"mixers {name}", ["mixers", name])
        keys = {key["key"]: key for key in one["config"]}
        required = [key for key, what in keys.items() if what["required"] and not what["depends"]]
        suite.expect(required and set(required) < set(one["example"]), f"{name}: {one['example']}")
        config = e2e.config([one["example"]], modality="bytes", max_tokens=16,
                            model_dim=one["example_model_dim"])
        suite.write("example.json", config)
        shutil.rmtree(suite.folder / "example", ignore_errors=True)
        document(suite, f"init of {name}", ["init", "example.json", "example"])
        states = document(suite, f"info of {name}", ["info", "example"])["layers"][0]["state"]
        suite.expect(states == one["example_state"], f"{name}: its state is {states}")
        bare = e2e.config([{"name": name}])
        suite.write("bare.json", bare)
        suite.refuse(f"{name} without keys", "init", "bare.json", "bare", says=required)
        text = suite.run("mixers", name).stdout
        suite.expect(all(key in text for key in keys), f"{name}: keys are missing in {text}")
    linear = document(suite, "mixers linear", ["mixers", "linear_attention"])
    keys = {key["key"]: key for key in linear["config"]}
    suite.expect(keys["num_heads"] == {"key": "num_heads", "type": "integer", "required": True,
                                       "min": 1, "max": 4096, "choices": [], "default": None,
                                       "depends": False}, f"num_heads: {keys['num_heads']}")
    suite.expect(keys["value_dim"]["default"] is None and keys["value_dim"]["depends"],
                 f"value_dim is key_dim unless given: {keys['value_dim']}")
    suite.expect(keys["feature_map"]["choices"][:2] == ["elu_plus_one", "relu"], "its choices")
    suite.expect(linear["legend"]["K"] == "key_dim", f"legend: {linear['legend']}")
    suite.refuse("no such mixer", "mixers", "perceptron", says=["perceptron", "linear_attention"])


def same_code(suite):
    """Where chunks are all there is, they are not compared with themselves."""
    suite.model("cell", [{"name": "lstm", "hidden_dim": 4}], modality="bytes", max_tokens=16)
    alone = document(suite, "forms of lstm", ["check", "forms", "cell"])
    suite.expect(alone["chunk_parallel"] is None and alone["passed"], f"lstm: {alone}")
    text = suite.run("check", "forms", "cell").stdout
    suite.expect("same code" in text, f"lstm: {text}")


def failed_checks(suite, text):
    """What a check found wrong stands beside its figures, and on stderr in one sentence."""
    for name, arguments, where in (
            ("forms", ["check", "forms", text, "--tolerance", "0"], str(text)),
            ("long", ["check", "long", "--tokens", "1000", "--tolerance", "0", "--mixer",
                      "linear_attention"], "linear_attention")):
        result = suite.run(*arguments, "--json")
        document = json.loads(result.stdout)
        suite.expect(result.returncode == 1, f"failed {name}: exit {result.returncode}, wanted 1")
        suite.expect(document["passed"] is False, f"failed {name}: {document}")
        error = document.get("error", {})
        suite.expect(error.get("code") == "check_failed" and error.get("where") == where and
                     "wanted" in error.get("message", ""), f"failed {name}: error {error}")
        suite.expect(len(result.stderr.splitlines()) == 1, f"failed {name}: {result.stderr!r}")


def text_for_people(suite, image):
    for arguments in (["mixers"], ["doctor"], ["info", image], ["--help"], ["--version"],
                      ["generate", "--help"], ["generate", image, "--out", "y.png"]):
        result = suite.run(*arguments)
        suite.expect(result.returncode == 0 and result.stdout.strip(),
                     f"{arguments[0]}: exit {result.returncode}, {result.stdout[:50]!r}")
        suite.expect(not result.stdout.lstrip().startswith(("{", "[")), f"{arguments[0]}: JSON")
    drawing = " ".join(suite.run("generate", "--help").stdout.split())
    for default in ("(default: 1, small images", "(default: as square as possible)"):
        suite.expect(default in drawing, f"generate --help lacks {default!r}")
    full = suite.run("mixers")
    if full.returncode == 0:
        with open("/dev/full", "w") as sink:
            status = subprocess.run([suite.tarn, "mixers"], stdout=sink, stderr=subprocess.PIPE,
                                    check=False)
        suite.expect(status.returncode == 1, "a full disk is a failure, not a success")


def trainer(suite):
    """tarn train starts the tarn-train beside it with the same words, or says how to build it."""
    folder = suite.folder / "bin"
    folder.mkdir()
    lone = folder / "tarn"
    shutil.copy(suite.tarn, lone)
    environment = {"PATH": "/usr/bin:/bin"}
    missing = subprocess.run([lone, "train", "x.json"], capture_output=True, text=True, check=False,
                             env=environment)
    suite.expect(missing.returncode == 1, f"without tarn-train: exit {missing.returncode}, wanted 1")
    suite.expect("cmake --build" in missing.stderr and len(missing.stderr.splitlines()) == 1,
                 f"without tarn-train: {missing.stderr!r}")
    fake = folder / "tarn-train"
    fake.write_text("#!/bin/sh\necho \"$@\"\nexit 7\n")
    fake.chmod(0o755)
    words = ["train", "x.json", "--set", "a=b", "--json", "--help", "-n", "-1"]
    found = subprocess.run([lone, *words], capture_output=True, text=True, check=False,
                           env=environment)
    suite.expect(found.stdout.split() == words and found.returncode == 7,
                 f"tarn train passes {found.stdout!r} and exit {found.returncode}")


def interrupt(suite, image):
    """A signal ends a long command soon, with one sentence and exit 1."""
    endless = {**e2e.config([e2e.LINEAR], modality="tokens", max_tokens=400_000),
               "position": {"kind": "none"}, "vocabulary": 5, "start_token": 4}
    endless["head"]["classes"] = 4
    suite.write("endless.json", endless)
    suite.run("init", "endless.json", "endless")
    for arguments, stop in (
            (["check", "long", "--tokens", "1000000000"], signal.SIGINT),
            (["check", "forms", "endless"], signal.SIGTERM),
            (["bench", "crossover", "--repeats", "1000", "--batch", "64"], signal.SIGTERM),
            (["bench", "generate", "--preset", "mnist-paper", "--weights", "int8", "--batch", "256",
              "--length", "1", "--repeats", "1"], signal.SIGINT),
            (["eval", image, "--data", suite.source / "data/mnist", "--batch", "65536",
              "--threads", "1", "--form", "step"], signal.SIGTERM)):
        name = " ".join(arguments[:2]) if arguments[0] != "eval" else "eval"
        process = subprocess.Popen([suite.tarn, *map(str, arguments)], cwd=suite.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1.5)
        process.send_signal(stop)
        start = time.monotonic()
        try:
            _, errors = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            suite.expect(False, f"{name}: a signal does not stop it")
            continue
        print(f"{name}: stopped after {time.monotonic() - start:.2f} s")
        suite.expect(process.returncode == 1, f"{name}: exit {process.returncode}, wanted 1")
        suite.expect(len(errors.splitlines()) == 1 and "stopped" in errors,
                     f"{name}: stderr {errors!r}")


def start_up(suite):
    times = []
    for _ in range(5):
        start = time.monotonic()
        suite.run("--version")
        times.append(time.monotonic() - start)
    # Milliseconds alone; the bound allows for sanitizers and a busy machine.
    suite.expect(min(times) < 1.0, f"starting takes {min(times):.3f} s")


def main():
    suite = e2e.Suite(__doc__)
    image = suite.model("image", [e2e.LINEAR])
    text = suite.model("text", [e2e.LINEAR, e2e.SOFTMAX], modality="bytes", max_tokens=32)
    results(suite, image, text)
    json_lines(suite)
    errors(suite, image)
    failed_checks(suite, text)
    mechanisms(suite)
    same_code(suite)
    text_for_people(suite, image)
    trainer(suite)
    interrupt(suite, image)
    start_up(suite)
    suite.finish()


if __name__ == "__main__":
    main()
