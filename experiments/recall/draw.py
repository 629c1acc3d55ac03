"""The table of README.md and the figures, from the files in results/."""

import html
import json

import experiment as ex

CELL, ROW, LEFT, TOP = 46, 20, 300, 66
STYLE = ("text{font:12px sans-serif;fill:#222}.head{font-weight:bold}.note{fill:#666}"
         ".light{fill:#fff}.number{text-anchor:middle}")


def load(folder):
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("results/*.json"))]
    return sorted(results, key=lambda result: -sum(result["recall"].values()))


def colour(value):
    """From white (nothing is right) to dark blue (everything is)."""
    red, green, blue = (round(255 + (end - 255) * value) for end in (16, 62, 120))
    return f"rgb({red},{green},{blue})"


def text(x, y, words, kind=""):
    return f'<text x="{x}" y="{y}" class="{kind}">{html.escape(words)}</text>'


def cells(x, y, values):
    for i, value in enumerate(values):
        left = x + i * CELL
        yield (f'<rect x="{left}" y="{y}" width="{CELL - 1}" height="{ROW - 1}" '
               f'fill="{colour(value)}"/>')
        yield text(left + CELL // 2, y + 14, f"{100 * value:.0f}",
                   "number light" if value > 0.5 else "number")


def heat_map(results, size, pairs, distances):
    """Accuracy of every mechanism: by number of pairs, and of one pair by distance."""
    right = LEFT + len(pairs) * CELL + 30
    width, height = right + len(distances) * CELL + 10, TOP + len(results) * ROW + 10
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" role="img"><title>Recall with states of {size} KiB per layer</title>'
             f'<style>{STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>',
             text(10, 20, f"Answers that are right, in percent; states of {size} KiB per layer", "head"),
             text(LEFT, 40, "pairs to remember"), text(right, 40, "one pair, fillers behind it"),
             text(10, 58, "mechanism (bytes per layer, * grows)", "note")]
    for x, names in ((LEFT, pairs), (right, distances)):
        lines += [text(x + i * CELL + CELL // 2, 58, str(name), "number note")
                  for i, name in enumerate(names)]
    for row, result in enumerate(results):
        y = TOP + row * ROW
        bytes_text = f"{result['state_bytes'] // 2:,}{'*' if result['state_grows'] else ''}"
        lines.append(text(10, y + 14, f"{result['name']} ({bytes_text})"))
        lines += cells(LEFT, y, result["recall"].values())
        lines += cells(right, y, result["needle"].values())
    return "\n".join(lines + ["</svg>"]) + "\n"


def held(result):
    """Most pairs of the grid of which nine in ten answers are right, and so with all fewer."""
    most = 0
    for pairs, value in result["recall"].items():
        if value < 0.9:
            break
        most = int(pairs)
    return most


def table(results, distances):
    shown = ("8", "16", "32", "64")
    lines = ["| mechanism | bytes per layer | parameters | 90 % up to | "
             + " | ".join(f"{n} pairs" for n in shown) + f" | needle, {distances[-1]} fillers | rate | "
             "bits per answer | training seconds |",
             "| --- |" + " ---: |" * (len(shown) + 7)]
    for result in results:
        grows = " (grows)" if result["state_grows"] else ""
        lines.append(
            f"| {result['name']} | {result['state_bytes'] // 2:,}{grows} | {result['parameters']:,} | "
            f"{held(result)} | "
            + " | ".join(f"{100 * result['recall'][n]:.0f} %" for n in shown)
            + f" | {100 * result['needle'][str(distances[-1])]:.0f} % | "
            f"{result['best']['matrix_learning_rate']} | {result['best']['valid_bits']:.2f} | "
            f"{result['best']['seconds']:.0f} |")
    return "\n".join(lines)


def draw(folder, pairs, distances):
    results = load(folder)
    tables = []
    for size in sorted({result["size_kib"] for result in results}, key=int, reverse=True):
        some = [result for result in results if result["size_kib"] == size]
        (folder / f"recall-{size}KiB.svg").write_text(heat_map(some, size, pairs, distances))
        tables.append(f"**{size} KiB per layer**\n\n![accuracy with {size} KiB per layer]"
                      f"(recall-{size}KiB.svg)\n\n{table(some, distances)}")
    ex.replace_results(folder / "README.md", "\n\n".join(tables).split("\n"))
