#!/usr/bin/env python3
"""Every header compiles alone and may be included twice. Headers that need libtorch are checked
when the build has it."""

import concurrent.futures
import json
import os
import re
import shlex
import subprocess

import arch


def compile_flags(build):
    """Compiler and flags of the build, with the union of its include folders."""
    commands = json.loads((build / "compile_commands.json").read_text())
    compiler, flags = None, []
    for entry in commands:
        words = shlex.split(entry["command"])
        if "ccache" in os.path.basename(words[0]):
            words = words[1:]
        compiler = compiler or words[0]
        for i, word in enumerate(words):
            wanted = [word] if re.match(r"-(I|std=)", word) else None
            if word == "-isystem":
                wanted = [word, words[i + 1]]
            if wanted and " ".join(wanted) not in (" ".join(f) for f in flags):
                flags.append(wanted)
    return [compiler] + [word for flag in flags for word in flag]


def problem(command, header):
    text = f'#include "{header}"\n#include "{header}"\n'
    run = subprocess.run(command + ["-fsyntax-only", "-Wall", "-Wextra", "-x", "c++", "-"],
                         input=text, capture_output=True, text=True, check=False)
    return None if run.returncode == 0 else f"{header} does not compile alone:\n{run.stderr[:2000]}"


def main():
    options = arch.arguments(__doc__)
    command = compile_flags(options.build)
    has_torch = "torch" in " ".join(command)
    headers = []
    for path in arch.code_files(options.source, "src"):
        text = (options.source / path).read_text()
        if path.suffix != ".h" or "_template" in path.parts:
            continue
        needs_torch = "train" in path.parts or re.search(r"#include <(torch|ATen|c10)/", text)
        if needs_torch and not has_torch:
            print(f"not checked, this build has no libtorch: {path}")
        else:
            headers.append(path.relative_to("src").as_posix())
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda header: problem(command, header), headers)
    arch.finish([r for r in results if r], len(headers))


if __name__ == "__main__":
    main()
