"""A strict stand-in of Docker's command line. What it does not expect is a fault, and said.

A container is a folder of the state, with a copy of the code. Images are the lines of the state's file ``images``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(allow_abbrev=False)
    commands = whole.add_subparsers(dest="command", required=True)
    flags = {"run": ("-d", "--rm"), "rm": ("-f", "-v"), "ps": ("-aq",), "pull": ("-q",)}
    made = {name: commands.add_parser(name, allow_abbrev=False) for name in (*flags, "exec", "image")}
    for name, wanted in flags.items():
        for flag in wanted:
            made[name].add_argument(flag, action="store_true", required=True)
    made["run"].add_argument("--name", required=True)
    made["run"].add_argument("-w", required=True)
    made["run"].add_argument("--label", action="append", default=[])
    made["run"].add_argument("image", choices=["roman:1"])
    made["run"].add_argument("sleep", nargs=2)
    made["exec"].add_argument("-w", required=True)
    made["exec"].add_argument("-e", action="append", default=[])
    made["exec"].add_argument("container")
    made["exec"].add_argument("words", nargs=argparse.REMAINDER)
    made["rm"].add_argument("containers", nargs="+")
    made["ps"].add_argument("--filter", required=True)
    made["image"].add_argument("inspect", choices=["inspect"])
    made["image"].add_argument("image")
    made["pull"].add_argument("image")
    return whole


def main(state: Path, code: Path, arguments: list[str]) -> int:
    given = parser().parse_args(arguments)
    with (state / "log.jsonl").open("a") as log:
        log.write(json.dumps({"command": given.command, "labels": getattr(given, "label", [])}) + "\n")
    images = state / "images"
    if given.command == "run":
        return run(state, code, given)
    if given.command == "exec":
        return execute(state, given)
    if given.command == "image":
        return int(given.image not in images.read_text().splitlines())
    if given.command == "pull" and given.image.startswith("nobody/"):
        sys.stderr.write("Error response from daemon:\n manifest unknown\n")
        return 1
    if given.command == "pull":
        images.write_text(f"{images.read_text()}{given.image}\n")
    if given.command == "ps":
        show(state, given.filter.removeprefix("label="))
    if given.command == "rm":
        for name in given.containers:
            shutil.rmtree(state / name)
    return 0


def show(state: Path, wanted: str) -> None:
    for file in sorted(state.glob("*/labels")):
        if any(label == wanted or label.startswith(f"{wanted}=") for label in file.read_text().splitlines()):
            sys.stdout.write(f"{file.parent.name}\n")


def run(state: Path, code: Path, given: argparse.Namespace) -> int:
    shutil.copytree(code, state / given.name / "testbed")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "as given"]):
        subprocess.run([*git, *words], cwd=state / given.name / "testbed", check=True)
    (state / given.name / "labels").write_text("\n".join(given.label))
    sys.stdout.write(given.name + "\n")
    return 0


def execute(state: Path, given: argparse.Namespace) -> int:
    folder = state / given.container
    if not folder.is_dir():
        sys.stderr.write(f"Error: No such container: {given.container}\n")
        return 1
    env = {**os.environ, **dict(pair.split("=", 1) for pair in given.e)}
    env.pop("BASH_ENV", None)  # a file of the container's, not of this machine
    return subprocess.run(given.words, cwd=folder / given.w.lstrip("/"), env=env).returncode


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
