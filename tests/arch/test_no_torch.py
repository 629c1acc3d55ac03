#!/usr/bin/env python3
"""The program tarn links no libtorch, neither itself nor through a library."""

import re
import subprocess

import arch

TORCH = re.compile(r"lib(torch|c10|caffe2)\w*\.so")


def libraries(program):
    return subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout


def main():
    options = arch.arguments(__doc__)
    problems = []
    linked = libraries(options.build / "tarn")
    if "libstdc++" not in linked:
        problems.append(f"ldd says nothing of use about {options.build / 'tarn'}: {linked}")
    problems += [f"tarn links {m.group(0)}" for m in TORCH.finditer(linked)]
    # The pattern must be able to find what it looks for.
    trainer = options.build / "tarn-train"
    if trainer.exists() and not TORCH.search(libraries(trainer)):
        problems.append("tarn-train links libtorch, but the pattern of this test does not see it")
    arch.finish(problems, 1)


if __name__ == "__main__":
    main()
