"""What the experiments' run scripts share: calling the programs, fitting sizes, files of results."""

import argparse
import json
import os
import pathlib
import platform
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Tarn:
    """The program, with tarn-train beside it; every call has `threads` threads."""

    def __init__(self, program, threads=1):
        self.program = pathlib.Path(program).resolve()
        self.threads = threads

    def __call__(self, *words):
        command = [str(word) for word in (self.program, *words)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit {result.returncode}: {result.stderr.strip()}")
        return result.stdout

    def json(self, *words):
        return json.loads(self(*words, "--json"))

    def lines(self, *words):
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


def parser(text):
    """Options that every run script has."""
    result = argparse.ArgumentParser(description=text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--tarn", type=pathlib.Path, default=ROOT / "build/release/tarn",
                        help="the program, with tarn-train beside it")
    result.add_argument("--only", nargs="*", help="names of the runs (default: all)")
    result.add_argument("--threads", type=int, default=1)
    result.add_argument("--smoke", action="store_true",
                        help="everything in its smallest form, in seconds; says nothing about the claim")
    result.add_argument("--time", action="store_true",
                        help="only measure the seconds of a training update, all models in turns: on a quiet machine")
    result.add_argument("--work", type=pathlib.Path, default=ROOT / "build/experiments",
                        help="folder of checkpoints; a run that was stopped goes on from there")
    result.add_argument("--summarise", action="store_true",
                        help="measure nothing, only write README.md's tables and report.json again")
    result.add_argument("--results", type=pathlib.Path, help="folder of results (default: the experiment's)")
    return result


def parse(arguments):
    options = arguments.parse_args()
    if options.smoke and options.results is None:
        arguments.error("--smoke needs --results FOLDER: its figures are no results")
    return options


def chosen(table, names):
    """The entries of a table that --only names; all without it."""
    unknown = set(names or ()) - set(table)
    if unknown:
        raise SystemExit(f"--only: got {', '.join(sorted(unknown))}, wanted some of {', '.join(table)}")
    return {name: entry for name, entry in table.items() if not names or name in names}


def models(path, names):
    """Model -> list of mixers, of a file {"mixers": {name: config}, "models": {name: [names]}}."""
    table = read_json(path)
    return {name: [table["mixers"][mixer] for mixer in mixers]
            for name, mixers in chosen(table["models"], names).items()}


def read_json(path):
    return json.loads(pathlib.Path(path).read_text())


def write_json(path, document):
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".half")
    half.write_text(json.dumps(document, indent=2) + "\n")
    os.replace(half, path)
    return path


def read_log(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def file_name(name):
    return re.sub(r"\W+", "-", name).strip("-")


def with_layers(template, mixers, hidden, activation="relu"):
    """The training config with one layer per mixer and MLPs of that width."""
    config = json.loads(json.dumps(template))
    config["model"]["layers"] = [{"mixer": mixer, "mlp": {"hidden_dim": hidden, "activation": activation}}
                                 for mixer in mixers]
    return config


def initial(tarn, folder, config):
    """The folder of the config's model with initial weights."""
    hidden = config["model"]["layers"][0]["mlp"]["hidden_dim"]
    model = folder / f"init-{hidden}"
    if not model.exists():
        tarn("init", write_json(folder / f"init-{hidden}.json", config), model)
    return model


def info_of(tarn, folder, config):
    """What `tarn info` says of the model with initial weights."""
    return tarn.json("info", initial(tarn, folder, config))


def fitted(tarn, folder, template, mixers, parameters, activation="relu"):
    """The config with MLPs as wide as `parameters` allows, and what `tarn info` says about it."""
    narrow = 16
    config = with_layers(template, mixers, narrow, activation)
    per_unit = len(mixers) * (2 * config["model"]["model_dim"] + 1)
    missing = parameters - info_of(tarn, folder, config)["parameters"]
    config = with_layers(template, mixers, max(narrow + 1, narrow + round(missing / per_unit)), activation)
    return config, info_of(tarn, folder, config)


def state_bytes(layers, tokens):
    """Bytes of a model's state at that many tokens, and whether it grows."""
    total, grows = 0, False
    for layer in layers:
        for state in layer["state"]:
            size = 4
            for dim in state["shape"]:
                size *= dim
            total += size * (tokens if state["per_token"] else 1)
            grows |= state["per_token"]
    return total, grows


def settings(*pairs):
    """The words of `--set`."""
    return ["--set", *(f"{key}={value}" for key, value in pairs)]


def train(tarn, config, out, *words):
    """Trains to the end, or the rest of a run that was stopped; its log."""
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.with_suffix(".json")
    if not path.exists() or read_json(path) != config:
        write_json(path, config)
    tarn("train", path, "--out", out, "--threads", tarn.threads, "--resume", *words)
    return read_log(out / "log.jsonl")


def thinned(rows, most=400):
    """At most about that many rows, the last one always."""
    step = max(1, len(rows) // most)
    return [row for i, row in enumerate(rows) if i % step == 0 or i == len(rows) - 1]


def evaluations(log, key):
    """The held-out curve of a training log, its bits named `key`; a run that went on may evaluate an update again."""
    bits = {row["update"]: round(row["bits_per_dim"], 5) for row in log if row["event"] == "evaluate"}
    return [{"update": update, key: value} for update, value in bits.items()]


TIMES = "seconds_per_update.json"


def write_times(out, tarn, work, configs, rounds=3):
    """Medians over `rounds`, models in turns so that a slow spell hits all of them."""
    start, times = time.time(), {name: [] for name in configs}
    for name, config in configs.items():
        write_json(work / "time" / f"{file_name(name)}.json", config)
    for _ in range(rounds):
        for name, config in configs.items():
            length = [] if config["model"]["max_tokens"] else ["--tokens", config["data"]["length"]]
            row = tarn.json("bench", "train", "--config", work / "time" / f"{file_name(name)}.json", "--steps", 5, *length,
                            "--batch", config["training"]["batch_size"], "--threads", tarn.threads,
                            "--precision", config["training"]["precision"])
            times[name].append(row["ms_per_step"]["median"] / 1e3)
    write_json(out / "results" / TIMES, {
        "threads": tarn.threads, "seconds": {name: sorted(some)[len(some) // 2] for name, some in times.items()},
        "all": times} | provenance(start))


def seconds_per_update(out):
    """Model -> seconds of a training update, as write_times measured them; empty if it did not yet."""
    path = out / "results" / TIMES
    return read_json(path)["seconds"] if path.exists() else {}


VERDICTS = ("holds", "holds partly", "does not hold", "not measured yet")


class Report:
    """What an experiment's results say: README.md's part between the markers, and report.json for
    `tarn report`, with the tables and curves it names. `here` has claim.json: title, claim, paper (its
    figures), reading (how to read ours)."""

    def __init__(self, here, out):
        self.here, self.out, self.claim = here, out, read_json(here / "claim.json")
        self.lines, self.tables, self.charts, self.pictures = [], [], [], []
        self.verdict, self.parts = VERDICTS[-1], []
        (out / "results").mkdir(parents=True, exist_ok=True)

    def table(self, caption, columns, rows):
        """Cells are texts; the first column names the row. Titles have no dots: they are keys."""
        name = f"results/table-{len(self.tables) + 1}.json"
        cells = [[str(cell) for cell in row] for row in rows]
        self.lines += [f"**{caption}**", "", "| " + " | ".join(columns) + " |",
                       "| --- |" + " ---: |" * (len(columns) - 1),
                       *("| " + " | ".join(row) + " |" for row in cells), ""]
        if rows:
            write_json(self.out / name, {"rows": [dict(zip(columns, row)) for row in cells]})
            self.tables.append({"file": name, "caption": caption})

    def chart(self, title, description, x, y, series, log="", name=None):
        """`series`: name -> points of a line; `x`, `y`: labels; `log`: which of "xy" is logarithmic."""
        series = {one: points for one, points in series.items() if points}
        if not series:
            return
        name = f"results/{name or file_name(title.lower())}.jsonl"
        with open(self.out / name, "w") as file:
            for one, points in series.items():
                for left, right in points:
                    file.write(json.dumps({"series": one, "x": left, "y": right}) + "\n")
        self.charts.append({"title": title, "description": description, "x": "x", "y": "y", "x_label": x,
                            "y_label": y, "x_log": "x" in log, "y_log": "y" in log,
                            "series": [{"file": name, "name": one, "where": {"series": one}} for one in series]})

    def picture(self, file, alt, caption):
        if (self.out / file).exists():
            self.pictures.append({"file": file, "alt": alt, "caption": caption})

    def judge(self, claims, more=""):
        """The verdict from the parts of the pass rule. `claims`: [(figures in words, whether it held; None:
        not measured)]; `more`: figures that decide nothing, in words."""
        held = [good for _, good in claims]
        if any(good is not None for good in held):
            self.verdict = VERDICTS[0 if all(held) else 1 if any(held) or None in held else 2]
        self.parts = [f"{words} ({'not measured yet' if good is None else 'holds' if good else 'does not hold'})"
                      for words, good in claims] + [more] * bool(more)

    def write(self):
        words, claim = self.verdict, self.claim
        replace_between(self.out / "README.md", "**Claim.** ", "\n\n", f"{claim['claim']} The paper: {claim['paper']}")
        replace_results(self.out / "README.md", [f"**Verdict: {words}.**", "", *(f"- {part}" for part in self.parts), "", *self.lines[:-1]])
        write_json(self.out / "results/verdict.json", {"verdict": words, "parts": self.parts})
        set_up = [f"{name}: {text}" for name, text in (
            (name, paragraph(self.here, name)) for name in ("Set-up", "Differences from the paper", "Reading the result",
                                                            "Tried before")) if text]
        text = [f"Claim: {claim['claim']}", f"The paper: {claim['paper']}", f"Rule: {paragraph(self.here, 'Pass rule')}",
                *(f"Here: {part}." for part in self.parts or ["nothing measured yet"]), f"Verdict: {words}.",
                claim["reading"], *set_up, f"Data: {claim['data']} Measured again by:"]
        write_json(self.out / "report.json", {
            "title": claim["title"], "summary": claim["claim"],
            "sections": [{"heading": f"{claim['title']}: {words}", "text": "\n\n".join(text), "tables": self.tables,
                          "curves": self.charts, "pictures": self.pictures, "code": claim["command"]}]})
        print("\n  ".join([f"{claim['title']}: {words}", *self.parts, f"tables and curves: {self.out}"]), flush=True)


def paragraph(folder, name):
    """A paragraph of an experiment's README.md by the words in bold that it begins with, as plain text; empty
    without it."""
    readme = folder / "README.md"
    found = re.search(rf"\*\*{name}\.\*\* (.*?)\n\n", readme.read_text() if readme.exists() else "", re.S)
    return " ".join(found.group(1).replace("`", "").split()) if found else ""


def result_files(out):
    """The results in the order of their names, without what is made from them."""
    return [read_json(path) for path in sorted((out / "results").glob("*.json"))
            if path.name not in (TIMES, "verdict.json", "speed.json") and not path.name.startswith("table-")]


def provenance(start):
    """Where the numbers come from."""
    try:
        cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text()).group(1)
    except (OSError, AttributeError):
        cpu = platform.machine()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], text=True,
                            capture_output=True, check=False).stdout.strip()
    return {"cpu": cpu, "system": platform.system(), "commit": commit,
            "date": time.strftime("%Y-%m-%d"), "hours": round((time.time() - start) / 3600, 3)}


def replace_between(readme, begin, end, text):
    """Writes what stands between two marks of README.md, if there is such a file."""
    if readme.exists():
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        readme.write_text(re.sub(pattern, lambda _: begin + text + end, readme.read_text(), count=1, flags=re.S))


def replace_results(readme, lines):
    """The same for the part that the runs write."""
    replace_between(readme, "<!-- results -->\n", "\n<!-- end -->", "\n".join(lines))
