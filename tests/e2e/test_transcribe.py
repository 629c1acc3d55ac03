#!/usr/bin/env python3
"""`tarn transcribe` writes the same down from whole files, chunks of any size and pipes, in memory that does
not grow, and refuses what is no sound; the spoken digits experiment runs in its smallest form."""

import json
import math
import random
import shutil
import struct
import subprocess
import sys

import e2e

RATE = 8000
LETTERS = ["a", "b", "c", "d", " ", "\u00fc"]
GATED = {"name": "gated_delta_rule", "num_heads": 2, "key_dim": 8, "value_dim": 8}


def model_config(normalisation, features=20, symbols=LETTERS, **frontend):
    config = e2e.config([GATED, e2e.LINEAR], modality="frames", max_tokens=0, model_dim=16)
    del config["vocabulary"], config["start_token"]
    config["position"] = {"kind": "none"}
    config["frames"] = {"features": features, "stack": 2}
    config["frontend"] = {"sample_rate": RATE, "mels": 20, "normalisation": {"kind": normalisation}} | frontend
    config["head"] = {"kind": "ctc", "classes": len(symbols) + 1, "symbols": symbols}
    return config


def wav(samples, kind="<h", channels=1, rate=RATE, promised=None):
    data = b"".join(struct.pack(kind, sample) for sample in samples)
    width = struct.calcsize(kind)
    size = len(data) if promised is None else promised
    return (b"RIFF" + struct.pack("<I", min(size + 36, 2**32 - 1)) + b"WAVEfmt "
            + struct.pack("<IHHIIHH", 16, 1 if kind == "<h" else 3, channels, rate, rate * channels * width,
                          channels * width, 8 * width) + b"data" + struct.pack("<I", size) + data)


def sound(seconds, seed):
    """Bursts of noise and tones."""
    rng = random.Random(seed)
    samples = []
    while len(samples) < seconds * RATE:
        loud, tone = rng.choice((20, 400, 6000)), rng.uniform(100, 3000)
        samples += [round(loud * (rng.gauss(0, 1) + 3 * math.sin(2 * math.pi * tone * i / RATE)) / 2) for i in range(900)]
    return [max(-32768, min(32767, sample)) for sample in samples[:int(seconds * RATE)]]


def streamed(suite, *words, content=None):
    """(text, last event) of transcribe --stream."""
    result = subprocess.run([suite.tarn, "transcribe", *map(str, words), "--stream", "--json"], input=content,
                            capture_output=True, cwd=suite.folder, check=False)
    if result.returncode != 0:
        sys.exit(f"transcribe {words}: exit {result.returncode}: {result.stderr.decode()}")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    suite.expect([event["event"] for event in events][-2:] == ["file", "done"], f"last events: {events[-2:]}")
    return "".join(event.get("text", "") for event in events), events[-1]


def transcripts(suite):
    suite.write("running.json", model_config("running", differences=1, features=40))
    suite.expect(suite.run("init", "running.json", "running").returncode == 0, "init with a front end")
    written = json.loads((suite.folder / "running/config.json").read_text())["frontend"]
    suite.expect(written["high_hz"] == 4000 and written["differences"] == 1
                 and written["normalisation"]["kind"] == "running", f"the folder has its front end: {written}")
    samples = sound(3.0, 1)
    suite.write("a.wav", wav(samples))
    suite.write("b.wav", wav(sound(1.3, 2)))
    whole = suite.json("transcribe", "running", "a.wav", "b.wav")
    text = whole["files"][0]["text"]
    suite.expect(len(set(text)) > 1 and len(text) > 5, f"the test's model hears something: {text!r}")
    suite.expect(abs(whole["audio_seconds"] - 4.3) < 1e-9 and whole["real_time_factor"] > 0
                 and abs(whole["real_time_factor"] - whole["seconds"] / 4.3) < 1e-9, f"figures: {whole}")
    for chunk in (1, 7, 10, 33, 100, 250, 60000):
        got, last = streamed(suite, "running", "a.wav", "--chunk", chunk)
        suite.expect(got == text, f"chunks of {chunk} ms: {got!r}, whole {text!r}")
        suite.expect(last["chunk_ms"] == chunk and last["stream"] and abs(last["audio_seconds"] - 3) < 1e-9, f"{last}")
    raw = struct.pack(f"<{len(samples)}h", *samples)
    for name, content, words in (("a pipe", wav(samples), []), ("a pipe of open length", wav(samples, promised=2**32 - 1), []),
                                 ("raw integers", raw, ["--raw", "int16"]),
                                 ("raw floats", struct.pack(f"<{len(samples)}f", *(s / 32768 for s in samples)),
                                  ["--raw", "float32"])):
        got, _ = streamed(suite, "running", "-", *words, content=content)
        suite.expect(got == text, f"{name}: {got!r}, wanted {text!r}")
    suite.write("stereo.wav", wav([s for sample in samples for s in (sample, sample)], channels=2))
    suite.write("float.wav", wav([sample / 32768 for sample in samples], kind="<f"))
    for name in ("stereo.wav", "float.wav"):
        got = suite.json("transcribe", "running", name)["files"][0]["text"]
        suite.expect(got == text, f"{name}: {got!r}, wanted {text!r}")
    beam = suite.json("transcribe", "running", "a.wav", "--beam", 8, "--threads", 2)
    suite.expect(beam["beam"] == 8 and set(beam["files"][0]["text"]) <= set("".join(LETTERS)), f"beam: {beam}")
    shown = suite.run("transcribe", "running", "a.wav", "b.wav")
    suite.expect(shown.stdout.startswith(f"a.wav: {text}\n") and "real-time factor" in shown.stdout, f"as text: {shown}")
    suite.expect(suite.run("transcribe", "running", "a.wav", "--stream").stdout.startswith(text), "a stream as text")


def speakers(suite):
    """Normalised per speaker: all files of a call are one speaker's."""
    suite.write("speaker.json", model_config("speaker"))
    suite.run("init", "speaker.json", "speaker")
    both = suite.json("transcribe", "speaker", "a.wav", "b.wav")["files"]
    again = suite.json("transcribe", "speaker", "b.wav", "a.wav")["files"]
    suite.expect(both == again[::-1], f"the order of files: {both}, {again}")
    suite.refuse("a stream normalised per speaker", "transcribe", "speaker", "a.wav", "--stream", says=("normalisation",))
    suite.write("words.json", model_config("none", symbols=["yes", "no", "go"]))
    suite.run("init", "words.json", "words")
    text, _ = streamed(suite, "words", "a.wav", "--chunk", 10)
    suite.expect(text == suite.json("transcribe", "words", "a.wav")["files"][0]["text"]
                 and set(text.split(" ")) <= {"yes", "no", "go"}, f"words have spaces between: {text!r}")


def nothing_heard(suite):
    for name, samples in (("empty.wav", []), ("short.wav", [1] * 199)):
        suite.write(name, wav(samples))
        document = suite.json("transcribe", "running", name)
        suite.expect(document["files"][0]["text"] == "", f"{name}: {document}")
        suite.expect((document["real_time_factor"] is None) == (not samples), f"{name}: {document}")
        suite.expect(streamed(suite, "running", name)[0] == "", f"{name} streamed")


def bad_input(suite):
    whole = wav(sound(0.5, 3))
    floats = [0.1] * 500 + [math.nan] + [0.1] * 500
    suite.write("text.wav", "this is no sound\n")
    suite.write("cut.wav", whole[:3000])
    suite.write("head.wav", whole[:30])
    suite.write("fast.wav", wav(sound(0.5, 3), rate=16000))
    suite.write("nan.wav", wav(floats, kind="<f"))
    for stream in ([], ["--stream"]):
        for name, says in (("text.wav", "no sound"), ("cut.wav", "cut off"), ("head.wav", "head.wav"),
                           ("fast.wav", "16000"), ("nan.wav", "sample 500"), ("missing.wav", "missing.wav"),
                           (".", "sound")):
            suite.refuse(f"{name} {stream}", "transcribe", "running", name, *stream, says=(says,))
    for name, content, words, says in (("a cut pipe", whole[:3000], [], "cut off"), ("an empty pipe", b"", [], "no sound"),
                                       ("a pipe of text", b"hello", [], "no sound"),
                                       ("raw not-a-numbers", struct.pack("<3f", 0, math.inf, 0), ["--raw", "float32"], "sample 1")):
        result = subprocess.run([suite.tarn, "transcribe", "running", "-", *words], input=content, capture_output=True,
                                cwd=suite.folder, check=False)
        suite.expect(result.returncode == 2 and says in result.stderr.decode(), f"{name}: {result}")
    image = suite.model("image", [e2e.LINEAR])
    cepstra = model_config("none")
    del cepstra["frontend"]
    suite.write("cepstra.json", cepstra)
    suite.run("init", "cepstra.json", "cepstra")
    both_ways = model_config("none")
    both_ways["layers"][0]["mixer"] = {"name": "bidirectional", "mixer": e2e.LINEAR}
    suite.write("both.json", both_ways)
    suite.run("init", "both.json", "both")
    suite.expect(suite.json("transcribe", "both", "a.wav")["files"][0]["audio_seconds"] == 3, "both ways, whole files")
    for name, words, says in (
            ("an image model", [image, "a.wav"], "frontend"), ("a model over cepstra", ["cepstra", "a.wav"], "frontend"),
            ("a stream both ways", ["both", "a.wav", "--stream"], "not causal"), ("no file", ["running"], "files"),
            ("a chunk of a whole file", ["running", "a.wav", "--chunk", "10"], "--chunk"),
            ("a chunk of nothing", ["running", "a.wav", "--stream", "--chunk", "0"], "--chunk"),
            ("a beam of a stream", ["running", "a.wav", "--stream", "--beam", "2"], "--stream")):
        suite.refuse(name, "transcribe", *words, says=(says,))
    config = model_config("none")
    for name, change, says in (
            ("features", {"frames": {"features": 40, "stack": 2}}, "frames"),
            ("unknown key", {"frontend": config["frontend"] | {"colour": 1}}, "colour"),
            ("unknown normalisation", {"frontend": config["frontend"] | {"normalisation": {"kind": "none", "mean": 1}}}, "mean"),
            ("rate", {"frontend": {"mels": 20}}, "sample_rate")):
        suite.write("bad.json", config | change)
        suite.refuse(f"config: {name}", "init", "bad.json", "bad", says=(says,))


def evaluation(suite):
    """`tarn eval` on a folder of sound."""
    suite.write("spoken/train.tsv", "../a.wav\tab c\n")
    suite.write("spoken/test.tsv", f"../b.wav\tcab d\ts\n{suite.folder}/a.wav\tabba\ts\n")
    document = suite.json("eval", "running", "--data", "spoken")
    suite.expect(document["letters"] == 9 and document["count"] == 2 and "letter_error_rate" in document
                 and document["transcripts"][0]["said"] == "cab d", f"letters: {document}")
    heard = suite.json("transcribe", "running", "b.wav")["files"][0]["text"]
    suite.expect(document["transcripts"][0]["heard"] == heard, f"eval hears {document['transcripts']}, transcribe {heard!r}")
    suite.write("spoken/test.tsv", "../b.wav\tcabx\n")
    suite.refuse("a label that the model lacks", "eval", "running", "--data", "spoken", says=('"x"',))


def memory(suite):
    """Ten times as much sound through a pipe takes no more memory."""
    piece = struct.pack(f"<{4 * RATE}h", *sound(4, 5))
    short, long = (streamed(suite, "running", "-", "--raw", "int16", content=count * piece)[1] for count in (10, 100))
    suite.expect(long["audio_seconds"] == 400, f"{long}")
    if not suite.sanitized:
        growth = long["peak_rss_bytes"] - short["peak_rss_bytes"]
        suite.expect(growth < 1 << 20, f"400 s took {growth} bytes more than 40 s")


def experiment(suite):
    source = suite.source / "experiments/spoken_digits"
    out, recordings = suite.folder / "digits", suite.folder / "recordings"
    out.mkdir()
    recordings.mkdir()
    shutil.copy(source / "README.md", out)
    for digit in range(10):
        for take in (0, 5, 7, 8):
            (recordings / f"{digit}_theo_{take}.wav").write_bytes(wav(sound(0.4, 10 * take + digit)))
    command = [sys.executable, source / "run", "--tarn", suite.tarn, "--data", recordings, "--smoke", "--results", out,
               "--work", suite.folder / "work"]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    suite.expect(first.returncode == 0, f"run: exit {first.returncode}: {first.stderr[-500:]}")
    results = {name: json.loads((out / "results" / f"{name}.json").read_text()) for name in ("errors", "chunks", "hour")}
    suite.expect(results["errors"]["alone"]["count"] == 10 and results["errors"]["alone"]["letters"] == 40, f"{results['errors']}")
    suite.expect(all(row["same_as_whole"] for row in results["chunks"]["chunks"]), f"{results['chunks']}")
    suite.expect(results["hour"]["digits"] >= 40 and len(results["hour"]["memory"]) > 20, f"{results['hour']}")
    suite.expect("| single digits |" in (out / "README.md").read_text(), "the table is new")


def main():
    suite = e2e.Suite(__doc__)
    transcripts(suite)
    speakers(suite)
    nothing_heard(suite)
    bad_input(suite)
    evaluation(suite)
    memory(suite)
    if suite.tarn.with_name("tarn-train").exists():
        experiment(suite)
    suite.finish()


if __name__ == "__main__":
    main()
