"""Write agents/continuum_agents/pins/NAME.txt from NAME.in, for every Python there is. Run by `make lock`.

A first line `# Python >=3.12,...` says where a framework's Pythons begin. NAME.overrides, where there is one, names
what is left out; environments are made of exactly what is in NAME.txt.
"""

import re
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).parents[1] / "agents/continuum_agents/pins"


def oldest_python(source: Path) -> str:
    version = re.match(r"# Python >=(\d+\.\d+)", source.read_text())
    return version[1] if version else "3.10"


def main() -> None:
    uv, extra = sys.argv[1], sys.argv[2:]
    for source in sorted(PINS.glob("*.in")):
        command = [
            uv,
            "pip",
            "compile",
            "-q",
            "--universal",
            "--python-version",
            oldest_python(source),
            "--no-header",
            "--no-annotate",
        ]
        overrides = source.with_suffix(".overrides")
        if overrides.exists():
            command += ["--override", str(overrides)]
        done = subprocess.run([*command, *extra, str(source)], check=True, capture_output=True, text=True)
        head = f"# Every version pinned; made by `make lock` from {source.name}.\n"
        source.with_suffix(".txt").write_text(head + done.stdout)


main()
