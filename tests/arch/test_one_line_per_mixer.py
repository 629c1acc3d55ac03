#!/usr/bin/env python3
"""A mechanism is one folder and one line: every line of mixers.def has a complete folder of that
name, every folder has its line, and no other code or build file knows the name."""

import re

import arch

NEEDED = ("README.md", "mixer.cpp", "test.cpp")
README_PARTS = ("Definition", "Config", "Parameters", "Forms", "State", "Numerics", "Limits")
NOT_MECHANISMS = {"common", "_template"}


def folder_problems(source, name):
    folder = source / "src/mixers" / name
    problems = [f"src/mixers/{name} lacks {file}" for file in NEEDED
                if not (folder / file).is_file()]
    if problems:
        return problems
    readme = (folder / "README.md").read_text()
    problems += [f"src/mixers/{name}/README.md lacks the section \"{part}\"" for part in README_PARTS
                 if not re.search(rf"^#+ {part}\b", readme, re.MULTILINE)]
    mixer = (folder / "mixer.cpp").read_text()
    if not re.search(rf"namespace tarn::mixers::{name}\b", mixer):
        problems.append(f"src/mixers/{name}/mixer.cpp does not use namespace tarn::mixers::{name}")
    if f'"{name}"' not in mixer:
        problems.append(f'src/mixers/{name}/mixer.cpp does not give kDef the name "{name}"')
    return problems


def main():
    options = arch.arguments(__doc__)
    source = options.source
    names = arch.mechanisms(source)
    problems = []
    if len(set(names)) != len(names):
        problems.append("mixers.def has a name twice")
    folders = {p.name for p in (source / "src/mixers").iterdir() if p.is_dir()} - NOT_MECHANISMS
    problems += [f"src/mixers/{name} has no line in mixers.def" for name in folders - set(names)]
    for name in names:
        problems += folder_problems(source, name)
    problems += [p.replace("src/mixers/_template", "the template src/mixers/_template")
                 for p in folder_problems(source, "_template")]

    build_files = [source / "CMakeLists.txt", *source.glob("cmake/*"),
                   *source.glob("src/**/CMakeLists.txt"), *source.glob("tests/**/CMakeLists.txt"),
                   source / "Makefile"]
    others = [p for p in (source / "src/mixers").glob("*.*") if p.name != "mixers.def"]
    for path in build_files + others:
        for name in names:
            if re.search(rf"\b{name}\b", path.read_text()):
                problems.append(f"{path.relative_to(source)} names the mechanism {name}")
    arch.finish(problems, len(names))


if __name__ == "__main__":
    main()
