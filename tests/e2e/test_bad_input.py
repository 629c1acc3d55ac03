#!/usr/bin/env python3
"""Every bad flag and every bad file ends with exit 2 and exactly one sentence on stderr."""

import json
import os
import shutil
import struct
import subprocess
import zlib

import e2e


def png(width, height, grey=128):
    """A grey PNG file, made by hand."""
    def chunk(kind, data):
        return (struct.pack(">I", len(data)) + kind + data +
                struct.pack(">I", zlib.crc32(kind + data)))
    rows = b"".join(b"\0" + bytes([grey]) * width for _ in range(height))
    return (b"\x89PNG\r\n\x1a\n" +
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def bad_usage(suite, model):
    suite.refuse("no subcommand")
    suite.refuse("unknown subcommand", "frobnicate", says=["frobnicate", "generate"])
    suite.refuse("unknown flag without subcommand", "--frobnicate", says=["frobnicate"])
    for group, command in (("bench", "attention"), ("state", "save"), ("check", "forms")):
        suite.refuse(f"unknown subcommand of {group}", group, "frobnicate",
                     says=["frobnicate", command])
    suite.refuse("unknown flag", "generate", model, "--frobnicate", says=["--frobnicate"])
    suite.refuse("no model", "generate", says=["model"])
    suite.refuse("no state subcommand", "state")
    suite.refuse("no bench subcommand", "bench")
    suite.refuse("flag without value", "generate", model, "-n")
    suite.refuse("two prompts", "generate", model, "--tokens", "1", "--prompt-image", "x.png")
    suite.refuse("index without data", "generate", model, "--prompt-index", "1")
    suite.refuse("no data", "eval", model, says=["--data"])


def bad_numbers(suite, model):
    for flag in ["-n", "--batch", "--length", "--threads", "--seed", "--top-k"]:
        for value in ["-1", "10^12", "99999999999999999999", "abc", "", "1.5", "0x10", "1e3", "nan"]:
            suite.refuse(f"{flag} {value}", "generate", model, flag, value, says=["wanted"])
    for flag in ["-n", "--batch", "--length", "--threads"]:
        suite.refuse(f"{flag} 0", "generate", model, flag, "0", says=["wanted"])
        suite.refuse(f"{flag} 1000000000000", "generate", model, flag, "1000000000000")
    for flag in ["--temperature", "--top-p"]:
        for value in ["-1", "0", "abc", "nan", "inf", ""]:
            suite.refuse(f"{flag} {value}", "generate", model, flag, value, says=["wanted"])
    suite.refuse("top-p 1.5", "generate", model, "--top-p", "1.5")
    suite.refuse("--limit -1", "eval", model, "--data", ".", "--limit", "-1")
    suite.refuse("--limit 10^12", "eval", model, "--data", ".", "--limit", "1000000000000")
    suite.refuse("mode", "generate", model, "--mode", "magic", says=["magic"])
    suite.refuse("a length over the table", "generate", model, "--length", "785", says=["784"])
    # A cache of 800 kB per sequence, for a million sequences at once.
    wide = suite.model("wide", [{**e2e.SOFTMAX, "key_dim": 64}])
    suite.refuse("more memory than there is", "generate", wide, "-n", "1000000", "--batch",
                 "1000000")
    suite.refuse("bench -n", "bench", "attention", "-n", "0")
    suite.refuse("bench too large", "bench", "attention", "-n", "1073741824", "--batch", "65536")
    suite.refuse("bench unknown mixer", "bench", "attention", "--mixer", "magic", says=["magic"])
    suite.refuse("bench form", "bench", "attention", "--form", "sideways")
    suite.refuse("check unknown mixer", "check", "long", "--mixer", "magic", says=["magic"])
    suite.refuse("check too many tokens", "check", "forms", model, "--tokens", "785")


def bad_lists(suite, model):
    """An empty element of a list is a slip of the hand, wherever it stands."""
    for gap in ["", ",", "1,,2", "1,2,", ",1"]:
        suite.refuse(f"-n {gap}", "bench", "attention", "-n", gap, says=["-", "got", "wanted"])
        suite.refuse(f"--tokens {gap}", "generate", model, "--tokens", gap, says=["--tokens"])
    for flag in ["--mixer", "--form"]:
        for gap in ["", "forward,,step", "forward,"]:
            suite.refuse(f"{flag} {gap}", "bench", "attention", flag, gap, says=[flag, "wanted"])
    for gap in ["", "a=b,,c=d", "a=b,"]:
        suite.refuse(f"--models {gap}", "bench", "generate", "--models", gap, says=["--models"])
    lines = suite.run("bench", "attention", "--json", "-n", "3,5", "7", "--form", "step",
                      "--heads", "1", "--key-dim", "4", "--value-dim", "4", "--repeats", "1",
                      "--mixer", "linear_attention").stdout.splitlines()
    suite.expect([json.loads(line)["n"] for line in lines] == [3, 5, 7], f"a whole list: {lines}")


def bad_prompts(suite, model, bytes_model):
    suite.write("right.png", png(28, 28))
    suite.write("wrong.png", png(27, 28))
    suite.write("cut.png", png(28, 28)[:60])
    suite.write("text.png", "no picture")
    suite.write("empty.png", "")
    suite.write("huge.png", png(28, 28).replace(struct.pack(">II", 28, 28),
                                                struct.pack(">II", 2**31 - 1, 2**31 - 1)))
    suite.refuse("image of the wrong size", "generate", model, "--prompt-image", "wrong.png",
                 says=["27x28", "28x28"])
    for name in ["cut.png", "text.png", "empty.png", "huge.png", "missing.png"]:
        suite.refuse(name, "generate", model, "--prompt-image", name, says=[name])
    suite.refuse("folder as image", "generate", model, "--prompt-image", ".")
    suite.refuse("image for bytes", "generate", bytes_model, "--prompt-image", "right.png")
    suite.refuse("text for images", "generate", model, "--prompt", "hello", says=["--prompt"])
    suite.refuse("token outside", "generate", model, "--tokens", "300")
    suite.refuse("tokens that are none", "generate", model, "--tokens", "1,x")
    suite.refuse("prompt longer than the position table", "generate", bytes_model, "--prompt",
                 "a" * 65, says=["64"])
    suite.refuse("prompt over --length", "generate", bytes_model, "--prompt", "hello", "--length", "4")
    suite.refuse("no test image of that index", "generate", model, "--prompt-data",
                 suite.source / "data/mnist", "--prompt-index", "10000", says=["10000"])
    suite.refuse("state: prompt too long", "state", "save", bytes_model, "--prompt", "a" * 64,
                 "--out", "s.bin")
    suite.refuse("state: too many tokens", "state", "save", bytes_model, "-n", "64", "--out", "s.bin")


def bad_configs(suite, model):
    good = json.loads((model / "config.json").read_text())

    def case(name, config, says=()):
        folder = suite.folder / f"config-{name.replace(' ', '-')}"
        shutil.copytree(model, folder)
        (folder / "config.json").write_text(config if isinstance(config, str)
                                            else json.dumps(config))
        suite.refuse(f"config: {name}", "info", folder, says=says)

    case("empty", "", says=["config.json"])
    case("no json", "{", says=["config.json"])
    case("no object", "[]")
    case("trailing bytes", json.dumps(good) + "x")
    case("duplicate key", json.dumps(good)[:-1] + ', "model_dim": 8}', says=["model_dim"])
    case("unknown key", {**good, "magic": 1}, says=["magic"])
    case("missing key", {k: v for k, v in good.items() if k != "model_dim"}, says=["model_dim"])
    case("future version", {**good, "format_version": 2}, says=["version"])
    case("string for integer", {**good, "model_dim": "8"}, says=["model_dim"])
    case("negative", {**good, "model_dim": -1}, says=["model_dim"])
    case("10^12", {**good, "model_dim": 10**12}, says=["model_dim"])
    case("other size", {**good, "model_dim": 16})
    case("deep", "[" * 10000)
    case("no layers", {**good, "layers": []})
    layers = json.loads(json.dumps(good["layers"]))
    layers[0]["mixer"]["name"] = "magic_attention"
    case("unknown mixer", {**good, "layers": layers}, says=["magic_attention"])
    layers = json.loads(json.dumps(good["layers"]))
    layers[0]["mixer"]["magic"] = 1
    case("unknown mixer key", {**good, "layers": layers}, says=["magic"])
    layers = json.loads(json.dumps(good["layers"]))
    layers[0]["mixer"]["num_heads"] = 0
    case("no heads", {**good, "layers": layers}, says=["num_heads"])


def bad_weights(suite, model):
    good = (model / "model.safetensors").read_bytes()
    header, data = e2e.split_safetensors(good)
    names = [name for name in header if name != "__metadata__"]
    last = max(names, key=lambda name: header[name]["data_offsets"][1])

    def case(name, content, says=()):
        folder = suite.folder / f"weights-{name.replace(' ', '-')}"
        shutil.copytree(model, folder)
        path = folder / "model.safetensors"
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        suite.refuse(f"weights: {name}", "info", folder, says=["model.safetensors", *says])

    def edited(change):
        copy = json.loads(json.dumps(header))
        change(copy)
        return e2e.join_safetensors(copy, data)

    case("missing", None)
    case("empty", b"")
    case("seven bytes", good[:7])
    case("truncated header", good[:100])
    case("truncated data", good[:-1])
    case("trailing bytes", good + b"x")
    case("wrong magic", b"GGUF" + good[4:])
    case("header length lie", struct.pack("<Q", 2**63) + good[8:])
    case("header too long", struct.pack("<Q", 10**8) + good[8:])
    case("NaN", good[:-4] + struct.pack("<f", float("nan")), says=[last])
    case("infinity", good[:-4] + struct.pack("<f", float("inf")), says=[last])
    case("unknown dtype", edited(lambda h: h[last].update(dtype="F8")))
    case("wrong shape", edited(lambda h: h[last].update(shape=[1])))
    case("overflowing shape", edited(lambda h: h[last].update(shape=[2, 2**63])))
    case("negative shape", edited(lambda h: h[last].update(shape=[-1])))
    case("overlap", edited(lambda h: h[last].update(data_offsets=[0, 4])))
    case("tensor missing", edited(lambda h: h.pop(last)))
    case("tensor renamed", edited(lambda h: h.update(magic=h.pop(last))))
    rest = good[8 + struct.unpack("<Q", good[:8])[0]:]
    text = good[8:len(good) - len(rest)]
    twice = text[:-1].rstrip(b" }") + b"}," + text[1:].lstrip()
    case("duplicate tensor", struct.pack("<Q", len(twice)) + twice + rest)


def every_header_byte(suite, model):
    """Truncations and flips of a model's header: never a crash, never silence with wrong data."""
    good = (model / "model.safetensors").read_bytes()
    size = 8 + struct.unpack("<Q", good[:8])[0]
    folder = suite.folder / "header"
    shutil.copytree(model, folder)
    path = folder / "model.safetensors"
    for length in sorted({*range(0, 16), *range(16, size + 1, max(1, size // 60))}):
        path.write_bytes(good[:length])
        suite.refuse(f"header cut to {length} bytes", "info", folder)
    for at in sorted({*range(0, 9), *range(9, size, max(1, size // 120))}):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0xff]) + good[at + 1:])
        suite.refuse(f"header byte {at} flipped", "info", folder)


def bad_files(suite, model):
    suite.refuse("no such model", "info", "nowhere", says=["nowhere"])
    suite.refuse("a state that grows", "check", "long", "--mixer", "retention,softmax_attention",
                 says=["softmax_attention", "grows"])
    suite.refuse("nothing to step", "check", "long", "--mixer", "channel_mix", says=["channel_mix"])
    suite.refuse("a file as model", "info", model / "config.json")
    suite.refuse("no such data", "eval", model, "--data", "nowhere", says=["nowhere"])
    suite.refuse("no such split", "eval", model, "--data", suite.source / "data/mnist", "--split",
                 "dev", says=["dev"])
    suite.write("empty/t10k-images-idx3-ubyte.gz", "")
    suite.refuse("empty data file", "eval", model, "--data", "empty")
    suite.write("text/t10k-images-idx3-ubyte.gz", "no gzip at all")
    suite.refuse("data without magic", "eval", model, "--data", "text")
    content = (suite.source / "data/mnist/t10k-images-idx3-ubyte.gz").read_bytes()
    suite.write("cut/t10k-images-idx3-ubyte.gz", content[:100000])
    suite.refuse("data cut short", "eval", model, "--data", "cut")
    suite.refuse("no such snapshot", "state", "show", "nowhere.bin", says=["nowhere.bin"])
    suite.refuse("a snapshot that is none", "state", "show", model / "config.json")
    suite.refuse("no such folder to report", "report", "nowhere", says=["nowhere"])
    suite.refuse("a file to report", "report", suite.write("file.json", "{}"), says=["file.json",
                                                                                     "folder"])
    suite.refuse("no such config", "init", "nowhere.json", "x", says=["nowhere.json"])
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 2**37:  # it needs 2^37 bytes
        suite.write("giant.json", {**e2e.config([e2e.LINEAR]), "model_dim": 65536, "layers": [
            {"mixer": e2e.LINEAR, "mlp": {"hidden_dim": 2**18, "activation": "relu"}}]})
        suite.refuse("init of a model larger than memory", "init", "giant.json", "giant",
                     says=["bytes"])
        suite.expect(not (suite.folder / "giant").exists(), "a refused model leaves no folder")
    suite.refuse("init over a model", "init", model / "config.json", model, says=["exists"])
    suite.write("report/report.json", {"title": "t", "sections": [{"magic": 1, "heading": "h"}]})
    suite.refuse("unknown report key", "report", "report", says=["magic"])


def bad_outputs(suite, model):
    """Devices, pipes and folders are refused and left alone; links stay links."""
    draw = ["generate", model, "--length", "2", "--out"]
    os.mkfifo(suite.folder / "pipe")
    (suite.folder / "to-pipe").symlink_to("pipe")
    for name in ["pipe", "to-pipe", "."]:
        suite.refuse(f"output to {name}", *draw, name)
    suite.expect((suite.folder / "pipe").is_fifo(), "a pipe as output must stay a pipe")
    suite.write("real.png", "old")
    (suite.folder / "link.png").symlink_to("real.png")
    suite.expect(suite.run(*draw, "link.png").returncode == 0, "a link as output must work")
    suite.expect((suite.folder / "link.png").is_symlink(), "a link as output must stay a link")
    suite.expect((suite.folder / "real.png").read_bytes()[:4] == b"\x89PNG", "its file is written")
    for flag in ["--out", "--prompt", "--prompt-image"]:
        suite.refuse(f"empty {flag}", "generate", model, "--length", "2", flag, "", says=["wanted"])


def bad_streams(suite, model):
    """Closed and full standard streams, and too little memory: an exit status, never a signal."""
    def status(name, redirection, want, *arguments, before="", tail=""):
        script = f'{before} exec "$@" {redirection}'
        result = subprocess.run(["bash", "-c", script, "bash", suite.tarn, *map(str, arguments)],
                                capture_output=True, text=True, timeout=60, cwd=suite.folder,
                                check=False)
        suite.expect(result.returncode == want,
                     f"{name}: exit {result.returncode}, wanted {want}: {result.stderr[:200]!r}")
        suite.expect(tail in result.stdout, f"{name}: no {tail!r} in {result.stdout[:200]!r}")

    for redirection in ["2>&-", "2>/dev/full", "<&- >&- 2>&-"]:
        status(f"error {redirection}", redirection, 2, "info", "nowhere")
    status("results to a closed stdout", ">&-", 1, "info", model)
    status("results to a full stdout", ">/dev/full", 1, "info", model, "--json")
    status("help to a full stdout", ">/dev/full", 1, "--help")
    status("a file over the size limit", "", 1, "init", "image.json", "over",
           before="ulimit -f 1;")
    if suite.sanitized:
        print("not checked with a sanitizer: too little memory")
    else:
        limited = f"ulimit -v {2**19};"  # KiB
        bench = ["bench", "attention", "--json", "--form", "forward", "--threads", "1", "--mixer"]
        status("a check larger than the limit", "", 2, *bench, "lstm", "--config",
               '{"hidden_dim": 30000}', before=limited, tail='"resource"')
        # The scratch of hashed attention is not foreseen: a kernel's allocation fails.
        status("scratch larger than the limit", "", 1, *bench, "lsh_attention", "-n", "32768",
               before=limited, tail="not enough memory")
        status("threads without memory", "", 1, "generate", model, "--threads", "64", "--length",
               "2", "--json", before="ulimit -v 200000;", tail='"error"')
    suite.expect(not list(suite.folder.glob("**/*.tmp-*")), "no temporary file may be left")


def two_channels(suite):
    """Pixels of two channels fit their buffers."""
    config = e2e.config([e2e.LINEAR], width=128, height=128, max_tokens=2 * 128 * 128)
    config["image"]["channels"] = 2
    config["position"] = {"kind": "none"}
    suite.write("two.json", config)
    suite.run("init", "two.json", "two")
    suite.write("two.png", png(128, 128))
    result = suite.run("generate", "two", "--prompt-image", "two.png", "--length", 128 * 128 + 1,
                       "--out", "two-out.png")
    suite.expect(result.returncode == 0,
                 f"two channels: exit {result.returncode}: {result.stderr[:200]!r}")


def main():
    suite = e2e.Suite(__doc__)
    model = suite.model("image", [e2e.LINEAR])
    bytes_model = suite.model("bytes", [e2e.LINEAR, e2e.SOFTMAX], modality="bytes", max_tokens=64)
    suite.expect(suite.run("info", model).returncode == 0, "the good model must load")
    bad_usage(suite, model)
    bad_numbers(suite, model)
    bad_lists(suite, model)
    bad_prompts(suite, model, bytes_model)
    bad_configs(suite, model)
    bad_weights(suite, model)
    every_header_byte(suite, model)
    bad_files(suite, model)
    bad_outputs(suite, model)
    bad_streams(suite, model)
    two_channels(suite)
    suite.finish()


if __name__ == "__main__":
    main()
