"""What the architecture tests share: arguments, the list of source files, the report."""

import argparse
import pathlib
import re
import sys

CODE_SUFFIXES = (".h", ".cpp", ".def")


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--source", type=pathlib.Path, required=True, help="root of the sources")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder")
    options = parser.parse_args()
    options.source = options.source.resolve()
    options.build = options.build.resolve()
    return options


def code_files(source, *folders):
    """The C++ files below the given folders, as paths relative to the root."""
    found = []
    for folder in folders:
        for path in sorted((source / folder).rglob("*")):
            if path.suffix in CODE_SUFFIXES and path.is_file():
                found.append(path.relative_to(source))
    return found


def mechanisms(source):
    """The names in mixers.def, in order."""
    text = (source / "src/mixers/mixers.def").read_text()
    return re.findall(r"^ *MIXER\((\w+)\)", text, re.MULTILINE)


def without_comments(text):
    """Blanks comments; line numbers stay."""
    def blank(match):
        piece = match.group(0)
        return piece if piece.startswith(('"', "'")) else re.sub(r"[^\n]", " ", piece)

    pattern = r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'|//[^\n]*|/\*.*?\*/"
    return re.sub(pattern, blank, text, flags=re.DOTALL)


def without_strings(text):
    """Empties string literals, raw ones included."""
    text = re.sub(r'R"(\w*)\(.*?\)\1"', lambda m: '""' + "\n" * m.group(0).count("\n"), text,
                  flags=re.DOTALL)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def finish(problems, checked):
    """Prints the problems and exits: 0 when there are none and something was checked."""
    for problem in problems:
        print(problem)
    print(f"{checked} checked, {len(problems)} problems")
    sys.exit(1 if problems or checked == 0 else 0)
