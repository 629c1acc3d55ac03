#!/usr/bin/env python3
"""The benchmarks' JSON lines have their keys and agree with each other; bad flags are refused. No
check depends on how fast the machine is."""

import json
import subprocess
import sys

import e2e


def lines(suite, name, *arguments):
    result = suite.run(*arguments, "--json")
    suite.expect(result.returncode == 0, f"{name}: exit {result.returncode}: {result.stderr}")
    try:
        return [json.loads(line) for line in result.stdout.splitlines()]
    except json.JSONDecodeError as error:
        suite.expect(False, f"{name}: not JSON lines: {error}: {result.stdout[:200]!r}")
        return []


def roof(suite):
    figures = lines(suite, "bench roof", "bench", "roof", "--threads", "1,2", "--rounds", "1")
    wanted = {"kind", "threads", "value", "unit", "rounds", "min", "max"}
    suite.expect(figures and all(wanted <= set(figure) for figure in figures),
                 "bench roof lines lack keys")
    cases = [(figure["threads"], figure["kind"]) for figure in figures]
    kinds = [kind for threads, kind in cases if threads == 1]
    suite.expect({"f32_fma", "bf16_dot", "int8_dot", "bf16_amx", "int8_amx", "l1_read", "l2_read",
                  "llc_read", "ram_read", "ram_copy", "ram_triad"} == set(kinds),
                 f"bench roof measures {kinds}")
    suite.expect(cases == [(threads, kind) for threads in (1, 2) for kind in kinds],
                 "every kind comes once for each thread count")
    for figure in figures:
        absent = figure["rounds"] == 0
        suite.expect(all((figure[key] is None) == absent for key in ("value", "min", "max")),
                     f"absent figures are null, others numbers: {figure}")
    machine = suite.json("doctor")
    amx = [figure for figure in figures if figure["kind"] == "bf16_amx"]
    suite.expect(all((figure["rounds"] > 0) == machine["amx_bf16"] for figure in amx),
                 "bench roof and doctor disagree on AMX")
    text = suite.run("bench", "roof", "--kind", "f32_fma,int8_amx", "--rounds", "1")
    suite.expect(text.returncode == 0 and "f32_fma" in text.stdout and "l1_read" not in text.stdout,
                 f"--kind picks: {text.stdout!r}")


def attention(suite):
    sizes = {"batch": 2, "heads": 3, "key_dim": 5, "value_dim": 7, "threads": 2}
    flags = [word for name, value in sizes.items()
             for word in ("--" + name.replace("_", "-"), value)]
    bench = lines(suite, "bench attention", "bench", "attention", "--n", "5,33", *flags, "--dtype",
                  "f32", "--form", "forward,backward,forward_backward,step", "--repeats", "1")
    wanted = {"mixer", "form", "dtype", "threads", "batch", "heads", "key_dim", "value_dim", "n",
              "ms_median", "ms_min", "ms_max", "percent_of_roof", "peak_extra_bytes", "roof",
              "flops", "bytes", "roof_gflops", "roof_gb_per_second"}
    suite.expect(bench and all(wanted <= set(line) for line in bench), "bench lines lack keys")
    suite.expect({line["n"] for line in bench} == {5, 33}, "--n gives the lengths")
    for line in bench:
        # A mechanism around another one has an output of its own.
        around = "mixer" in json.loads(line["config"])
        suite.expect(all(line[name] == value for name, value in sizes.items()
                         if not (around and name == "heads")), f"sizes: {line}")
        # The printed figures must explain the percentage.
        seconds = line["ms_median"] / 1e3
        floor = max(line["flops"] / line["roof_gflops"],
                    line["bytes"] / line["roof_gb_per_second"]) / 1e9
        suite.expect(abs(line["percent_of_roof"] * seconds - 100 * floor) < 1e-9 * 100 * floor,
                     f"percent_of_roof is not what its figures give: {line}")
    by_case = {(line["mixer"], line["form"], line["n"]): line for line in bench}
    for (mixer, form, n), line in by_case.items():
        if form == "forward_backward":
            parts = [by_case[mixer, part, n] for part in ("forward", "backward")]
            for key in ("flops", "bytes"):
                suite.expect(line[key] == sum(part[key] for part in parts),
                             f"{mixer}: {key} of both passes are their sum")


def attention_steps(suite):
    """A step counts what it reads: nothing is far beyond what the machine can do. Other work on the machine while
    its limits are measured makes them look low, in one run; a wrong count is beyond them in every run."""
    words = ["bench", "attention", "--n", "4096", "--form", "step", "--repeats", "3", "--threads", "1"]
    percent = {}
    for _ in range(4):
        for line in lines(suite, "bench attention, steps", *words):
            width = line["heads"] * line["value_dim"]
            suite.expect(width == 512, f"{line['mixer']} is timed at a width of {width}, wanted 512")
            percent.setdefault(line["mixer"], []).append(line["percent_of_roof"])
        if all(min(runs) < 150 for runs in percent.values()):
            break
    for mixer, runs in percent.items():
        suite.expect(min(runs) < 150, f"{mixer}: {runs} %")


def attention_bf16(suite):
    wide, narrow = (lines(suite, f"bench attention {dtype}", "bench", "attention", "--n", "33",
                          "--mixer", "linear_attention", "--form", "forward", "--key-dim", "32",
                          "--value-dim", "32", "--dtype", dtype, "--repeats", "1")[0]
                    for dtype in ("f32", "bf16"))
    suite.expect(narrow["dtype"] == "bf16" and narrow["flops"] == wide["flops"]
                 and 2 * narrow["tensor_bytes"] == wide["tensor_bytes"], f"bf16 rows: {narrow}")
    forms = [line["form"] for line in lines(suite, "bench attention, forms of bf16", "bench",
                                            "attention", "--n", "8", "--dtype", "bf16",
                                            "--repeats", "1")]
    suite.expect(forms == ["forward"], f"without --form, those that exist: {forms}")


def attention_not_causal(suite):
    full = '{"num_heads": 2, "key_dim": 16, "causal": false}'
    for line in lines(suite, "bench attention, not causal", "bench", "attention", "--n", "40",
                      "--mixer", "linear_attention", "--form", "forward,forward_backward",
                      "--config", full, "--repeats", "1"):
        suite.expect(line["config"] == full and line["check_error_over_tolerance"] < 1, f"{line}")
        sizes = [line[name] for name in ("heads", "key_dim", "value_dim")]
        suite.expect(sizes == [2, 16, 16], f"the sizes are those of --config: {sizes}")


def generation(suite):
    result = suite.run("bench", "generate", "--preset", "mnist-paper", "--batch", "1,2", "--length",
                       "3", "--positions", "2", "--repeats", "2", "--weights", "int8,f32",
                       "--threads", "2", "--json")
    suite.expect(result.returncode == 0, f"preset: exit {result.returncode}: {result.stderr}")
    bench = json.loads(result.stdout)
    rows = bench["rows"]
    suite.expect([(row["weights"], row["mode"], row["bounded_state"]) for row in rows] ==
                 [("int8", "recurrent", True), ("f32", "recurrent", True),
                  ("int8", "recurrent", False), ("int8", "parallel", False)],
                 f"the linear model in both formats and its twin in the first: {rows}")
    suite.expect(all(row["integrated"] and "integrated" in row["method"] for row in rows),
                 "three tokens are no image")
    suite.expect(len({row["method"] for row in rows}) == len(rows), "methods are told apart")
    suite.expect(rows[0]["state_bytes_per_sequence"] == 8 * 8 * 4 * (32 * 32 + 32),
                 f"the paper's model: {rows[0]['state_bytes_per_sequence']}")
    best = max((row[name]["images_per_second"], row["weights"], int(name[6:]))
               for row in rows[:2] for name in ("batch_1", "batch_2"))
    suite.expect((bench["images_per_second"], bench["best_weights"], bench["best_batch"]) == best,
                 f"the best case: {bench}")
    for row in rows[:2]:
        for name in ("batch_1", "batch_2"):
            figures = row[name]
            suite.expect(abs(figures["tokens_per_second"] / figures["images_per_second"] - 784)
                         < 1e-6, f"an image has 784 tokens: {figures}")
            parts = (figures["arithmetic_percent"], figures["memory_percent"])
            lacks = bench["limits"]["int8_gops"] is None and row["weights"] == "int8"
            suite.expect(parts == (None, None) if lacks
                         else abs(sum(parts) - figures["percent_of_roof"]) < 1e-6,
                         f"percent_of_roof is the sum of its parts: {figures}")
    suite.refuse("preset and models", "bench", "generate", "--preset", "mnist-paper", "--models", "m")
    suite.refuse("no model", "bench", "generate", says=["--models", "--preset"])
    suite.refuse("no such preset", "bench", "generate", "--preset", "mnist", says=["mnist-paper"])


def result(figures, peak=100.0, speed=10.0, time="2026-01-01"):
    """A result file: percent of roof per mixer, and a generation speed."""
    # Medians that others disturbed: twice as slow as the best round.
    output = [{"mixer": name, "form": "forward", "n": 64, "percent_of_roof": percent / 2,
               "ms_median": 2.0, "ms_min": 1.0, "config": '{"num_heads": 1}'}
              for name, percent in figures.items()]
    rows = {"threads": 1, "rows": [{"method": "draw", "batch_1": {"images_per_second": speed / 3,
                                                                  "images_per_second_max": speed}}]}
    return {"time": time, "machine": {}, "results": [{"output": output}, {"output": [rows]}],
            "roof": [{"kind": "f32_fma", "threads": 1, "value": 0.9 * peak, "max": peak}]}


def compare(suite):
    script = suite.source / "scripts/bench_compare"
    results = suite.folder / "results"

    def git(*words):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True,
                       cwd=results, stdout=subprocess.DEVNULL)

    def run(*words):
        return subprocess.run([sys.executable, script, "--results", results, *words], text=True,
                              capture_output=True, check=False)

    suite.write("results/host/old.json", result({"a": 40, "b": 20}))
    git("init", "-q")
    alone = run()
    suite.expect(alone.returncode == 2 and len(alone.stderr.splitlines()) == 1,
                 f"nothing committed: exit {alone.returncode}, {alone.stderr!r}")
    git("add", "-A")
    git("commit", "-q", "-m", "results")
    # Half the clock speed, same ratios: not slower. 8 % and 12 % off: one of them is.
    suite.write("results/host/new.json", result({"a": 40, "b": 18.4}, 50.0, 5.0, "2026-01-02"))
    same = run()
    suite.expect(same.returncode == 0 and "none of 3" in same.stdout,
                 f"nothing slower: exit {same.returncode}, {same.stdout!r} {same.stderr!r}")
    suite.write("results/host/new.json", result({"a": 35.2, "b": 20}, 100.0, 8.0, "2026-01-02"))
    slower = run()
    suite.expect(slower.returncode == 1 and "2 of 3" in slower.stdout,
                 f"slower: exit {slower.returncode}, {slower.stdout!r} {slower.stderr!r}")
    suite.expect("0.88x  mixer=a" in slower.stdout and "0.80x  draw" in slower.stdout,
                 f"slower figures are named: {slower.stdout!r}")
    disturbed = result({"a": 40, "b": 20}, time="2026-01-02")
    disturbed["results"][0]["output"][0] |= {"percent_of_roof": 4, "ms_median": 10.0}
    suite.write("results/host/new.json", disturbed)
    suite.expect(run().returncode == 0, "best rounds are compared, not medians")
    suite.write("results/host/new.json", {"time": "2026-01-02", "results": []})
    without = run()
    suite.expect(without.returncode == 2 and "limits" in without.stderr,
                 f"without limits: exit {without.returncode}, {without.stderr!r}")
    suite.write("results/host/new.json", "{")
    broken = run()
    suite.expect(broken.returncode == 2 and "new.json" in broken.stderr, f"broken: {broken.stderr!r}")
    figure = {"ms_median": 1.0, "ms_min": 0, "percent_of_roof": 5}
    for name, results_in_it in (("not objects", [1]), ("a time of zero", [{"output": [figure]}]),
                                ("a config that is not JSON",
                                 [{"output": [figure | {"ms_min": 1, "config": "{"}]}])):
        suite.write("results/host/new.json", {"time": "2026-01-02", "results": results_in_it})
        odd = run()
        suite.expect(odd.returncode == 2 and "new.json" in odd.stderr
                     and len(odd.stderr.splitlines()) == 1, f"{name}: {odd.stderr!r}")
    missing = run(suite.folder / "nowhere.json")
    suite.expect(missing.returncode == 2 and "no such file" in missing.stderr,
                 f"missing: {missing.stderr!r}")


def report(suite):
    suite.write("drawn/host/one.json", result({"a": 40, "b": 20}))
    page = suite.json("report", "drawn")
    suite.expect(page["bytes"] > 0 and (suite.folder / "drawn/report.html").exists(),
                 f"report of results: {page}")
    page = suite.json("report", "drawn", "--figures", "drawn/figures")
    suite.expect(page["figures"] and all((suite.folder / file).read_text().startswith("<svg")
                                         for file in page["figures"]), f"charts as files: {page}")
    suite.write("log.jsonl", '{"u": 1, "l": 2}\n{"u": 2, "l": 1}\n')
    chart = {"title": "Same", "description": "d", "x": "u", "y": "l", "series": [{"file": "../log.jsonl"}]}
    suite.write("twice/report.json", {"title": "T", "sections": [{"heading": "H", "curves": [chart, chart]}]})
    suite.refuse("two charts of one name", "report", "twice", "--figures", "f", says=["same.svg", "--figures"])


def bad_flags(suite):
    suite.refuse("roof threads 0", "bench", "roof", "--threads", "0", says=["wanted"])
    suite.refuse("roof threads list", "bench", "roof", "--threads", "1,x", says=["wanted"])
    suite.refuse("roof threads empty", "bench", "roof", "--threads", "")
    suite.refuse("roof rounds", "bench", "roof", "--rounds", "0", says=["wanted"])
    suite.refuse("attention dtype", "bench", "attention", "--dtype", "f16", says=["f16", "bf16"])
    suite.refuse("attention bf16 backward", "bench", "attention", "--dtype", "bf16", "--form",
                 "backward", says=["backward", "bf16"])
    suite.refuse("attention bf16 softmax", "bench", "attention", "--dtype", "bf16", "--form",
                 "forward", "--mixer", "softmax_attention", says=["softmax_attention", "bf16"])
    full = '{"num_heads": 2, "key_dim": 32, "causal": false}'
    for name, *flags in (("step", "--form", "step"), ("bf16", "--form", "forward", "--dtype", "bf16")):
        suite.refuse(f"attention not causal, {name}", "bench", "attention", "--mixer",
                     "linear_attention", "--config", full, *flags, says=["not causal"])
    suite.refuse("attention sizes twice", "bench", "attention", "--config", full, "--heads", "7",
                 says=["--heads", "--config"])
    suite.refuse("attention n", "bench", "attention", "--n", "0", says=["wanted"])
    suite.refuse("roof kind", "bench", "roof", "--kind", "l4_read", says=["l4_read", "l1_read"])


def sessions(suite):
    def measure(name, folder, *flags):
        figures = suite.json("bench", "sessions", folder, "--sessions", "130", "--streams", "3",
                             "--tokens", "20", "--repeats", "1", "--threads", "2", *flags)
        suite.expect(figures["different"] == 0, f"{name}: {figures['different']} sessions differ")
        suite.expect(figures["sessions"] == 130 and figures["turns"] == 3
                     and 12 <= figures["tokens_min"] < figures["tokens_max"] <= 30,
                     f"{name}: {figures}")
        suite.expect(all(figures[f"{kind}_tokens_per_second"] > 0
                         for kind in ("session", "one", "all")), f"{name}: {figures}")
        if "--store" not in flags:
            suite.expect(figures["bytes_per_session"] >= figures["state_bytes_last"],
                         f"{name}: {figures}")
        gaps = figures["inter_token_ms"]
        suite.expect(0 < gaps["p50"] <= gaps["p99"] <= gaps["max"], f"{name}: {gaps}")
        return figures

    model = suite.model("fixed", [e2e.LINEAR], modality="bytes", max_tokens=600)
    fixed = measure("sessions", model)
    suite.expect(fixed["state_bytes_first"] == fixed["state_bytes_last"] > 0, "a fixed state grew")
    endless = measure("sessions, prompts", suite.model("endless", [e2e.LINEAR], modality="bytes", max_tokens=0),
                      "--prompt-tokens", "550")
    suite.expect(endless["inter_token_ms_with_prompts"]["p50"] > 0
                 and endless["prompt_tokens_per_second"] > 0, f"no prompts in {endless}")
    store = f"sqlite:{suite.folder}/bench.db"
    for again in range(2):  # the first one leaves nothing behind
        stored = measure("sessions, store", model, "--store", store)
        suite.expect(stored["stored_bytes_per_session"] > stored["state_bytes_last"]
                     and 130 <= stored["resumed"] <= 390, f"store, {again}: {stored}")
    suite.refuse("sessions, store", "bench", "sessions", model, "--store", "nowhere:",
                 says=["sqlite:"])
    grows = measure("sessions, cache", suite.model("grows", [e2e.SOFTMAX]))
    suite.expect(grows["state_bytes_first"] < grows["state_bytes_last"], "a cache did not grow")
    suite.expect(grows["inter_token_ms_with_prompts"] is None, "prompts longer than the model takes")
    suite.refuse("sessions of a short model", "bench", "sessions",
                 suite.model("short", [e2e.LINEAR], modality="bytes", max_tokens=8), says=["30"])


def main():
    suite = e2e.Suite(__doc__)
    roof(suite)
    attention(suite)
    attention_steps(suite)
    attention_bf16(suite)
    attention_not_causal(suite)
    generation(suite)
    compare(suite)
    report(suite)
    sessions(suite)
    bad_flags(suite)
    suite.finish()


if __name__ == "__main__":
    main()
