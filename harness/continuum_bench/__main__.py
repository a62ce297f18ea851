"""``python -m continuum_bench`` and the ``continuum-bench`` script."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    """Run the command line; one clear line where only the client SDK is installed."""
    try:
        cli = import_module("continuum_bench.cli")
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is not installed; install continuum-ttl[bench]")
    cli.main()


if __name__ == "__main__":
    main()
