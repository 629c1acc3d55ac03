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
    suite.finish()


if __name__ == "__main__":
    main()
