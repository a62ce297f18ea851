"""``python -m continuum_bench``."""

from continuum_bench.cli import main

main()
