#!/usr/bin/env python3
"""The config keys of every mechanism: what its parser asks for is what `tarn mixers NAME` prints, what
its README lists, with the required ones in bold; and presets give every layer a place of its own."""

import json
import re
import subprocess

import arch


def table(tarn, name):
    """The mechanism's entry, as the program prints it."""
    result = subprocess.run([tarn, "mixers", name, "--json"], capture_output=True, text=True,
                            check=True)
    return json.loads(result.stdout)


def section(text, heading):
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]


def check_mechanism(source, name, entry):
    folder = source / "src/mixers" / name
    keys = {key["key"]: key for key in entry["config"]}
    asked = set(re.findall(r'reader\.\w+\(\s*"(\w+)"', (folder / "mixer.cpp").read_text()))
    problems = [f"{name}: no example config reaches the key {key}" for key in asked - set(keys)]
    documented = section((folder / "README.md").read_text(), "Config")
    bold = set(re.findall(r"\*\*`(\w+)`\*\*", documented))
    always = {key for key, what in keys.items() if what["required"] and not what["depends"]}
    problems += [f"{name}: the README does not name the key {key}" for key in keys
                 if f"`{key}`" not in documented]
    problems += [f"{name}: the README should have {key} in bold" for key in always - bold]
    problems += [f"{name}: the README has {key} in bold, which is not required"
                 for key in bold - always]
    letters = set(re.findall(r"\b[A-Z][a-z]*\b", entry["state_bytes"]))
    problems += [f"{name}: the legend lacks the {letter} of {entry['state_bytes']}"
                 for letter in letters - set(entry["legend"])]
    return problems


def check_preset(path, places):
    """Layers of mechanisms that start by their place have one each."""
    seen = {}
    problems = []
    for layer in json.loads(path.read_text())["model"]["layers"]:
        mixer = layer["mixer"]
        if mixer["name"] not in places:
            continue
        if layer.get("repeat", 1) > 1:
            problems.append(f"{path.name}: {mixer['name']} is repeated at one place")
        seen.setdefault(mixer["name"], []).append(mixer)
    for name, mixers in seen.items():
        indices = [mixer.get("layer_index", 0) for mixer in mixers]
        counts = {mixer.get("num_layers", 1) for mixer in mixers}
        if indices != list(range(len(mixers))) or counts != {len(mixers)}:
            problems.append(f"{path.name}: {name} is at {indices} of {counts}")
    return problems


def main():
    options = arch.arguments(__doc__)
    names = arch.mechanisms(options.source)
    entries = {name: table(options.build / "tarn", name) for name in names}
    problems = []
    for name, entry in entries.items():
        problems += check_mechanism(options.source, name, entry)
    places = {name for name, entry in entries.items()
              if any(key["key"] == "layer_index" for key in entry["config"])}
    presets = sorted((options.source / "configs").glob("*.json"))
    for path in presets:
        problems += check_preset(path, places)
    arch.finish(problems, len(names) + len(presets))


if __name__ == "__main__":
    main()
