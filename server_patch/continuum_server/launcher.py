"""Start, watch and stop a vLLM server with the plugin: for ``continuum-bench serve``, tests and sweeps.

Three engines: ``gpu`` (vLLM as installed), ``emulated`` (no GPU, modelled step times, scripted answers) and ``cpu`` (a
tiny random Llama, everything computed). Imports no vLLM; the server is a process of its own.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import IO, Any, Literal

from continuum_traces.run_dir import RunDirError, read_json

from continuum_server import defaults
from continuum_server.bound_process import BoundProcess
from continuum_server.emulated.replies import read_script
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.local_model import TINY, ensure_model
from continuum_server.policy.catalog import PolicyError, find_policy, read_options
from continuum_server.policy.program_table import Guards
from continuum_server.policy.tool_statistics import merge_statistics
from continuum_server.recorder import check_folder
from continuum_server.step_times.catalog import find_model, kv_capacity, load_step_times
from continuum_server.step_times.profile import read_profile
from continuum_server.step_times.specs import Model
from continuum_server.virtual.config import fit_decode, fit_prefill
from continuum_server.vllm_plugin.settings import Settings
from continuum_server.vllm_plugin.versions import check_version

EngineName = Literal["gpu", "emulated", "cpu"]
STOCK = "stock"
"""As a policy: vLLM's own scheduler, without the plugin."""

SCHEDULER = "continuum_server.vllm_plugin.scheduler.make"
MIDDLEWARE = "continuum_server.vllm_plugin.middleware.ContinuumMiddleware"
EXECUTOR = "continuum_server.emulated.executor.EmulatedExecutor"


ServerState = Literal["serving", "unhealthy", "dead"]
"""unhealthy: its process runs, and its /health does not say that all is well."""


class ServerError(Exception):
    """A server that cannot start, or died; the message says why, with the end of its log."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One server."""

    engine: EngineName = "emulated"
    policy: str = defaults.POLICY
    policy_options: dict[str, Any] = field(default_factory=dict)
    guards: Guards = field(default_factory=Guards)
    model: str | None = None
    """gpu: what vLLM is to load; emulated: a model the step times know; cpu: default a tiny one, built on the spot."""
    emulated: EmulatedSettings = field(default_factory=EmulatedSettings)
    host: str = defaults.HOST
    port: int = defaults.PORT
    """0: a free one."""
    max_num_seqs: int = defaults.MAX_NUM_SEQS
    chunk_tokens: int = defaults.MAX_NUM_BATCHED_TOKENS
    block_size: int | None = None
    """None: vLLM's choice on a GPU, 16 emulated, 32 on cpu."""
    kv_blocks: int | None = None
    max_model_len: int | None = None
    record: Path | None = None
    statistics: Path | None = None
    profile: Path | None = None
    """File of ``continuum-bench profile`` with the measured prefill curve; emulated: the modelled one where absent."""
    tool_call_parser: str | None = defaults.TOOL_CALL_PARSER
    """None: no tool calls are parsed. On a GPU name the model's own."""
    drain_s: int = defaults.DRAIN_S
    """Seconds running requests get at SIGTERM."""
    gpus: int = 1
    """GPUs of its own (engine gpu)."""
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES; None: as they are."""
    vllm_arguments: tuple[str, ...] = ()
    """Passed to vLLM as they are."""


class Server:
    """A running server; a context manager that leaves no process behind.

    Args:
        config: what to run; ``port`` 0 takes a free one.
        log: where its output goes; default this process's stderr.

    Raises:
        ServerError: the port cannot be had, the log or the statistics cannot be written.
        RunDirError: nor the record, or another server writes there.
        ServerError, PolicyError, StepTimesError, EmulatedError: as ``command_of``.
    """

    def __init__(self, config: ServerConfig, log: Path | None = None) -> None:
        check_port(config.host, config.port)
        _check_outputs(config, log)
        self.port = config.port or free_ports(1)[0]
        self.url = f"http://{config.host}:{self.port}"
        self.config = config
        self._log_path = log
        self._log: IO[bytes] | None = _opened(log) if log is not None else None
        self._stopping = False
        command, environment = command_of(config, self.port)
        self._bound = BoundProcess(command, {**os.environ, **environment}, self._log or sys.stderr.fileno())
        self.process = self._bound.process

    def wait_until_healthy(self, timeout_s: float = 600.0) -> None:
        """Return once /health answers.

        Raises:
            ServerError: it died, or ``timeout_s`` passed.
        """
        deadline_s = now_s() + timeout_s
        while now_s() < deadline_s:
            if self._bound.ended:
                raise ServerError(f"the server {self._bound.ended}{self._tail()}")
            if answers(f"{self.url}/health"):
                return
            time.sleep(0.2)
        raise ServerError(f"the server was not healthy after {timeout_s:g} s{self._tail()}")

    def wait(self, timeout_s: float) -> None:
        """Return once it ended because it was asked to.

        Raises:
            ServerError: it ended by itself; says how, and where its log is.
            subprocess.TimeoutExpired: it still runs after ``timeout_s``.
        """
        self.process.wait(timeout_s)
        if not self._stopping:
            raise ServerError(f"the server {self.how_it_ended()}")

    def how_it_ended(self) -> str | None:
        """The rest of a sentence that names the log; None while it runs."""
        ended = self._bound.ended
        if self.process.returncode == 0:
            ended = f"{ended}, as vLLM does when its engine dies"
        where = f"see {self._log_path}" if self._log_path is not None else "its log is above"
        return f"{ended}; {where}" if ended else None

    def state(self) -> ServerState:
        """What a client would find now; waits for it two seconds at most."""
        if self._bound.ended:
            return "dead"
        return "serving" if answers(f"{self.url}/health") else "unhealthy"

    def terminate(self) -> None:
        """Ask it to finish what runs and stop; does not wait."""
        self._stopping = True
        self._bound.terminate()

    def kill(self) -> None:
        """Stop it and all its processes at once, and wait for that."""
        self._stopping = True
        self._bound.kill()

    def kill_group(self) -> None:
        """Send SIGKILL to all its processes; does not wait, so that a signal handler may call it."""
        self._stopping = True
        self._bound.kill_group()

    def stop(self, timeout_s: float | None = None) -> int:
        """``terminate``, and ``kill`` if that takes too long; the exit status."""
        if self.process.poll() is None:
            self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(self.config.drain_s + 30.0 if timeout_s is None else timeout_s)
        self.kill()  # whatever is left of its group
        if self._log is not None:
            self._log.close()
        return int(self.process.returncode)

    def _tail(self) -> str:
        if self._log_path is None:
            return "; its log is above"
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "Error" in line][-3:]
        return f"; log {self._log_path} ends:\n" + "\n".join(errors or lines[-5:])

    def __enter__(self) -> Server:
        try:
            self.wait_until_healthy()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def command_of(config: ServerConfig, port: int) -> tuple[list[str], dict[str, str]]:
    """The command line of the server and what its environment needs beside ours.

    Raises:
        ServerError: options that do not go together, or no vLLM.
        PolicyError, StepTimesError: an unknown policy, GPU or model.
        EmulatedError: scripted replies that cannot be read.
    """
    check_version()
    _check(config)
    model, name = _model(config)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--host", config.host, "--port", str(port), "--enable-prompt-tokens-details"]
    command += ["--max-num-seqs", str(config.max_num_seqs), "--max-num-batched-tokens", str(config.chunk_tokens)]
    command += _optional("--served-model-name", name) + _optional("--max-model-len", longest_request(config))
    command += _optional("--num-gpu-blocks-override", config.kv_blocks) + _optional("--block-size", _block_size(config))
    if config.tool_call_parser is not None:
        command += ["--enable-auto-tool-choice", "--tool-call-parser", config.tool_call_parser]
    if _has_flag("shutdown_timeout"):
        command += ["--shutdown-timeout", str(config.drain_s)]
    if config.engine != "gpu":
        command += ["--load-format", "dummy", "--enforce-eager"]
    if config.engine == "emulated":
        command += ["--distributed-executor-backend", EXECUTOR]
    if config.policy != STOCK:
        command += ["--scheduler-cls", SCHEDULER]
    command += ["--middleware", MIDDLEWARE, "--additional-config", json.dumps(_additional(config))]
    return command + list(config.vllm_arguments), _environment(config)


def longest_request(config: ServerConfig) -> int | str | None:
    """Tokens of the longest prompt plus output, for vLLM; None: it takes the model's own, ``auto``: what fits.

    vLLM starts only where one such request fits into the KV pool, one block of which it keeps for itself.

    Raises:
        ServerError: ``max_model_len`` does not fit.
        StepTimesError: no such GPU or model, or weights that do not fit.
    """
    given = config.max_model_len
    if given is None and _is_passed_on("max-model-len", config.vllm_arguments):
        return None
    model = _known_model(config)
    if model is None:
        return "auto" if given is None and config.kv_blocks is not None else given
    blocks, size = config.kv_blocks or _modelled_blocks(config), _block_size(config)
    if blocks is None or size is None:
        return given
    room = (blocks - 1) * size
    if given is not None and given > room:
        raise ServerError(
            f"a prompt plus output of {given} tokens does not fit {blocks} KV blocks, which hold one of {room}; "
            "allow less (--max-model-len) or more blocks (--kv-blocks)"
        )
    return room if given is None and room < model.max_context_tokens else given


def client_line(server_url: str, model: str) -> str:
    """What to paste into a Python client."""
    return f'OpenAI(base_url="{server_url}/v1", api_key="EMPTY")  # model="{model}"'


def model_name(config: ServerConfig) -> str:
    """The name clients ask for."""
    return _model(config)[1] or str(config.model)


def _check(config: ServerConfig) -> None:
    if config.policy != STOCK:
        policy = find_policy(config.policy)
        if policy.label == "bound":
            raise PolicyError(f"policy {policy.name!r} knows the future: a bound for studies, no server can run it")
        read_options(policy, config.policy_options)
    if config.engine == "gpu" and config.model is None:
        raise ServerError("engine gpu needs a model: what vLLM is to load")
    if config.engine not in ("gpu", "emulated", "cpu"):
        raise ServerError(f"unknown engine {config.engine!r}; there are: gpu, emulated, cpu")
    if config.engine != "emulated" and config.model is not None:
        _check_folder_of_model(config.model)
    if config.engine == "emulated" and config.emulated.replies is not None:
        read_script(Path(config.emulated.replies))
    if config.chunk_tokens < config.max_num_seqs:
        raise ServerError(
            f"{config.chunk_tokens} tokens of a step are fewer than {config.max_num_seqs} running requests, each of "
            "which needs one; raise --chunk-tokens or lower --max-num-seqs"
        )
    if config.policy != STOCK or config.engine == "emulated":
        _check_passed_on(config.vllm_arguments)


def _check_folder_of_model(model: str) -> None:
    """What is no folder here is a name, which vLLM looks up."""
    folder = Path(model).expanduser()
    if folder.is_absolute() and not folder.exists():
        raise ServerError(f"model {model}: no such folder")
    if folder.is_dir() and not any((folder / name).is_file() for name in ("config.json", "params.json")):
        raise ServerError(f"model {model}: that folder has no config.json")


def _check_passed_on(vllm_arguments: Sequence[str]) -> None:
    """What vLLM is told twice it takes from the last: a user's settings would replace all of ours, unread."""
    name = _is_passed_on("additional-config", vllm_arguments)
    if name:
        raise ServerError(f"{name}: the server's settings go there; give them as options of their own (--help)")
    if sum(each == "--api-key" or each.startswith("--api-key=") for each in vllm_arguments) > 1:
        raise ServerError("--api-key: given twice, of which vLLM takes the last; several keys are --api-key A B")


def _is_passed_on(option: str, vllm_arguments: Sequence[str]) -> str | None:
    """The option as it was written, where it goes to vLLM as it is."""
    for argument in vllm_arguments:
        if argument.replace("_", "-").startswith(f"--{option}"):
            return argument.split("=")[0]
    return None


def _known_model(config: ServerConfig) -> Model | None:
    """The model whose geometry we know; None: vLLM alone knows it."""
    if config.engine == "emulated":
        return find_model(config.model or config.emulated.model)
    return TINY if config.engine == "cpu" and config.model is None else None


def _modelled_blocks(config: ServerConfig) -> int | None:
    """KV blocks of the emulated GPU; None: the engine is another, and vLLM counts them."""
    if config.engine != "emulated":
        return None
    of, model = config.emulated, config.model or config.emulated.model
    size = _block_size(config) or 1
    return kv_capacity(of.gpu, model, of.tensor_parallel, of.gpu_memory_utilization, size).num_blocks


def _model(config: ServerConfig) -> tuple[str, str | None]:
    """What vLLM loads, and the name it serves it under."""
    model = _known_model(config)
    if model is None:
        return str(config.model), None
    try:
        return str(ensure_model(model)), model.name
    except OSError as error:
        raise ServerError(f"{error.filename}: cannot write the model's folder: {error.strerror}") from error


def _block_size(config: ServerConfig) -> int | None:
    return config.block_size or {"emulated": defaults.BLOCK_SIZE, "cpu": 32, "gpu": None}[config.engine]


def _additional(config: ServerConfig) -> dict[str, Any]:
    emulated = config.emulated
    if config.model is not None and config.engine == "emulated":
        emulated = EmulatedSettings(**{**asdict(emulated), "model": config.model})
    settings = Settings(
        policy=config.policy,
        policy_options=config.policy_options,
        guards=config.guards,
        **_speeds(config, emulated),
        record_path=str(config.record.absolute()) if config.record else None,
        statistics_path=str(config.statistics.absolute()) if config.statistics else None,
        tool_parser=config.tool_call_parser,
    )
    found = settings.to_config() if config.policy != STOCK else {}
    return {**found, **emulated.to_config()} if config.engine == "emulated" else found


def _speeds(config: ServerConfig, emulated: EmulatedSettings) -> dict[str, Any]:
    """How fast the engine computes prompts and decodes, as far as anybody said."""
    if config.profile is not None:
        profile = read_profile(config.profile)
        return {"prefill": profile.prefill_curve, "decode": profile.decode_line}
    if config.engine == "emulated":
        times = load_step_times(emulated.gpu, emulated.model, emulated.tensor_parallel, emulated.step_overhead_ms)
        prefill = fit_prefill(times, find_model(emulated.model).max_context_tokens)
        return {"prefill": prefill, "decode": fit_decode(times)}
    return {}


def _environment(config: ServerConfig) -> dict[str, str]:
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if config.engine != "gpu":  # the model is a folder here: nothing is to be looked up
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if config.engine == "cpu":
        environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
    if config.devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = config.devices
    return environment


def _optional(flag: str, value: object | None) -> list[str]:
    return [] if value is None else [flag, str(value)]


def _has_flag(name: str) -> bool:
    """Whether the installed vLLM's command line knows a flag; read from its source, which importing takes seconds."""
    for package in ("vllm", "vllm-cpu"):
        try:
            source = Path(str(distribution(package).locate_file("vllm/engine/arg_utils.py")))
            return name in source.read_text(encoding="utf-8")
        except (PackageNotFoundError, OSError):
            continue
    return False


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether a GET brings a good answer in time; never through a proxy of the environment's."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s):
            return True
    except (OSError, http.client.HTTPException):
        return False


def free_ports(number: int) -> list[int]:
    """Ports nobody listens on at this moment, all different."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def check_port(host: str, port: int) -> None:
    """Raises:
    ServerError: nobody can listen there, or somebody does and would answer in the server's place until that fails.
    """
    hold_port(host, port).close()


def hold_port(host: str, port: int) -> socket.socket:
    """A socket that listens there, so that nobody else can; errors as ``check_port``."""
    with listening(host, port):
        return socket.create_server((host, port))


@contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """Raises:
    ServerError: in place of the error of a socket that cannot listen there.
    """
    try:
        yield
    except OverflowError as error:
        raise ServerError(f"port {port}: must be from 0 (a free one) to 65535") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServerError(f"port {port} of {host} is taken; choose another (0: a free one)") from error
        raise ServerError(f"host {host}, port {port}: cannot listen there: {error.strerror}") from error


def _check_outputs(config: ServerConfig, log: Path | None) -> None:
    """Make the folders of what the server writes: inside it, what cannot be written is a line of its log at best.

    Raises:
        ServerError: a folder that cannot be made, or a file of statistics that is something else and would be replaced.
        RunDirError: the record's cannot be written, or another server writes there.
    """
    for path in (log, config.statistics):
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ServerError(f"{path.parent}: cannot make that folder: {error.strerror}") from error
    if config.record is not None and config.policy != STOCK:
        check_folder(config.record)
    if config.statistics is not None and config.statistics.exists():
        try:
            merge_statistics([read_json(config.statistics)])
        except RunDirError as error:
            raise ServerError(str(error)) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(f"{config.statistics}: no statistics of tools: {error}") from error


def _opened(log: Path) -> IO[bytes]:
    try:
        return log.open("ab")
    except OSError as error:
        raise ServerError(f"{log}: cannot write: {error.strerror}") from error


def now_s() -> float:
    """Seconds, for waiting only."""
    return time.monotonic()  # noqa: TID251 - waiting for a process, nothing is measured
