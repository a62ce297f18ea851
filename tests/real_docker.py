"""A Docker daemon of the tests' own, and images from files of this machine: nothing is fetched.

It needs root, Debian's ``docker.io``, and a machine that lets it make namespaces and mounts.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from continuum_server.bound_process import BoundProcess
from waiting import until

CANNOT = "Docker cannot run a container here"
OPTIONS = "--iptables=false --ip6tables=false --bridge=none --storage-driver=vfs --shutdown-timeout=1"
"""Of the daemon. It makes no network, and no mount of a file system that the kernel may not have."""


@dataclass(frozen=True)
class Docker:
    """A daemon that runs, with no images and containers but the tests'."""

    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables with which ``docker`` talks to this daemon, and reads no configuration of the user's.

        Without BuildKit: that is a program of its own, which Debian has not.
        """
        host = f"unix://{self.folder}/socket"
        return {"DOCKER_HOST": host, "DOCKER_CONFIG": str(self.folder / "config"), "DOCKER_BUILDKIT": "0"}

    def run(self, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``docker`` with these arguments."""
        command = ["docker", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.variables}, cwd=cwd)

    def output(self, *words: object, cwd: Path | None = None) -> str:
        """As ``run``, for a command that must succeed: what it printed."""
        done = self.run(*words, cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def containers(self, *labels: str) -> list[str]:
        """The ids of containers, running or not, that have all these labels."""
        filters = [f"--filter=label={label}" for label in labels]
        return self.output("ps", "-aq", "--no-trunc", *filters).split()

    @contextmanager
    def image(self, name: str, *changes: str) -> Iterator[Files]:
        """Make an image from the files that are added in the ``with`` block.

        Args:
            name: with its tag.
            changes: instructions of a Dockerfile that change no files, for example ``ENV A=B``.
        """
        path = self.folder / "image.tar"
        with tarfile.open(path, "w") as tar:
            yield Files(tar)
        self.output("import", *(f"--change={change}" for change in changes), path, name)
        path.unlink()


@dataclass(frozen=True)
class Files:
    """The files of an image that is being made. All are root's."""

    tar: tarfile.TarFile
    have: set[str] = field(default_factory=set)
    """The names of its files."""

    def programs(self, *names: str) -> None:
        """Add programs of this machine where they are, with the libraries that they load."""
        for name in names:
            path = shutil.which(name)
            assert path is not None, name
            self.program(Path(path), Path(path))

    def program(self, path: Path, to: Path) -> None:
        """Add a program, and the libraries that it loads where they are."""
        self.folder(path, to)
        self.libraries([path])

    def libraries(self, paths: Iterable[Path], elsewhere: Path | None = None) -> None:
        """Add the libraries that these files load where they are, but none in the folder ``elsewhere``."""
        told = subprocess.run(["ldd", *paths], capture_output=True, text=True).stdout
        for name in map(Path, dict.fromkeys(re.findall(r"^\s.*?(/\S+) \(0x", told, re.MULTILINE))):
            if elsewhere is None or not name.is_relative_to(elsewhere):
                self.folder(name, name)

    def folder(self, path: Path, to: Path, without: Iterable[str] = ()) -> None:
        """Add a file, or a folder with all that is in it but these names. What is there already stays."""
        unwanted = {"__pycache__", *without}

        def owned(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
            if info.name in self.have or Path(info.name).name in unwanted:
                return None
            self.have.add(info.name)
            info.uid, info.gid, info.uname, info.gname = 0, 0, "root", "root"
            return info

        self.tar.add(path.resolve() if path.is_file() else path, str(to), filter=owned)

    def text(self, to: Path, text: str) -> None:
        """Add a program that is text."""
        info = tarfile.TarInfo(str(to))
        info.size, info.mode = len(text.encode()), 0o755
        self.tar.addfile(info, io.BytesIO(text.encode()))


@contextmanager
def real_docker() -> Iterator[Docker]:
    """A daemon that has run a container. Where none can run, the test is skipped."""
    if os.geteuid() != 0 or any(shutil.which(name) is None for name in ("dockerd", "docker")):
        pytest.skip(f"{CANNOT}: it needs root and Debian's docker.io")
    folder = Path(tempfile.mkdtemp(prefix="docker-"))  # a socket's path has at most 107 characters
    docker, log = Docker(folder), folder / "log"
    places = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid"]
    command = ["dockerd", *map(str, places), "-H", docker.variables["DOCKER_HOST"], *OPTIONS.split()]
    with log.open("wb") as file:
        daemon = BoundProcess(command, dict(os.environ), file)
    try:
        until(lambda: daemon.ended or docker.run("version").returncode == 0, 60.0, log)
        if daemon.ended:
            pytest.skip(f"{CANNOT}: dockerd {daemon.ended}: {log.read_text().splitlines()[-1]}")
        with docker.image("true:1") as files:
            files.programs("true")
        first = docker.run("run", "--rm", "--network", "none", "true:1", "true")
        if first.returncode:
            pytest.skip(f"{CANNOT}: {' '.join(first.stderr.split())}")
        yield docker
    finally:
        if left := docker.run("ps", "-aq").stdout.split():
            docker.run("rm", "-f", "-v", *left)
        daemon.terminate()
        with suppress(subprocess.TimeoutExpired):
            daemon.process.wait(60)
        daemon.kill()
        unmount(folder)
        shutil.rmtree(folder)


def unmount(folder: Path) -> None:
    """Unmount what a daemon has left in this folder: the network of the machine, once a container had it."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in places:
        if Path(place).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", place])
