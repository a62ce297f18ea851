"""Write agents/continuum_agents/pins/NAME.txt from NAME.in, for every Python there is. Run by `make lock`."""

import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).parents[1] / "agents/continuum_agents/pins"


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
            "3.10",
            "--no-header",
            "--no-annotate",
        ]
        done = subprocess.run([*command, *extra, str(source)], check=True, capture_output=True, text=True)
        head = f"# Every version pinned; made by `make lock` from {source.name}.\n"
        source.with_suffix(".txt").write_text(head + done.stdout)


main()
