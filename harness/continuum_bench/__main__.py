"""``python -m continuum_bench`` and the ``continuum-bench`` script."""

from __future__ import annotations

import sys
from importlib import import_module

from continuum_bench.ctrl_c import leave_at_once


def main() -> None:
    """Run the command line, or print in one line which requirement this environment does not meet."""
    leave_at_once()
    if sys.version_info < (3, 11):
        sys.exit("error: continuum-bench needs Python 3.11 or later; the client SDK works with Python 3.10")
    try:
        cli = import_module("continuum_bench.cli")
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is not installed; run make setup, or pip install '.[bench]' in the checkout")
    cli.main()


if __name__ == "__main__":
    main()
