"""A strict stand-in of Docker's command line. What it does not expect is a fault, and said.

A container is a folder of the state, with a copy of the code. Images are the lines of the state's file ``images``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path


def main(state: Path, code: Path, words: list[str]) -> int:
    with (state / "log.jsonl").open("a") as log:
        log.write(json.dumps(words) + "\n")
    images = (state / "images").read_text().split()
    match words:
        case ["run", "-d", "--name", name, "-w", "/testbed", "--rm", *labels, "roman:1", "sleep", _]:
            folder = shutil.copytree(code, state / name / "testbed")
            commit = "git -c user.name=x -c user.email=x@localhost commit -q -m 'as given'"
            subprocess.run(["sh", "-c", f"git init -q && git add -A && {commit}"], cwd=folder, check=True)
            (state / name / "labels").write_text("\n".join(labels[1::2]))
            sys.stdout.write(name + "\n")
        case ["exec", "-w", folder, *env, name, "bash", flag, command] if (state / name).is_dir():
            given = {**os.environ, **dict(pair.split("=", 1) for pair in env[1::2])}
            given.pop("BASH_ENV", None)  # a file of the container's, not of this machine
            return subprocess.run(["bash", flag, command], cwd=state / name / folder[1:], env=given).returncode
        case ["image", "inspect", image]:
            return int(image not in images)
        case ["pull", "-q", image] if not image.startswith("nobody/"):
            (state / "images").write_text("\n".join([*images, image]))
        case ["ps", "-aq", "--filter", wanted]:
            for file in sorted(state.glob("*/labels")):
                if wanted.removeprefix("label=") in file.read_text().split():
                    sys.stdout.write(f"{file.parent.name}\n")
        case ["rm", "-f", "-v", *names]:
            for name in names:
                shutil.rmtree(state / name)
        case _:
            sys.stderr.write("Error response from daemon:\n manifest unknown\n")
            return 1
    return 0


def install(folder: Path, code: Path) -> tuple[Path, Path]:
    """Return the path of a command ``docker`` in ``folder``, and its state, which has the image ``here:1``."""
    state, command = folder / "state", folder / "docker"
    state.mkdir()
    (state / "images").write_text("here:1\n")
    shim = (Path(__file__), state, code)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {" ".join(map(str, shim))} "$@"\n')
    command.chmod(0o755)
    return command, state


def put(state: Path, name: str, label: str) -> None:
    """Make a container with a label."""
    (state / name).mkdir()
    (state / name / "labels").write_text(label)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
