#!/usr/bin/env python3
"""The same seed gives the same pixels whatever the threads and the batch, and prompts are kept."""

import json

import e2e


def same_pixels(suite, name, model):
    base = ["generate", model, "-n", "64", "--seed", "1"]
    wanted = None
    for extra in (["--batch", "64", "--threads", "1"], ["--batch", "64", "--threads", "2"],
                  ["--batch", "1", "--threads", "1"], ["--batch", "7", "--threads", "2"]):
        suite.json(*base, *extra, "--out", "sheet.png")
        pixels = (suite.folder / "sheet.png").read_bytes()
        wanted = wanted or pixels
        suite.expect(pixels == wanted, f"{name}: other pixels with {' '.join(extra)}")
    suite.json("generate", model, "-n", "64", "--seed", "2", "--out", "sheet.png")
    suite.expect((suite.folder / "sheet.png").read_bytes() != wanted,
                 f"{name}: seed 2 gives the pixels of seed 1")


def figures(suite, model):
    result = suite.json("generate", model, "-n", "4", "--batch", "4", "--out", "x.png")
    for key in ("images_per_second", "tokens_per_second", "ms_per_token",
                "state_bytes_per_sequence", "peak_rss_bytes", "threads"):
        suite.expect(key in result, f"generate --json lacks {key}")
    suite.expect(set(result["ms_per_token"]) == {"first", "last"}, "ms_per_token has first, last")
    suite.expect(result["generated_tokens"] == 4 * 36, "4 images of 36 pixels are 144 tokens")


def modes_agree(suite, model):
    tokens = [suite.json("generate", model, "-n", "2", "--seed", "3", "--mode", mode,
                         "--greedy")["texts"] for mode in ("recurrent", "parallel")]
    suite.expect(tokens[0] == tokens[1], "recurrent and parallel generation differ")


def prompts_are_kept(suite, image, text):
    out = suite.json("generate", text, "--prompt", "abc", "--length", "8")["texts"][0]
    suite.expect(out.startswith("abc"), f"the text {out!r} does not start with its prompt")
    result = suite.json("generate", image, "--prompt-data", suite.source / "data/mnist",
                        "--prompt-index", "0,1", "--scale", "1", "--out", "done.png")
    suite.expect(result["count"] == 2 and result["generated_tokens"] == 2 * 392,
                 f"two completions draw 2 x 392 tokens: {json.dumps(result)}")
    # What was completed is a prompt again: its upper half must come through unchanged.
    suite.json("generate", image, "--prompt-data", suite.source / "data/mnist", "--prompt-index",
               "0", "--scale", "1", "--columns", "1", "--seed", "5", "--out", "one.png")
    suite.expect((suite.folder / "one.png").stat().st_size > 0, "a completion is written")


def text_output(suite, text):
    """Printed sequences are lines, one after the other, and so is the file that --out writes."""
    draw = ["generate", text, "--tokens", "65,66", "--length", "2", "-n", "2"]
    printed = suite.run(*draw).stdout
    suite.expect(printed == "AB\nAB\n", f"two sequences are printed as {printed!r}")
    suite.run(*draw, "--out", "drawn.txt")
    suite.expect((suite.folder / "drawn.txt").read_text() == "AB\nAB\n", "and written likewise")


def endless_models(suite):
    """A model without a longest sequence cannot guess how long its text should be."""
    document = e2e.config([e2e.LINEAR], modality="bytes", max_tokens=0)
    document["position"] = {"kind": "none"}
    suite.write("endless.json", document)
    suite.json("init", "endless.json", "endless")
    suite.refuse("no length", "generate", "endless", says=["--length", "max_tokens"])
    suite.expect(suite.run("generate", "endless", "--length", "3").returncode == 0, "with a length")


def published_model(suite):
    """The model that was converted from another program's format; both modes draw the same bytes."""
    folder = suite.source / "models/tiny-rwkv7"
    texts = [suite.json("generate", folder, "--prompt", '"in', "--length", "24", "--greedy", "--mode",
                        mode)["texts"][0] for mode in ("recurrent", "parallel")]
    suite.expect(texts[0] == texts[1] and texts[0].startswith('"in'),
                 f"the published model writes {texts}")


def levels_are_scaled(suite):
    """A picture of 512 levels shows level 300 as its neighbour of 256 levels would show 150."""
    sheets = []
    for levels, token in ((256, 150), (512, 300)):
        document = e2e.config([e2e.LINEAR], width=2, height=2)
        document.update(vocabulary=levels + 1, start_token=levels)
        document["head"]["levels"] = levels
        suite.write(f"levels-{levels}.json", document)
        suite.json("init", f"levels-{levels}.json", f"levels-{levels}")
        suite.json("generate", f"levels-{levels}", "--tokens", token, "--length", "1", "--out",
                   "level.png")
        sheets.append((suite.folder / "level.png").read_bytes())
    suite.expect(sheets[0] == sheets[1], "level 300 of 512 is not drawn as 150 of 256")


def counts_agree(suite, image):
    """Several prompts give their number; -n may repeat it and must not contradict it."""
    prompts = ["generate", image, "--prompt-data", suite.source / "data/mnist", "--length", "393",
               "--prompt-index"]
    suite.refuse("-n against two prompts", *prompts, "0,1", "-n", "3", says=["-n", "3", "2"])
    suite.refuse("-n 1 against two prompts", *prompts, "0,1", "-n", "1", says=["-n", "1", "2"])
    for words, count in ((["0,1"], 2), (["0,1", "-n", "2"], 2), (["0"], 1), (["0", "-n", "3"], 3)):
        got = suite.json(*prompts, *words)["count"]
        suite.expect(got == count, f"prompts {' '.join(words)}: {got} sequences, wanted {count}")


def main():
    suite = e2e.Suite(__doc__)
    small = suite.model("small", [e2e.LINEAR, e2e.SOFTMAX], width=6, height=6)
    linear = suite.model("linear", [e2e.LINEAR, e2e.LINEAR], width=6, height=6)
    mnist = suite.model("mnist", [e2e.LINEAR])
    text = suite.model("text", [e2e.LINEAR, e2e.SOFTMAX], modality="bytes", max_tokens=32)
    same_pixels(suite, "hybrid", small)
    same_pixels(suite, "linear", linear)
    figures(suite, linear)
    modes_agree(suite, text)
    prompts_are_kept(suite, mnist, text)
    counts_agree(suite, mnist)
    text_output(suite, text)
    endless_models(suite)
    levels_are_scaled(suite)
    published_model(suite)
    suite.finish()


if __name__ == "__main__":
    main()
