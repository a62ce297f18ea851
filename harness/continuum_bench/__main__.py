"""``python -m continuum_bench`` and the ``continuum-bench`` script."""

from __future__ import annotations

import sys
from importlib import import_module

from continuum_bench.ctrl_c import leave_at_once


def main() -> None:
    """Run the command line. If only the client SDK is installed, print one line that says so."""
    leave_at_once()
    try:
        cli = import_module("continuum_bench.cli")
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is not installed; install continuum-ttl[bench]")
    cli.main()


if __name__ == "__main__":
    main()
