"""vLLM's own KV offloading with modelled transfers. All code of the virtual engine that uses vLLM's offloading is here.

vLLM's own code are both sides of ``OffloadingConnector``, ``CPUOffloadingManager`` (LRU) and
``TieringOffloadingManager``. Modelled, with vLLM's interfaces, are the copies between GPU and DRAM
(``OffloadingWorker``) and the SSD (``SecondaryTierManager``). See docs/server/offload.md.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingManager,
    OffloadingWorker,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    TransferResult,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm.v1.outputs import KVConnectorOutput

from continuum_server.virtual.config import EngineError
from continuum_server.virtual.links import Link, Links
from continuum_server.virtual.offload import GB, Offload, Tier

Clock = Callable[[], float]


def transfer_config(offload: Offload, gpus: int) -> KVTransferConfig:
    """Return vLLM's configuration of these tiers for a replica of ``gpus`` GPUs."""
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": int(offload.dram.gb * gpus * GB),
        "blocks_per_chunk": offload.blocks_per_chunk,
        "spec_name": "CPUOffloadingSpec",
    }
    if offload.ssd is not None:
        extra |= {
            "spec_name": TwoTiers.__name__,
            "spec_module_path": __name__,
            "ssd_bytes_to_use": int(offload.ssd.gb * gpus * GB),
        }
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        engine_id="virtual",  # the default is random
        kv_connector_extra_config=extra,
    )


# ------------------------------------------------------------------------------------------------ the SSD


class TwoTiers(TieringOffloadingSpec):
    """vLLM's DRAM tier above a modelled SSD. No memory is mapped, because there is no KV data."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._tiers: TieringOffloadingManager | None = None

    def get_manager(self) -> OffloadingManager:
        if self._tiers is None:
            primary = CPUPrimaryTierOffloadingManager(
                num_chunks=self.num_chunks,
                mmap_region=_NoMemory(self.kv_bytes_per_chunk),  # type: ignore[arg-type]
                cache_policy=self.eviction_policy,
            )
            chunks = int(self.extra_config["ssd_bytes_to_use"]) // self.kv_bytes_per_chunk
            ssd = ModelledSsd(self, primary.get_kv_memoryview(), chunks)
            self._tiers = TieringOffloadingManager(primary, [ssd])
        return self._tiers


class _NoMemory:
    """A replacement for the mapped memory of the DRAM tier. vLLM only reads the size of a row of its view."""

    def __init__(self, chunk_bytes: int) -> None:
        self._row: Any = np.zeros((1, chunk_bytes), dtype=np.int8)

    def create_kv_memoryview(self) -> memoryview:
        return memoryview(self._row)

    def cleanup(self) -> None:
        return


class ModelledSsd(SecondaryTierManager):
    """An LRU cache of chunks, which are read and written in modelled time."""

    medium = Medium.STORAGE
    links: Links

    def __init__(self, spec: TwoTiers, primary_view: memoryview, chunks: int) -> None:
        super().__init__(offloading_spec=spec, primary_kv_view=primary_view, tier_type="modelled-ssd")
        self.capacity = chunks
        self.acted = False
        """A transfer started or ended since ``acted`` was set to False."""
        self._held: OrderedDict[OffloadKey, bool] = OrderedDict()
        """The chunks, the least recently used first. The value is False while the chunk is being written."""
        self._reading: dict[OffloadKey, int] = {}
        self._stores: dict[int, list[OffloadKey]] = {}
        self._loads: dict[int, list[OffloadKey]] = {}

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        ready = self._held.get(key)
        if ready is None:
            return LookupResult.MISS
        return LookupResult.HIT if ready else LookupResult.RETRY

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Write the missing chunks, as many as fit. A chunk that is being read or written is not evicted."""
        position = job_metadata.req_context.get_offload_key_position
        keys = sorted(job_metadata.keys, key=lambda key: (position(key) or 0, key))  # vLLM passes a set
        new = [key for key in keys if key not in self._held]
        for key in reversed(keys):  # so that a prefix is evicted after its continuation
            if key in self._held:
                self._held.move_to_end(key)
        kept = new[: self._make_room(len(new))]
        for key in reversed(kept):
            self._held[key] = False
        self._stores[job_metadata.job_id] = kept
        self._submit(job_metadata.job_id, self.links.write, len(kept))

    def _make_room(self, wanted: int) -> int:
        """Evict chunks until ``wanted`` more fit, if possible, and return the number that fits."""
        excess = len(self._held) + wanted - self.capacity
        if excess > 0:
            idle = [key for key, ready in self._held.items() if ready and key not in self._reading]
            for key in idle[:excess]:
                del self._held[key]
        return max(0, min(wanted, self.capacity - len(self._held)))

    def submit_load(self, job_metadata: TransferJob) -> None:
        keys = list(job_metadata.keys)
        for key in reversed(keys):
            self._held.move_to_end(key)
            self._reading[key] = self._reading.get(key, 0) + 1
        self._loads[job_metadata.job_id] = keys
        self._submit(job_metadata.job_id, self.links.read, len(keys))

    def _submit(self, job_id: int, link: Link, chunks: int) -> None:
        self.acted = True
        self.links.start(job_id, link, chunks * self.block_size_bytes)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        ended = self.links.ended()
        self.acted = self.acted or bool(ended)
        for job_id in ended:
            for key in self._stores.pop(job_id, ()):
                self._held[key] = True
            for key in self._loads.pop(job_id, ()):
                self._reading[key] -= 1
                if not self._reading[key]:
                    del self._reading[key]
        return [JobResult(job_id, success=True) for job_id in ended]

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        """Refuse to wait for all transfers. vLLM calls this method when caches are reset, which no replay does."""
        raise EngineError("the caches of a virtual engine cannot be reset while transfers run")


# ------------------------------------------------------------------------------------- GPU <-> DRAM, and a step


class ModelledCopies(OffloadingWorker):
    """The copies between GPU memory and DRAM, with one link in each direction."""

    def __init__(self, links: Links, block_bytes: int) -> None:
        self.links = links
        self.stall_until_s = 0.0
        """When the forward pass may start. Earlier, it would overwrite blocks that are still being copied to DRAM."""
        self._block_bytes = block_bytes
        self._results: dict[int, TransferResult] = {}

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._submit(job_id, self.links.write, src_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._submit(job_id, self.links.read, dst_spec)

    def _submit(self, job_id: int, link: Link, on_gpu: GPULoadStoreSpec) -> bool:
        """Start a transfer. As on a GPU, the time that is reported is that of the copy alone."""
        size = len(on_gpu.block_ids) * self._block_bytes
        self.links.start(job_id, link, size)
        self._results[job_id] = TransferResult(job_id, True, transfer_size=size, transfer_time=size / link.bytes_s)
        return True

    def get_finished(self) -> list[TransferResult]:
        return [self._results.pop(job_id) for job_id in self.links.ended()]

    def wait(self, job_ids: Collection[int]) -> None:
        self.stall_until_s = max(self.stall_until_s, self.links.end_of(set(job_ids)))


def _links(clock: Clock, tier: Tier, gpus: int) -> Links:
    """Return the links for reading and for writing a tier."""
    return Links(clock, *(Link(gb_s * gpus * GB, tier.latency_s) for gb_s in (tier.read_gb_s, tier.write_gb_s)))


class Transfers:
    """Replaces a server's workers: calls the connector in virtual time, in the order of vLLM's model runner.

    Args:
        scheduler: built with the result of ``transfer_config``.
        offload: the tiers of ``transfer_config``.
        gpus: number of GPUs of the replica. Each GPU has its own links.
        block_bytes: bytes of a block of the pool on all GPUs together.
        clock: the clock of the loop.
    """

    def __init__(self, scheduler: Any, offload: Offload, gpus: int, block_bytes: int, clock: Clock) -> None:
        logging.getLogger("vllm.distributed.kv_transfer").setLevel(logging.ERROR)  # it logs stores that find no room
        self._scheduler = scheduler
        self._clock = clock
        self._connector: Any = OffloadingConnector(
            scheduler.vllm_config, KVConnectorRole.WORKER, scheduler.kv_cache_config
        )
        self.copies = ModelledCopies(_links(clock, offload.dram, gpus), block_bytes)
        side: Any = self._connector.connector_worker
        side.worker = self.copies
        self.ssd: ModelledSsd | None = None
        if offload.ssd is not None:
            ssd: ModelledSsd = scheduler.connector.connector_scheduler.manager.secondary_tiers[0]
            ssd.links = _links(clock, offload.ssd, gpus)
            self.ssd = ssd
        self._acted = False
        tiers: Any = scheduler.connector.connector_scheduler
        build = tiers.build_connector_meta

        def build_in_order(output: SchedulerOutput) -> Any:
            """Tell the tiers which requests have ended, in the order of their ids. vLLM keeps these ids in a set, whose
            order differs between processes, and the tiers evict in the order in which requests have ended."""
            output.finished_req_ids = sorted(output.finished_req_ids)  # type: ignore[assignment]
            return build(output)

        tiers.build_connector_meta = build_in_order

    def run_step(self, output: SchedulerOutput) -> tuple[KVConnectorOutput, float]:
        """Run a step's transfers. Return the workers' report, and the time at which the forward pass may start.

        As on a GPU, completed transfers are reported when a forward pass is launched. A transfer that ends during a
        pass is reported with the next pass.
        """
        worker = self._connector
        metadata: Any = output.kv_connector_metadata
        self.copies.stall_until_s = self._clock()
        worker.handle_preemptions(metadata)
        worker.bind_connector_metadata(metadata)
        worker.start_load_kv(None)
        _, received = worker.get_finished(output.finished_req_ids)
        worker.wait_for_save()
        report = KVConnectorOutput(
            finished_recving=received, kv_connector_worker_meta=worker.build_connector_worker_meta()
        )
        worker.clear_connector_metadata()
        jobs = metadata.load_jobs or metadata.store_jobs or metadata.jobs_to_flush
        self._acted = bool(jobs or report.kv_connector_worker_meta or output.finished_req_ids)
        if self.ssd is not None:
            self._acted, self.ssd.acted = self._acted or self.ssd.acted, False
        return report, self.copies.stall_until_s

    @property
    def quiet(self) -> bool:
        """Whether the last step started and reported no transfer, so that nothing changes until a transfer ends."""
        return not (self._acted or self._scheduler.finished_req_ids)

    @property
    def fenced(self) -> bool:
        """Whether free blocks are still being copied to DRAM. A step that takes such a block waits."""
        return bool(self._scheduler.connector.connector_scheduler._block_id_to_pending_jobs)

    @property
    def pending(self) -> bool:
        """Whether the engine must step although it has no requests."""
        return bool(self._scheduler.has_requests())

    def next_s(self) -> float:
        """Return the time at which the next transfer ends; infinite if none is running."""
        copies_s = self.copies.links.next_s()
        return copies_s if self.ssd is None else min(copies_s, self.ssd.links.next_s())

    def facts(self) -> dict[str, Any]:
        """Return the transferred bytes of each link, for engine.json."""
        links = {"gpu_to_dram": self.copies.links.write, "dram_to_gpu": self.copies.links.read}
        if self.ssd is not None:
            links |= {"dram_to_ssd": self.ssd.links.write, "ssd_to_dram": self.ssd.links.read}
        return {name: {"bytes": link.moved_bytes, "busy_s": link.busy_s} for name, link in links.items()}
