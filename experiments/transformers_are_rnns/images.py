"""What the experiments on pixels (mnist, cifar10) share: the same training for every model, bits/dim on
the whole test set, sheets of samples and completions."""

import json
import os
import subprocess
import time

import experiment as ex

MECHANISMS = "speed_of_mechanisms.json"  # in results/
TIMED_TOKENS = 64  # of a picture that is drawn with a bounded state: all its tokens take the same time
COOL_DOWN = 0.85  # share of a run's updates in which the rate goes to zero


class Images:
    """One experiment: `here` has config.json and models.json, whose "longer" names models that are trained
    once more with more updates. With `budget` every model gets that many seconds of training, in updates of
    the length that --time measured, instead of the config's updates."""

    def __init__(self, here, options, parameters, budget=None):
        self.here, self.options, self.parameters, self.budget = here, options, parameters, budget
        self.samples = 64
        self.tarn = ex.Tarn(options.tarn, options.threads)
        self.work = options.work / here.name
        self.out = options.results or here
        self.template = ex.read_json(here / "config.json")
        self.longer = ex.read_json(here / "models.json").get("longer", {})
        self.models = ex.models(here / "models.json", options.only)
        if options.smoke:
            self.template["training"].update(updates=2, batch_size=1, evaluate_limit=2)
            self.template["data"].update(holdout=4)
            self.template["training"]["schedule"].update(warm_up=1, cool_down=1)

    def config(self, name):
        """(config, what `tarn info` says), MLPs as wide as the common number of parameters allows."""
        config, info = ex.fitted(self.tarn, self.work / "init" / ex.file_name(name), self.template,
                                 self.models[name], self.parameters)
        if name in self.longer and not self.options.smoke:
            config["training"].update(self.longer[name]["training"])
        if self.budget is not None and not self.options.smoke:
            seconds = ex.seconds_per_update(self.out)
            if name not in seconds:
                raise SystemExit(f"{name}: how long its updates take is not in results/{ex.TIMES}: --time first")
            updates = round(self.budget / seconds[name])
            config["training"]["updates"] = updates
            config["training"]["schedule"]["cool_down"] = round(COOL_DOWN * updates)
        return config, info

    def time(self):
        """Seconds per update of every model, in turns."""
        ex.write_times(self.out, self.tarn, self.work,
                       {name: ex.fitted(self.tarn, self.work / "init" / ex.file_name(name), self.template,
                                        mixers, self.parameters)[0]
                        for name, mixers in self.models.items() if name not in self.longer})

    def model(self, name):
        return self.work / ex.file_name(name)

    def result_path(self, name):
        return self.out / "results" / f"{ex.file_name(name)}.json"

    def run(self, name):
        """Trains, evaluates, draws, and writes the result file, unless it exists."""
        if self.result_path(name).exists():
            return
        start = time.time()
        config, info = self.config(name)
        model = self.model(name)
        log = ex.train(self.tarn, config, model, "--data", self.options.data)
        limit = ["--limit", 4] if self.options.smoke else []
        test = self.tarn.json("eval", model, "--data", self.options.data, "--split", "test",
                              "--threads", self.options.threads, *limit)
        sheets = self.sheets(name, model)
        total, grows = ex.state_bytes(info["layers"], config["model"]["max_tokens"])
        training = config["training"]
        ex.write_json(self.result_path(name), {
            "name": name, "config": config, "parameters": info["parameters"],
            "updates": training["updates"], "images_seen": training["updates"] * training["batch_size"],
            "budget_seconds": self.budget,
            "test_bits_per_dim": test["bits_per_dim"], "standard_error": test["standard_error"],
            "test_images": test["count"], "state_bytes": total, "state_grows": grows,
            "training_seconds": log[-1]["seconds"], "valid": ex.evaluations(log, "bits_per_dim"), "sheets": sheets,
            "command": f"{self.here.name}/run --only {name!r}"} | ex.provenance(start))

    def sheets(self, name, model):
        """Pictures drawn from nothing, and the lower halves of eight test images."""
        count, prompts = (2, "0") if self.options.smoke else (self.samples, "0,1,2,3,4,5,6,7")
        files = {}
        for kind, words in (("samples", ["-n", count, "--batch", count]),
                            ("completions", ["--prompt-data", self.options.data, "--prompt-index", prompts])):
            files[kind] = f"{ex.file_name(name)}-{kind}.png"
            path = self.out / "figures" / files[kind]
            path.parent.mkdir(parents=True, exist_ok=True)
            self.tarn("generate", model, *words, "--seed", 1, "--threads", self.options.threads,
                      "--out", path)
        return files

    def speed(self, python):
        """Images per second of the paper's model: ours in every form, and the softmax of the paper's library
        without any memory, whole prefix for every pixel."""
        start, preset = time.time(), f"{self.here.name}-paper"
        ours = self.generation("--preset", preset)
        document = {"preset": preset, "threads": self.options.threads, "tarn": ours}
        if python is not None:
            program = ex.ROOT / "bench/peers/generation.py"
            config = ex.ROOT / f"configs/{self.here.name}-softmax-paper.json"
            environment = dict(os.environ, OMP_WAIT_POLICY="passive")
            result = subprocess.run([python, program, "fast_transformers_whole", config, "1",
                                     str(self.options.threads), "f32", "1"], capture_output=True, text=True,
                                    check=False, env=environment)
            if result.returncode != 0:
                raise SystemExit(f"{program.name}: {result.stderr.strip()[-300:]}")
            document["library"] = json.loads(result.stdout) | {"config": str(config.relative_to(ex.ROOT))}
            document["times_library"] = ours["images_per_second"] / document["library"]["images_per_second"][0]
        whole = [row for row in ours["rows"] if row["mode"] == "parallel"]
        rates = [row[key]["images_per_second"] for row in whole for key in row if key.startswith("batch_")]
        document["times_own_softmax_without_cache"] = ours["images_per_second"] / max(rates)
        ex.write_json(self.out / "results/speed.json", document | ex.provenance(start))

    def generation(self, *words):
        """What `bench generate` says of images per second."""
        smallest = ["--length", 8, "--repeats", 1, "--positions", 2, "--batch", "1,2"] if self.options.smoke else []
        return self.tarn.json("bench", "generate", *words, "--threads", self.options.threads, *smallest)

    def speed_of_mechanisms(self):
        """Images per second of the paper's model with each mechanism of models.json: heads of the paper's number,
        MLPs as wide as its number of parameters allows, random weights."""
        start, folder = time.time(), self.work / "speed"
        template = ex.read_json(ex.ROOT / f"configs/{self.here.name}-linear-paper.json")
        paper = template["model"]["layers"][0]
        parameters = ex.info_of(self.tarn, folder / "paper", template)["parameters"]
        models = []
        for name, mixers in self.models.items():
            if name in self.longer:
                continue
            mixers = [mixer | {"num_heads": paper["mixer"]["num_heads"]} for mixer in mixers]
            mixers *= paper["repeat"] // len(mixers)
            config, _ = ex.fitted(self.tarn, folder / ex.file_name(name), template, mixers, parameters)
            models.append(f"{name}={ex.initial(self.tarn, folder / ex.file_name(name), config)}")
        document = self.generation("--models", *models, *([] if self.options.smoke else ["--length", TIMED_TOKENS]))
        ex.write_json(self.out / "results" / MECHANISMS, {"parameters": parameters} | document | ex.provenance(start))

    def summarise(self, judge):
        """`judge`: what Report.judge takes, from {name: result}, {name: seconds per update} and the
        document of `speed` (None: not measured)."""
        table = ex.read_json(self.here / "models.json")["models"]
        results = {name: ex.read_json(self.result_path(name)) for name in table if self.result_path(name).exists()}
        seconds = ex.seconds_per_update(self.out)
        seconds |= {name: seconds[entry["model"]] for name, entry in self.longer.items() if entry["model"] in seconds}
        path = self.out / "results/speed.json"
        speed = ex.read_json(path) if path.exists() else None
        report, rows = ex.Report(self.here, self.out), []
        for name, r in sorted(results.items(), key=lambda item: item[1]["test_bits_per_dim"]):
            one = seconds.get(name)
            rows.append([name, f"{r['parameters']:,}", f"{r['updates']:,} × {r['config']['training']['batch_size']}",
                         f"{r['test_bits_per_dim']:.4f} ± {r['standard_error']:.4f}",
                         "" if one is None else f"{1e3 * one:.0f}",
                         "" if one is None else f"{one * r['updates'] / 3600:.2f}",
                         f"{r['state_bytes']:,}{' at the last token' if r['state_grows'] else ''}"])
        report.table("Quality: all test images", [
            "model", "parameters", "updates × batch", "bits/dim", "ms per update", "hours at that rate",
            "bytes of state per image"], rows)
        if speed is not None:
            report.table("Speed, in images per second: another, larger model, that of the paper, not trained", ["method", "images/s"],
                         speed_rows(speed))
        path = self.out / "results" / MECHANISMS
        if path.exists():
            report.table("Speed of every mechanism, in images per second: the paper's model with other mixers, as many "
                         "parameters, not trained, weights in f32", *mechanism_table(ex.read_json(path)))
        curves = {name: [(row["update"], row["bits_per_dim"]) for row in r["valid"]] for name, r in results.items()}
        title = self.here.name.upper() if self.here.name == "mnist" else "CIFAR-10"
        count = self.template["training"]["evaluate_limit"]
        report.chart(f"{title}: held-out bits per dim against updates", f"Bits per dim of {count} held-out images (the table: all "
                     "test images, hence other values).", "updates",
                     "bits per dim", curves)
        report.chart(f"{title}: held-out bits per dim against time", "The same against hours: updates times the "
                     "seconds of one, measured on a quiet machine.", "hours", "bits per dim",
                     {name: [(update * seconds[name] / 3600, bits) for update, bits in points]
                      for name, points in curves.items() if name in seconds})
        for name in results:
            for kind, words in (("samples", "drawn from nothing"), ("completions", "eight test images, the upper half given, the lower half drawn")):
                report.picture(f"figures/{ex.file_name(name)}-{kind}.png", f"{name}: {words}", f"{name}: {words}")
        report.judge(*judge(results, seconds, speed))
        report.write()


def speed_rows(speed):
    """Method and images per second, of `bench generate` and of the library."""
    rows = []
    for row in speed["tarn"]["rows"]:
        for key, value in row.items():
            if key.startswith("batch_"):
                rows.append([f"{row['method']}, batch {key.removeprefix('batch_')}", f"{value['images_per_second']:.4g}"])
    if "library" in speed:
        rate = speed["library"]["images_per_second"][0]
        rows.append([f"softmax of the paper's library, no cache, batch {speed['library']['batch']} (integrated)", f"{rate:.4g}"])
    return rows


def mechanism_table(document):
    """Columns and rows: method, images per second per number of pictures drawn together, bytes of state; the
    fastest first."""
    batches = [key for key in document["rows"][0] if key.startswith("batch_")]
    rows = sorted(document["rows"], key=lambda row: -row[batches[-1]]["images_per_second"])
    names = [f"{key.removeprefix('batch_')} together" if key != "batch_1" else "alone" for key in batches]
    return (["method", *names, "bytes of state per image"],
            [[row["method"].replace("tokens timed, integrated", "tokens timed"),
              *(f"{row[key]['images_per_second']:.4g}" for key in batches),
              f"{row['state_bytes_per_sequence']:,}" if row["mode"] == "recurrent" else "none"] for row in rows])


def best_at_time(results, seconds, names, hours):
    """(name, held-out bits) of the best of `names` within so many hours and 1 %."""
    found = [(row["bits_per_dim"], name) for name in names if name in results and name in seconds
             for row in results[name]["valid"] if row["update"] * seconds[name] <= hours * 3600 * 1.01]
    return min(found)[::-1] if found else None


def times_faster(speed, wanted):
    """The part of a pass rule about drawing, as Report.judge takes it, and what is said besides; `speed` as
    Images.summarise gives it. Weights are in f32, as the library's."""
    words = f"{wanted:,} times as many images per second as the library's softmax without cache"
    if speed is None or "library" not in speed:
        return (words, None), ""
    library = speed["library"]["images_per_second"][0]

    def best(kind):
        return max(row[key]["images_per_second"] for row in speed["tarn"]["rows"] for key in row
                   if key.startswith("batch_") and row["weights"] == "f32" and kind(row))

    ours = best(lambda row: row["bounded_state"])
    cached = best(lambda row: not row["bounded_state"] and row["mode"] == "recurrent")
    whole = best(lambda row: row["mode"] == "parallel")
    most = speed["tarn"]["images_per_second"]
    return ((f"linear draws {ours:.3g} images/s, weights in f32, 64 together: {ours / library:,.0f} times the library's softmax without "
             f"cache, which draws one at a time, wanted {wanted:,}", ours / library >= wanted),
            f"that is {ours / whole:,.0f} times our own softmax without cache and {ours / cached:,.1f} times our own with cache, 64 "
            f"together; with weights in int8, which the paper does not use, {most:.3g} images/s, {most / library:,.0f} and "
            f"{most / whole:,.0f} times the library's and ours without cache")
