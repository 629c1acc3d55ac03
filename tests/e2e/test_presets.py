"""Every preset of the copy task, one for each mechanism and a hybrid: trains a little, exports, and the
model generates the same tokens whatever the threads and batches, and continues a saved session."""

import json
import pathlib
import sys

from e2e import Suite

SHORT = ["training.updates=30", "training.batch_size=8", "training.evaluate_limit=8",
         "training.log_every=1", "training.schedule.warm_up=0",
         "training.optimiser.learning_rate=0.003"]


def losses(log):
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return [event["bits_per_dim"] for event in events if event["event"] == "train"]


def check_preset(suite, path):
    name = path.stem
    changes = [word for change in SHORT for word in ("--set", change)]
    result = suite.run("train", path, "--out", name, "--threads", 1, *changes)
    if result.returncode != 0:
        suite.expect(False, f"{name}: train exits {result.returncode}: {result.stderr[-300:]}")
        return
    curve = losses(suite.folder / name / "log.jsonl")
    # Thirty updates learn which symbols occur at all.
    suite.expect(len(curve) == 30 and sum(curve[-10:]) < sum(curve[:10]), f"{name}: losses {curve}")
    documents = [suite.json("generate", name, "-n", 5, "--seed", 3, "--batch", batch,
                            "--threads", threads)
                 for batch, threads in ((5, 1), (2, 2), (1, 1))]
    suite.expect(documents[0]["tokens"] == documents[1]["tokens"] == documents[2]["tokens"],
                 f"{name}: tokens depend on batch or threads")
    config = json.loads(path.read_text())["model"]
    suite.expect(len(config["layers"]) > 0 and len(documents[0]["tokens"]) == 5,
                 f"{name}: {len(documents[0]['tokens'])} sequences")
    forms = suite.json("check", "forms", name)
    suite.expect(forms["step_chunk"]["norm_error"] < 1e-5, f"{name}: forms {forms}")


def mechanisms(configs):
    names = set()
    for path in configs:
        for layer in json.loads(path.read_text())["model"]["layers"]:
            names.add(layer["mixer"]["name"])
    return names


def main():
    suite = Suite(__doc__)
    if not (suite.tarn.parent / "tarn-train").exists():
        print("not tested: this build has no tarn-train (TARN_TRAIN=OFF)")
        return 0
    configs = sorted(pathlib.Path(suite.source / "configs").glob("copy-*-cpu.json"))
    known = {mixer["name"] for mixer in suite.json("mixers") if mixer["recurrent"]}
    suite.expect(mechanisms(configs) == known,
                 f"no preset of the copy task for {known - mechanisms(configs)}")
    for path in configs:
        check_preset(suite, path)
    suite.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
