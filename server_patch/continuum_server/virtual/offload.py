"""The configuration of tiers: capacity, bandwidth, latency, and presets. Does not import vLLM.

docs/server/offload.md has the sources of the numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from continuum_server.policy.limits import LimitError, Range, check_fields
from continuum_server.step_times.catalog import find_gpu

GB = 1e9
"""Bytes of a GB in capacities and bandwidths."""

PRESETS = ("dram-100", "dram-200", "dram-100+ssd-400", "dram-200+ssd-800", "dram-100@pcie3", "dram-100@pcie4/8")
"""Examples of presets: the papers' sizes in GB per GPU, and links of another PCIe generation than the GPU's."""

PCIE_GB_S = {3: 12.5, 4: 25.0, 5: 50.0}
"""Bandwidth of 16 lanes in one direction with pinned memory, by PCIe generation. nvbandwidth measures 25.1 on an A100
(PCIe 4) and 52.8 on an H100 (PCIe 5). For PCIe 3 half of PCIe 4 is assumed."""
NVME_READ_GB_S, NVME_WRITE_GB_S = 6.5, 3.5
"""Sequential access to one PCIe 4.0 x4 data-centre drive (data sheet of the Samsung PM9A3)."""
DRAM_LATENCY_S, NVME_LATENCY_S = 50e-6, 200e-6
"""Time before a transfer's first byte. Assumptions: a kernel launch and a synchronisation (DRAM), and a read request of
a file (NVMe)."""

CHUNK_BLOCKS = 16
"""``blocks_per_chunk`` of presets, which is 256 tokens. With vLLM's default of 1 a simulation takes twice as long."""

_PRESET = re.compile(r"dram-(\d+(?:\.\d+)?)(?:\+ssd-(\d+(?:\.\d+)?))?(?:@pcie([345])(?:/([1-9]\d?))?)?")
MOST_GB = 1e6
_OLDER_LINK = ("a100", "l40s", "rtx-4090")


class OffloadError(ValueError):
    """A preset of tiers is invalid. The message says why."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier. All numbers are per GPU, because each GPU of a replica has its own link and its own share."""

    gb: Annotated[float, Range(0.0, MOST_GB, above=True)]
    """Capacity in 1e9 bytes."""
    read_gb_s: Annotated[float, Range(above=True)]
    """Bandwidth towards the GPU, in 1e9 bytes per second."""
    write_gb_s: Annotated[float, Range(above=True)]
    latency_s: float = 0.0
    """Seconds from the start of a transfer to its first byte."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Offload:
    """A DRAM tier, with or without an SSD tier. As in vLLM, KV on the SSD is loaded to the GPU through DRAM."""

    dram: Tier
    ssd: Tier | None = None
    blocks_per_chunk: Annotated[int, Range(1)] = 1
    """Number of KV blocks that are moved and evicted together (vLLM's ``blocks_per_chunk``)."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def name(self) -> str:
        """The tiers' sizes in the form of a preset."""
        return f"dram-{self.dram.gb:g}" + (f"+ssd-{self.ssd.gb:g}" if self.ssd is not None else "")


def read_offload(preset: str, gpu: str) -> Offload:
    """Return the tiers of a preset, with the GPU's usual links unless the preset contains others.

    ``@pcie3`` is another PCIe generation than the GPU's. ``@pcie4/8`` is one link, and one SSD, for 8 GPUs: each GPU
    always has an eighth of the bandwidth, as if the other GPUs were always busy.

    Raises:
        OffloadError: the preset does not have the form ``dram-GB+ssd-GB@pcie4/8``. Only the DRAM part is required.
        UnknownPair: the GPU is unknown.
    """
    parts = _PRESET.fullmatch(preset.strip().lower())
    if parts is None:
        raise OffloadError(f"{preset!r}: expected {', '.join(PRESETS)}, or others in that form (GB per GPU)")
    ssd_gb, generation, sharers = parts[2], parts[3], int(parts[4] or 1)
    usual = 4 if find_gpu(gpu).name.startswith(_OLDER_LINK) else 5
    link_gb_s = PCIE_GB_S[int(generation or usual)] / sharers
    try:
        dram = Tier(float(parts[1]), link_gb_s, link_gb_s, DRAM_LATENCY_S)
        read_gb_s, write_gb_s = NVME_READ_GB_S / sharers, NVME_WRITE_GB_S / sharers
        ssd = Tier(float(ssd_gb), read_gb_s, write_gb_s, NVME_LATENCY_S) if ssd_gb else None
    except LimitError as error:
        raise OffloadError(f"{preset!r}: {error}") from error
    return Offload(dram, ssd, CHUNK_BLOCKS)


def default_preset(gpu: str) -> str:
    """Return the papers' DRAM tier: 100 GB per GPU for an A100 or an older GPU, 200 GB for newer GPUs."""
    return "dram-100" if find_gpu(gpu).name.startswith(_OLDER_LINK) else "dram-200"
