#!/usr/bin/env python3
"""Files stay readable: 400 lines is a warning, 800 an error; CMake files 150, README.md 200;
folders below src/ are at most three deep."""

import arch

SOFT, HARD = 400, 800


def lines(path):
    return len(path.read_text(errors="replace").splitlines())


def main():
    options = arch.arguments(__doc__)
    source = options.source
    problems = []
    files = arch.code_files(source, "src", "tests", "bench")
    scripts = [p.relative_to(source) for folder in ("tests", "scripts", "tools")
               for p in sorted((source / folder).rglob("*.py"))]
    for path in files + scripts:
        count = lines(source / path)
        if count > HARD:
            problems.append(f"{path}: {count} lines, the limit is {HARD}; split it by subject")
        elif count > SOFT:
            print(f"warning: {path}: {count} lines, more than {SOFT}")
    for path in files:
        if path.parts[0] == "src" and len(path.parts) > 5:
            problems.append(f"{path}: more than three folders below src/")
    cmake = [source / "CMakeLists.txt", *source.glob("src/**/CMakeLists.txt"),
             *source.glob("tests/**/CMakeLists.txt"), *source.glob("cmake/*.cmake")]
    for path, limit in [(source / "README.md", 200)] + [(p, 150) for p in cmake]:
        if lines(path) > limit:
            problems.append(f"{path.relative_to(source)}: {lines(path)} lines, the limit is {limit}")
    arch.finish(problems, len(files) + len(scripts))


if __name__ == "__main__":
    main()
