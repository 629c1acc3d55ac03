"""What the benchmark scripts share: running tarn, describing the machine, writing result files."""

import datetime
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARN = ROOT / "build/release/tarn"


def output(*command):
    result = subprocess.run([str(c) for c in command], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                            check=False)
    if result.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))}: exit {result.returncode}")
    return result.stdout


def documents(text):
    """One JSON document, or one per line."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line]


def commit():
    name = output("git", "rev-parse", "--short=12", "HEAD").strip()
    changed = output("git", "status", "--porcelain", "--untracked-files=no", "--", "src", "cmake")
    return name + ("-changed" if changed else "")


class ResultFile:
    """FOLDER/<machine>/<commit>.json, never overwritten: commit first, or the name says that the
    tree had changes."""

    def __init__(self, folder, path=None):
        self.machine = json.loads(output(TARN, "doctor", "--json"))
        if self.machine.get("tarn_train"):  # no paths of one machine
            self.machine["tarn_train"] = pathlib.Path(self.machine["tarn_train"]).name
        words = f"{self.machine['cpu']} {self.machine['threads']} threads".lower()
        slug = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
        self.path = path or ROOT / folder / slug / f"{commit()}.json"
        if self.path.exists():
            sys.exit(f"bench: {self.path} exists; results are not overwritten")

    def write(self, content):
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        document = {"time": now, "commit": commit(), "machine": self.machine, **content}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"wrote {self.path}")
