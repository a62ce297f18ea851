"""Pull images and remove containers, with the same command line of Docker (or Podman) that mini-swe-agent uses."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable

from continuum_agents.protocol import BATCH_LABEL
from continuum_traces.names import counted

from continuum_bench.errors import BenchError
from continuum_bench.show import print_notice

GOING = ("No such container", "already in progress")
"""What Docker says of a container that another process is removing."""


def pull_images(images: Iterable[str]) -> None:
    """Pull the images that are missing on this machine, one after the other.

    Raises:
        BenchError: Docker is missing, or reports an error.
    """
    for image in images:
        if _docker("image", "inspect", image).returncode:
            print_notice(f"pulling {image}")
            _checked(_docker("pull", "-q", image))


def remove_containers(batch: str) -> None:
    """Remove the containers of a batch, whether they run or not.

    Raises:
        BenchError: Docker is missing, or reports an error.
    """
    left = _checked(_docker("ps", "-aq", "--filter", f"label={BATCH_LABEL}={batch}")).split()
    if left:
        done = _docker("rm", "-f", "-v", *left)
        if not any(words in done.stderr for words in GOING):
            _checked(done)
        print_notice(f"{counted(len(left), 'container')} removed")


def _docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [os.environ.get("MSWEA_DOCKER_EXECUTABLE", "docker"), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise BenchError(f"--environment docker: {command[0]}: {error.strerror}") from error


def _checked(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a command that must succeed."""
    if done.returncode:
        raise BenchError(f"{' '.join(done.args[:2])}: {' '.join(done.stderr.split())}")
    return done.stdout
