"""Pull images and remove containers for mini-swe-agent: ``python -m continuum_agents.containers``.

The module uses the ``docker`` package in mini-swe-agent's environment. ``pull IMAGE...`` pulls the images that are
missing. ``clean [BATCH]`` removes the containers of one batch, or of all batches, whether they run or not.
"""

from __future__ import annotations

import os
import sys

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from continuum_agents.protocol import BATCH_LABEL


def pull(client: docker.DockerClient, images: list[str]) -> None:
    """Pull the images that are missing on this machine, one after the other."""
    for image in images:
        try:
            client.images.get(image)
        except ImageNotFound:
            sys.stdout.write(f"pulling {image}\n")
            sys.stdout.flush()
            repository, _, tag = image.rpartition(":")
            named = bool(repository) and "/" not in tag
            client.images.pull(repository if named else image, tag=tag if named else "latest")


def clean(client: docker.DockerClient, batch: str | None) -> int:
    """Remove the containers with our label. Return their number."""
    label = BATCH_LABEL if batch is None else f"{BATCH_LABEL}={batch}"
    removed = 0
    for container in client.containers.list(all=True, filters={"label": label}, ignore_removed=True):
        try:
            container.remove(force=True, v=True)
            removed += 1
        except NotFound:
            continue
        except APIError as error:
            if error.status_code != 409:  # 409: another process is removing it
                raise
    return removed


def _message(error: Exception) -> str:
    """Describe an error in one line."""
    silent = isinstance(error, OSError) or isinstance(error.__context__, OSError)  # errors of requests are OSErrors
    if silent and not isinstance(error, APIError):
        return "no daemon answers; is Docker running?"
    return " ".join(str(error).split())


def main(arguments: list[str]) -> int:
    """Run the command. Exit status: 0; 1, Docker's daemon reports an error, which is one line on stderr."""
    try:
        client = docker.from_env()
        if arguments[:1] == ["pull"]:
            pull(client, arguments[1:])
        elif arguments[:1] == ["clean"]:
            removed = clean(client, arguments[1] if len(arguments) > 1 else None)
            sys.stdout.write(f"{removed} container{'' if removed == 1 else 's'} removed\n" if removed else "")
        else:
            raise SystemExit("expected: pull IMAGE... or clean [BATCH]")
    except (DockerException, OSError) as error:
        where = os.environ.get("DOCKER_HOST", "the local socket")
        sys.stderr.write(f"docker ({where}): {_message(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
