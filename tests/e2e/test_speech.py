#!/usr/bin/env python3
"""Speech: `tarn eval` of a model over frames counts phone errors, and the speech experiment runs from
training to table in its smallest form."""

import json
import math
import shutil
import struct
import subprocess
import sys

import e2e

PHONES = ["AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "EH", "ER", "EY", "F", "G", "HH", "IH", "IY",
          "JH", "K", "L", "M", "N", "OW", "P", "R", "S", "T", "TH", "UW", "V", "W", "Y", "Z"]


def an4_folder(folder):
    """A small folder as the database has it: words of one phone each, 20 frames a word."""
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/an4.dic").write_text("".join(f"W{phone}  {phone}\n" for phone in PHONES))
    number = 0
    for split, speakers in (("train", 10), ("test", 2)):
        ids, transcripts = [], []
        for speaker in range(speakers):
            for utterance in range(2):
                name = f"{split}{speaker}-{utterance}"
                words = [f"W{PHONES[(number + i) % len(PHONES)]}" for i in range(3 + utterance)]
                ids.append(f"feat_{split}/s{speaker}/{name}")
                transcripts.append(f"{' '.join(words)} ({name})")
                values = [math.sin(0.1 * number + 0.7 * i) for i in range(13 * 20 * len(words))]
                path = folder / "feat" / f"{ids[-1]}.mfc"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(struct.pack(f">i{len(values)}f", len(values), *values))
                number += 1
        (folder / f"etc/an4_{split}.fileids").write_text("\n".join(ids) + "\n")
        (folder / f"etc/an4_{split}.transcription").write_text("\n".join(transcripts) + "\n")


def frames_config():
    config = e2e.config([{"name": "bidirectional", "mixer": e2e.LINEAR}, e2e.SOFTMAX | {"causal": False}],
                        modality="frames", max_tokens=0)
    del config["vocabulary"], config["start_token"]
    config["position"] = {"kind": "sinusoidal"}
    config["frames"] = {"features": 39}
    config["head"] = {"kind": "ctc", "classes": len(PHONES) + 1, "symbols": PHONES}
    return config


def evaluation(suite):
    suite.write("frames.json", frames_config())
    suite.expect(suite.run("init", "frames.json", "model").returncode == 0, "init of a model over frames")
    suite.expect(suite.json("info", "model")["modality"] == "frames", "info names the modality")
    greedy = suite.json("eval", "model", "--data", "an4")
    suite.expect(greedy["count"] == 4 and greedy["phones"] == 14 and greedy["frames"] == 280, f"sizes: {greedy}")
    edits = sum(greedy[kind] for kind in ("substitutions", "insertions", "deletions"))
    suite.expect(abs(greedy["phone_error_rate"] - edits / 14) < 1e-12, f"the rate is edits per phone: {greedy}")
    first = greedy["transcripts"][0]
    suite.expect(first["name"] == "test0-0" and len(first["said"].split()) == 3
                 and set(first["heard"].split()) <= set(PHONES), f"transcripts: {first}")
    beam = suite.json("eval", "model", "--data", "an4", "--beam", "4", "--threads", "2")
    suite.expect(beam["beam"] == 4 and beam["phones"] == 14, f"beam: {beam}")
    again = suite.json("eval", "model", "--data", "an4", "--threads", "2")
    suite.expect(again["transcripts"] == greedy["transcripts"], "two threads hear the same")
    joined = suite.json("eval", "model", "--data", "an4", "--set", "data.join=100", "--split", "valid")
    suite.expect(joined["count"] == 1 and joined["frames"] == 140, f"one held-out speaker, joined: {joined}")
    shown = suite.run("eval", "model", "--data", "an4", "--transcripts", "--limit", "1").stdout
    suite.expect("heard" in shown and "phone_error_rate" in shown, f"as text: {shown}")
    causal = frames_config()
    causal["layers"] = e2e.config([e2e.LINEAR, e2e.SOFTMAX])["layers"]
    suite.write("causal.json", causal)
    suite.run("init", "causal.json", "causal")
    whole = suite.json("eval", "causal", "--data", "an4")
    for stream in (1, 7, 1000):
        streamed = suite.json("eval", "causal", "--data", "an4", "--stream", stream)
        suite.expect(streamed["transcripts"] == whole["transcripts"] and streamed["stream"] == stream
                     and streamed["real_time_factor"] > 0, f"streamed {stream} frames at a time: {streamed}")
    image = suite.model("image", [e2e.LINEAR])
    for name, words, says in (
            ("no folder", ["model", "--data", "nothing"], "nothing"),
            ("symbols", ["model", "--data", "an4", "--set", "data.kind=copy"], "--set"),
            ("stream both ways", ["model", "--data", "an4", "--stream", "4"], "not causal"),
            ("stream a beam", ["causal", "--data", "an4", "--stream", "4", "--beam", "2"], "--stream"),
            ("key", ["model", "--data", "an4", "--set", "data.colour=1"], "colour"),
            ("windows", ["model", "--data", "an4", "--length", "4"], "--length"),
            ("ranges", ["model", "--data", "an4", "--positions", "4"], "--positions"),
            ("beam of an image model", [image, "--data", "an4", "--beam", "4"], "--beam")):
        suite.refuse(name, "eval", *words, says=(says,))
    suite.refuse("generation", "generate", "model", says=("frames",))
    suite.refuse("sessions", "state", "save", "model", "-n", "2", "--out", "x.state", says=("frames",))
    suite.refuse("forms", "check", "forms", "model", says=("frames",))
    other = frames_config()
    other["head"]["symbols"] = PHONES[1:] + ["QQ"]
    suite.write("other.json", other)
    suite.run("init", "other.json", "other")
    suite.refuse("other labels", "eval", "other", "--data", "an4", says=("labels",))


def experiment(suite):
    """Two models, two updates each: results and table; finished runs are skipped."""
    source = suite.source / "experiments/transformers_are_rnns/speech"
    out = suite.folder / "speech"
    out.mkdir()
    shutil.copy(source / "README.md", out)
    command = [sys.executable, source / "run", "--tarn", suite.tarn, "--data", suite.folder / "an4", "--smoke",
               "--results", out, "--work", suite.folder / "work", "--only", "linear", "bi_lstm"]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    suite.expect(first.returncode == 0, f"run: exit {first.returncode}: {first.stderr[-500:]}")
    for name in ("linear", "bi_lstm"):
        result = json.loads((out / "results" / f"{name}.json").read_text())
        suite.expect(abs(result["parameters"] / 803_000 - 1) < 0.01, f"parameters: {result['parameters']}")
        suite.expect(result["test"]["phones"] > 0 and result["epoch_seconds"]["least"] > 0, f"{result['test']}")
    table = (out / "README.md").read_text()
    suite.expect("| linear |" in table and "| softmax |" not in table, "the table is new")
    verdict = json.loads((out / "results/verdict.json").read_text())["verdict"]
    suite.expect(verdict == "not measured yet", f"a claim about softmax without softmax: {verdict}")
    suite.expect(suite.json("report", out, "--figures", out / "drawn")["bytes"] > 2000, "the page")
    written = [(out / f"results/{name}.json").stat().st_mtime_ns for name in ("linear", "bi_lstm")]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    suite.expect(again.returncode == 0 and "not measured yet" in again.stdout, f"again: {again}")
    suite.expect(written == [(out / f"results/{name}.json").stat().st_mtime_ns for name in ("linear", "bi_lstm")]
                 and len(again.stdout.splitlines()) == 2, f"finished runs run again: {again}")
    timed = subprocess.run([*command, "--time"], capture_output=True, text=True, check=False)
    suite.expect(timed.returncode == 0 and (out / "results/epoch_seconds.json").exists(), f"--time: {timed.stderr}")


def main():
    suite = e2e.Suite(__doc__)
    an4_folder(suite.folder / "an4")
    evaluation(suite)
    if suite.tarn.with_name("tarn-train").exists():
        experiment(suite)
    suite.finish()


if __name__ == "__main__":
    main()
