"""A vLLM executor without a GPU: it sleeps for the modelled time of each step and returns scripted answers.

Geometry, KV cache groups and memory are those of the modelled GPU and model. Use:
``--distributed-executor-backend continuum_server.emulated.executor.EmulatedExecutor``. The rest of the server is
vLLM's own: HTTP, tokenizer, engine core, (asynchronous) scheduling and prefix cache, with the plugin.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from continuum_traces.wire import tags_from_xargs
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.kv_cache_interface import KVCacheSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, AsyncModelRunnerOutput, DraftTokenIds, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

from continuum_server.emulated.answer import PlannedAnswer
from continuum_server.emulated.replies import Script, read_script
from continuum_server.emulated.settings import EmulatedError, EmulatedSettings, read_emulated_settings
from continuum_server.emulated.unsupported import lacking
from continuum_server.emulated.vocabulary import Vocabulary, bits_of, certain, certain_of_prompt, first_allowed
from continuum_server.kv_specs import layer_specs, state_mode
from continuum_server.step_times.cache_groups import CacheLayout
from continuum_server.step_times.catalog import find_model
from continuum_server.step_times.model import Batch
from continuum_server.vllm_plugin.online import after_release

logger = logging.getLogger("continuum")
_DEPARTED = "continuum: program %s: the request's strict tools or response format refuse its scripted answer; cut short"


class EmulatedExecutor(UniProcExecutor):
    """An executor with one worker, in the engine core's process."""

    def _init_executor(self) -> None:
        if (lack := lacking(self.vllm_config)) is not None:
            raise EmulatedError(f"the emulated engine cannot do this: {lack}")
        settings = read_emulated_settings(self.vllm_config.additional_config)
        # vLLM's CPU platform disables asynchronous scheduling, which CPU workers do not support but this device does
        self.vllm_config.scheduler_config.async_scheduling = settings.schedules_ahead
        cache = self.vllm_config.cache_config  # vLLM took the mode from the folder's model, which is a Llama
        cache.mamba_cache_mode = state_mode(find_model(settings.model), bool(cache.enable_prefix_caching))
        self.driver_worker: Any = EmulatedWorker(self.vllm_config, settings)


class EmulatedWorker:
    """The device. vLLM's engine core calls its public methods."""

    def __init__(self, vllm_config: VllmConfig, settings: EmulatedSettings) -> None:
        self._config = vllm_config
        self._settings = settings
        self._times, self._speculation = settings.times(), settings.speculation
        self._device = PacedDevice(settings.time_scale)
        self._vocabulary = Vocabulary(vllm_config.model_config)
        self._script = read_script(Path(settings.replies)) if settings.replies else Script({})
        after_release.append(self._script.ended)
        self._answers: dict[str, PlannedAnswer] = {}
        self._pending: _Step | None = None
        self._drafts = DraftTokenIds([], [])

    # --------------------------------------------------------------------------------- at start

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        model, cache = find_model(self._settings.model), self._config.cache_config
        copies, longest = model.kv_copies(self._settings.tensor_parallel), self._config.model_config.max_model_len
        return layer_specs(model, self._layout, copies, longest, bool(cache.enable_prefix_caching))

    def determine_available_memory(self) -> int:
        return self._settings.kv_blocks(self._config.cache_config.block_size) * self._layout.block_bytes

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return ["NHD", "HND"]

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Compile nothing, but raise an error now if the step times do not cover the configuration."""
        scheduler, blocks = self._config.scheduler_config, int(self._config.cache_config.num_gpu_blocks or 0)
        seqs = scheduler.max_num_seqs
        longest = self._config.model_config.max_model_len
        context = self._layout.tokens(blocks, longest, scheduler.max_num_batched_tokens)
        self._times.step_s([], seqs, min(context, seqs * longest))
        return CompilationTimes(0.0, 0.0)

    @property
    def _layout(self) -> CacheLayout:
        return self._settings.layout(self._config.cache_config.block_size)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def update_max_model_len(self, max_model_len: int) -> None:
        self._config.model_config.max_model_len = max_model_len

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a function that does nothing, for vLLM's other calls (clear caches, profile, sleep)."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    # -------------------------------------------------------------------------------- each step

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | None:
        for request_id in output.finished_req_ids:
            self._answers.pop(request_id, None)
        if output.total_num_scheduled_tokens == 0:
            return EMPTY_MODEL_RUNNER_OUTPUT
        computed = self._computed_tokens(output)
        batch, step = Batch(), _Step(list(output.num_scheduled_tokens))
        for request_id, tokens in output.num_scheduled_tokens.items():
            answer, before = self._answers[request_id], computed[request_id]
            drafted = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
            decodes = answer.decodes(tokens, drafted)
            batch.add(tokens, before, decodes)
            step.sampling.append(answer if answer.samples(before + tokens - drafted) else None)
            step.tokens.append(self._accepted(answer, drafted) if decodes else 1)
        step.done_s = self._device.run(batch.step_s(self._times))
        self._pending = step
        return None

    def _accepted(self, answer: PlannedAnswer, drafted: int) -> int:
        """Return the number of tokens of a decode step with so many drafted ones."""
        answer.decode_steps += 1
        return 1 if self._speculation is None else min(self._speculation.tokens(answer.decode_steps - 1), 1 + drafted)

    def take_draft_token_ids(self) -> DraftTokenIds:
        """Return the drafts for the requests that the last step extended. A request with a grammar has none."""
        return self._drafts

    def sample_tokens(self, grammar: GrammarOutput | None) -> AsyncModelRunnerOutput:
        assert self._pending is not None, "sample_tokens without execute_model"
        step, self._pending = self._pending, None
        request_ids, sampling, done_s = step.request_ids, step.sampling, step.done_s
        allowed: dict[str, Any] = {}
        if grammar is not None:
            allowed = dict(zip(grammar.structured_output_request_ids, grammar.grammar_bitmask, strict=False))
        sampled = [
            [] if answer is None else [self._sample(answer, allowed.get(answer.request_id)) for _ in range(tokens)]
            for answer, tokens in zip(sampling, step.tokens, strict=True)
        ]
        if self._speculation is not None:
            drafted = [answer for answer in sampling if answer is not None and not answer.has_grammar]
            drafts = [answer.drafts(self._speculation.drafts) for answer in drafted]
            self._drafts = DraftTokenIds([answer.request_id for answer in drafted], drafts)
        index = {request_id: number for number, request_id in enumerate(request_ids)}
        wanted = max((answer.logprobs for answer in sampling if answer is not None), default=-1)
        output = ModelRunnerOutput(request_ids, index, sampled, logprobs=certain(sampled, wanted))
        output.prompt_logprobs_dict = {
            answer.request_id: answer.prompt_logprobs
            for answer in sampling
            if answer is not None and answer.generated == 1  # a first step yields one token
        }
        return Paced(output, self._device, done_s)

    def _sample(self, answer: PlannedAnswer, bitmask: Any) -> int:
        token = answer.next_token()
        if bitmask is not None:
            bits = bits_of(bitmask)
            if answer.departs(bool(bits[token])):
                logger.warning(_DEPARTED, answer.program)
            token = first_allowed(bits, (*([] if answer.over else [token]), *self._vocabulary.closing))
        if answer.completes(token):
            self._script.delivered(answer.program)
            if answer.is_last_step:
                self._script.ended(answer.program)
        return token

    def _computed_tokens(self, output: SchedulerOutput) -> dict[str, int]:
        """Return the tokens of each scheduled request that are already in KV, and plan the answers of new requests."""
        computed = {}
        for new in output.scheduled_new_reqs:
            computed[new.req_id] = new.num_computed_tokens
            if new.req_id not in self._answers:
                self._answers[new.req_id] = self._plan(new)
        cached = output.scheduled_cached_reqs
        for number, request_id in enumerate(cached.req_ids):
            computed[request_id] = cached.num_computed_tokens[number]
            if request_id in cached.resumed_req_ids:
                self._answers[request_id].generated = cached.num_output_tokens[number]
        return computed

    def _plan(self, new: Any) -> PlannedAnswer:
        params = new.sampling_params
        prompt_tokens = len(new.prompt_token_ids) if new.prompt_token_ids is not None else new.prompt_embeds.shape[0]
        of_prompt = certain_of_prompt(new.prompt_token_ids or (), params.prompt_logprobs)
        grammar = params.structured_outputs is not None
        wanted: Any = {"logprobs": -1 if params.logprobs is None else params.logprobs, "prompt_logprobs": of_prompt}
        tags = tags_from_xargs(params.extra_args or {}).tags
        program = tags.program_id
        reply = self._script.due(program, self._vocabulary.answers_in(new.prompt_token_ids or ()))
        ends = reply is not None or not params.ignore_eos
        if reply is not None:
            planned = reply.tokens(self._vocabulary.encode)
        else:
            length = params.max_tokens if params.ignore_eos else self._settings.unscripted_tokens
            planned = self._vocabulary.filler(f"{program}/{prompt_tokens}", min(length or 1, 4096))
        planned += [self._vocabulary.end] * ends
        scripted = reply is not None
        return PlannedAnswer(
            new.req_id,
            prompt_tokens,
            planned,
            program,
            bool(tags.is_last_step),
            ends=ends,
            scripted=scripted,
            has_grammar=grammar,
            **wanted,
        )


@dataclass(slots=True)
class _Step:
    """A step whose tokens are not sampled yet."""

    request_ids: list[str]
    sampling: list[PlannedAnswer | None] = field(default_factory=list)
    """The answer that the step extends, for each request; None: the step computes a part of the prompt."""
    tokens: list[int] = field(default_factory=list)
    """By how many tokens it extends each answer."""
    done_s: float = 0.0


class PacedDevice:
    """A device on which modelled time passes in real time. New work waits for earlier work, as on a GPU's stream."""

    def __init__(self, time_scale: float) -> None:
        self._scale = time_scale
        self._clock = time.monotonic  # noqa: TID251 - the device's own clock
        self._free_s = 0.0

    def run(self, modelled_s: float) -> float:
        """Queue work of ``modelled_s`` seconds, and return the time at which it will be done."""
        self._free_s = max(self._free_s, self._clock()) + modelled_s / self._scale
        return self._free_s

    def wait_until(self, instant_s: float) -> None:
        remaining = instant_s - self._clock()
        if remaining > 0:
            time.sleep(remaining)


class Paced(AsyncModelRunnerOutput):
    """The result of a step, which is available when the step's time has passed."""

    def __init__(self, output: ModelRunnerOutput, device: PacedDevice, done_s: float) -> None:
        self._output, self._device, self._done_s = output, device, done_s

    def get_output(self) -> ModelRunnerOutput:
        self._device.wait_until(self._done_s)
        return self._output

    def get_kv_connector_output(self) -> None:
        """Return None: this device has no KV connector. vLLM calls this method from 0.33 on."""
