"""The emulated engine's settings: ``--additional-config '{"continuum_emulated": {...}}'``. Needs no vLLM."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from continuum_server import defaults
from continuum_server.policy.limits import LimitError, Range, check_fields
from continuum_server.step_times.cache_groups import CacheLayout, layout_of
from continuum_server.step_times.catalog import find_model, kv_capacity, load_step_times
from continuum_server.step_times.model import StepTimes
from continuum_server.step_times.speculation import Speculation, SpeculativeStepTimes, draft_share, read_speculation
from continuum_server.vllm_plugin.plugin_settings import read_section

SECTION = "continuum_emulated"


class EmulatedError(ValueError):
    """A setting or a script of the emulated engine cannot be used. The message names file, line and field."""


@dataclass(frozen=True, slots=True)
class EmulatedSettings:
    """Settings of one emulated server: the modelled hardware, and the answers."""

    gpu: str = defaults.GPU
    model: str = defaults.MODEL
    tensor_parallel: Annotated[int, Range(1, 1_000_000)] = defaults.TENSOR_PARALLEL
    """Step times and memory are those of this many GPUs. vLLM itself always runs with one device."""
    gpu_memory_utilization: Annotated[float, Range(0.0, 1.0, above=True)] = defaults.GPU_MEMORY_UTILIZATION
    step_overhead_ms: float | None = defaults.STEP_OVERHEAD_MS
    step_times: str = defaults.STEP_TIMES
    time_scale: Annotated[float, Range(above=True)] = 1.0
    """Modelled seconds per real second. With 10, the server runs ten times faster than the modelled GPU."""
    async_scheduling: bool = True
    """Schedule the next step while a step runs, as vLLM does on a GPU."""
    speculative: str | None = None
    """Speculative decoding as a model, ``DRAFTS:LENGTH`` (``read_speculation``); None: there is none."""
    replies: str | None = None
    """File of scripted replies (JSON lines). None: every answer is filler text."""
    unscripted_tokens: Annotated[int, Range(1, 1_000_000_000)] = 64
    """Length of an answer of filler text in tokens, if the request sets no length."""

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except LimitError as error:
            raise EmulatedError(str(error)) from error

    @property
    def speculation(self) -> Speculation | None:
        """Raises StepTimesError: ``speculative`` has another form."""
        return None if self.speculative is None else read_speculation(self.speculative)

    @property
    def schedules_ahead(self) -> bool:
        """Whether two steps are in flight. With drafts there is one, because they are those of the step before."""
        return self.async_scheduling and self.speculation is None

    def times(self) -> StepTimes:
        times = load_step_times(self.gpu, self.model, self.tensor_parallel, self.step_overhead_ms, band=self.step_times)
        if self.speculation is None:
            return times
        return SpeculativeStepTimes(times, self.speculation, draft_share(find_model(self.model)))

    def layout(self, block_size: int) -> CacheLayout:
        """Return the model's KV cache groups for vLLM's ``--block-size``."""
        drafts = 0 if self.speculation is None else self.speculation.drafts
        return layout_of(find_model(self.model), self.tensor_parallel, block_size, drafts)

    def kv_blocks(self, block_size: int) -> int:
        """Return the number of KV blocks that fit the modelled GPUs."""
        return kv_capacity(
            self.gpu, self.model, self.tensor_parallel, self.gpu_memory_utilization, block_size
        ).num_blocks

    def to_config(self) -> dict[str, Any]:
        """Return the settings as a section of vLLM's ``additional_config``."""
        return {SECTION: asdict(self)}


def read_emulated_settings(additional_config: Any) -> EmulatedSettings:
    """Read the settings from ``vllm_config.additional_config``.

    Raises:
        EmulatedError: an unknown name, or a value that is not allowed.
    """
    return read_section(additional_config, SECTION, EmulatedSettings, EmulatedError)
