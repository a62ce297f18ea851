"""Strict stand-ins of Docker: its daemon for the ``docker`` package, and, run as a program, its command line.

What neither expects is a fault, and said.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Daemon:
    """What a Docker daemon answers to the requests that we mean to make; any other is a fault of the test."""

    def __init__(self, socket: Path) -> None:
        self.url = f"unix://{socket}"
        self.images = {"here:1"}
        self.containers: dict[str, dict[str, str]] = {}
        self.said: list[str] = []
        self.faults: list[str] = []
        self.refuse_pulls = False
        handler = type("Handler", (Handler,), {"daemon": self})
        self._server = socketserver.ThreadingUnixStreamServer(str(socket), handler)
        self._server.daemon_threads = True

    def __enter__(self) -> Daemon:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, query: dict[str, str]) -> tuple[int, Any]:
        if (method, path) == ("GET", "/version"):
            return 200, {"ApiVersion": "1.47", "MinAPIVersion": "1.24"}
        kind, _, rest = path.removeprefix("/v1.47/").partition("/")
        handle: Callable[..., tuple[int, Any] | None] = getattr(self, f"_{method}_{kind}".lower(), lambda *_: None)
        found = handle(rest, query)
        if found is None:
            self.faults.append(f"{method} {path} {query}")
            return 501, {"message": "no such request was expected"}
        return found

    def _get_images(self, rest: str, query: dict[str, str]) -> tuple[int, Any] | None:
        name = rest.removesuffix("/json")
        if rest == name or query:
            return None
        return (200, {"Id": f"sha256:{name}"}) if name in self.images else (404, {"message": "No such image"})

    def _post_images(self, rest: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if rest != "create" or set(query) != {"fromImage", "tag"}:
            return None
        if self.refuse_pulls:
            return 404, {"message": "manifest unknown"}
        name = f"{query['fromImage']}:{query['tag']}"
        self.said.append(f"pull {name}")
        self.images.add(name)
        return 200, {"status": "Download complete"}

    def _get_containers(self, rest: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if rest == "json":
            if query.get("all") not in ("1", "True"):
                return None
            (label,) = json.loads(query["filters"])["label"]
            name, _, value = label.partition("=")
            found = [
                key for key, labels in self.containers.items() if labels.get(name, "") and value in ("", labels[name])
            ]
            return 200, [{"Id": key, "Names": [f"/{key}"], "Image": "x"} for key in found]
        key = rest.removesuffix("/json")
        return (
            (200, {"Id": key, "Name": f"/{key}"}) if key in self.containers else (404, {"message": "No such container"})
        )

    def _delete_containers(self, rest: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if rest not in self.containers or query.get("force") not in ("1", "True"):
            return None
        self.said.append(f"remove {rest}")
        del self.containers[rest]
        return 204, None


class Handler(BaseHTTPRequestHandler):
    daemon: Daemon

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        status, body = self.daemon.answer(self.command, parts.path, query)
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _serve


# ----------------------------------------------------------------------------------------- command line


def command_line(state: Path, code: Path, arguments: list[str]) -> int:
    """``docker run -d``, ``exec`` and ``rm``: a container is a folder, with a copy of ``code`` to work in."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", allow_abbrev=False)
    run.add_argument("-d", action="store_true", required=True)
    run.add_argument("--rm", action="store_true", required=True)
    run.add_argument("--name", required=True)
    run.add_argument("-w", required=True)
    run.add_argument("--label", action="append", default=[])
    run.add_argument("image", choices=["roman:1"])
    run.add_argument("sleep", nargs=2)
    inside = commands.add_parser("exec", allow_abbrev=False)
    inside.add_argument("-w", required=True)
    inside.add_argument("-e", action="append", default=[])
    inside.add_argument("container")
    inside.add_argument("words", nargs=argparse.REMAINDER)
    remove = commands.add_parser("rm", allow_abbrev=False)
    remove.add_argument("-f", action="store_true", required=True)
    remove.add_argument("-v", action="store_true", required=True)
    remove.add_argument("container")
    given = parser.parse_args(arguments)
    labels = dict(label.split("=", 1) for label in getattr(given, "label", []))
    with (state / "log.jsonl").open("a") as log:
        log.write(json.dumps({"command": given.command, "labels": labels}) + "\n")
    if given.command == "run":
        shutil.copytree(code, state / given.name / "testbed")
        git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "as given"]):
            subprocess.run([*git, *words], cwd=state / given.name / "testbed", check=True)
        sys.stdout.write(given.name + "\n")
        return 0
    folder = state / given.container
    if not folder.is_dir():
        sys.stderr.write(f"Error: No such container: {given.container}\n")
        return 1
    if given.command == "rm":
        shutil.rmtree(folder)
        return 0
    env = {**os.environ, **dict(pair.split("=", 1) for pair in given.e)}
    env.pop("BASH_ENV", None)  # a file of the container's, not of this machine
    return subprocess.run(given.words, cwd=folder / given.w.lstrip("/"), env=env).returncode


if __name__ == "__main__":
    sys.exit(command_line(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
