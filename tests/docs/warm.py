"""``continuum-bench`` kept warm: one process that runs many commands, so that vLLM is imported once.

    python warm.py SOCKET

Each connection sends ``[folder, arguments]`` as JSON and gets the output, then the exit code as the last line.
"""

from __future__ import annotations

import io
import json
import multiprocessing.process
import os
import socket
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from continuum_bench.cli import main


def run(folder: str, arguments: list[str]) -> tuple[str, int]:
    """Output and exit code of one command."""
    os.chdir(folder)
    multiprocessing.process.ORIGINAL_DIR = folder  # where processes of an experiment start
    sys.argv, code, output = ["continuum-bench", *arguments], 0, io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            if isinstance(stop.code, str):
                output.write(stop.code)
        except Exception:  # noqa: BLE001 - the edge of this process
            traceback.print_exc()
            code = 70
    return output.getvalue(), code


if __name__ == "__main__":
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{sys.argv[1]}.new")
    listener.listen()
    Path(f"{sys.argv[1]}.new").rename(sys.argv[1])  # who finds it can connect
    while True:
        connection, _ = listener.accept()
        with connection:
            output, code = run(*json.loads(connection.makefile().read()))
            connection.sendall(f"{output}\n{code}".encode())
