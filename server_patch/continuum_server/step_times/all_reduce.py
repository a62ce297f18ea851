"""All-reduces over PCIe on machines whose GPUs cannot access each other's memory.

NVIDIA measured all-reduces between two RTX PRO 6000 twice (aiconfigurator-core 0.12, custom_allreduce_perf of vLLM
0.19.0 and 0.24.0): 20 us and 15.2 GB/s, and 4 us and 36 GB/s. The tables contain the second measurement. We interpret
the first one as an exchange through the host's memory, without peer-to-peer access. Step times use it, because it is
the slower one, and closer to the one server that was checked (docs/results/trust.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from continuum_server.step_times.specs import Gpu, Model

THROUGH_HOST_US, THROUGH_HOST_GB_S = 20.0, 15.2
PEER_US, PEER_GB_S = 4.0, 36.0
NOTE = (
    "all-reduces through the host's memory, 20 us and 15.2 GB/s as NVIDIA measured with vLLM 0.19.0; with peer-to-peer "
    "access they take 4 us and 36 GB/s"
)


@dataclass(frozen=True, slots=True)
class SlowLink:
    """The time that all-reduces take in addition to a table's times."""

    step_ms: float
    token_ms: float


def slow_link(gpu: Gpu, model: Model, tensor_parallel: int) -> SlowLink | None:
    """Return the additional time of all-reduces; None: the table's times are used."""
    if gpu.name != "rtx-pro-6000" or tensor_parallel == 1:
        return None
    moved = 2 * 2 * model.hidden * (tensor_parallel - 1) / tensor_parallel
    all_reduces = 2 * model.layers
    return SlowLink(
        all_reduces * (THROUGH_HOST_US - PEER_US) / 1e3,
        all_reduces * moved * (1.0 / THROUGH_HOST_GB_S - 1.0 / PEER_GB_S) / 1e6,
    )
