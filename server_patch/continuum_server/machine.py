"""The machine on which a process runs, in words, as manifests name it. Reads Linux's /proc; elsewhere less is known."""

from __future__ import annotations

import os
import platform
from collections import Counter
from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
NVIDIA = Path("/proc/driver/nvidia/gpus")


@cache
def machine() -> str:
    """Return the GPUs, the number of cores that this process may use, and the processor: ``1 core of an AMD EPYC``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processor = next(iter(_values(CPU_INFO, "model name")), platform.processor() or platform.machine())
    names = Counter(name for file in sorted(NVIDIA.glob("*/information")) for name in _values(file, "Model"))
    gpus = [f"{number} x {name}" for name, number in names.items()]
    return ", ".join([*gpus, f"{cores} core{'s' * (cores != 1)} of {processor}"])


def _values(file: Path, field: str) -> list[str]:
    """Return the values of a field in a file of lines ``field : value``; empty if there is no such file."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() == field]
