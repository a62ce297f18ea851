"""The command line that starts a server, and checks of options that vLLM itself would check late or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from continuum_traces.names import which

from continuum_server import defaults
from continuum_server.defaults import KEY_WEIGHTS, TENANT_HEADER
from continuum_server.emulated import unsupported
from continuum_server.emulated.replies import read_script
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.local_model import RANDOM, TINY, ensure_model
from continuum_server.policy.registry import (
    ONLY_IN_REPLAYS,
    PolicyError,
    UnknownPolicy,
    find_policy,
    read_options,
    servable,
)
from continuum_server.server_config import STOCK, ServerConfig, ServerError
from continuum_server.step_times.catalog import find_model
from continuum_server.step_times.curves import fit_decode, fit_prefill
from continuum_server.step_times.model import OutOfRange
from continuum_server.step_times.profile import read_profile
from continuum_server.step_times.specs import Model
from continuum_server.vllm_plugin.parser_names import REASONING, TOOL_CALLS, names_of
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_server.vllm_plugin.versions import check_version

SCHEDULER = "continuum_server.vllm_plugin.scheduler.make"
MIDDLEWARE = "continuum_server.vllm_plugin.middleware.ContinuumMiddleware"
VLLM = "vllm.entrypoints.openai.api_server"
EMULATED = "continuum_server.emulated.api_server"
EXECUTOR = "continuum_server.emulated.executor.EmulatedExecutor"
DRAFTER = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 2}
"""What vLLM is told of the emulated engine's drafts: a method that needs no model. Its scheduler sees their number."""
HARMONY = "openai"
"""vLLM's parser of the tool calls of gpt-oss."""
OWN = ("--host", "--port", "--model", "--data-parallel-size")
"""Options of vLLM that are options of ``serve`` too, which asks that server, and plans for that model and so many
engines."""
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
"""Files in a model's folder that hold its weights."""


def command_of(config: ServerConfig, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the server's command line, and environment variables to be set in addition to this process's.

    Raises:
        ServerError: options that exclude each other, or vLLM is not installed.
        PolicyError, StepTimesError: an unknown policy, GPU or model.
        EmulatedError: the file of scripted replies cannot be used.
    """
    check_version()
    _check(config)
    model, name = _model(config)
    command = [sys.executable, "-m", EMULATED if config.engine == "emulated" else VLLM, "--model", model]
    command += ["--host", config.host, "--port", str(port), "--enable-prompt-tokens-details"]
    command += _flag("--max-num-seqs", config.max_num_seqs)
    command += _flag("--max-num-batched-tokens", config.chunk_tokens)
    command += ["--served-model-name", *dict.fromkeys([name, config.model or name])] if name else []
    command += _flag("--max-model-len", longest_request(config))
    command += _flag("--num-gpu-blocks-override", config.kv_blocks) + _flag("--block-size", _block_size(config))
    parser = _tool_call_parser(config)
    if parser is not None:
        command += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    command += ["--shutdown-timeout", str(config.drain_s)]
    command += ["--disable-access-log-for-endpoints", "/health"]  # load balancers ask for it every second
    if config.data_parallel_size > 1:
        command += ["--data-parallel-size", str(config.data_parallel_size)]
    if config.engine == "gpu":
        command += _flag("--tensor-parallel-size", config.gpus)
        command += _flag("--gpu-memory-utilization", config.gpu_memory_utilization)
    else:
        command += ["--enforce-eager"]
    if has_random_weights(config):
        command += ["--load-format", "dummy"]
    if config.engine == "emulated":
        command += ["--distributed-executor-backend", EXECUTOR]
        if (speculation := _emulated(config).speculation) is not None:
            command += ["--speculative-config", json.dumps({**DRAFTER, "num_speculative_tokens": speculation.drafts})]
    if config.policy != STOCK:
        command += ["--scheduler-cls", SCHEDULER]
    command += ["--middleware", MIDDLEWARE, "--additional-config", json.dumps(_additional_config(config))]
    return [*command, *config.vllm_arguments], _environment(config)


def longest_request(config: ServerConfig) -> int | str | None:
    """Return the value of vLLM's ``--max-model-len``: the number of tokens of the longest prompt plus output.

    None: vLLM uses the model's own limit. ``auto``: vLLM uses the largest number that fits. vLLM starts only if one
    request of this length fits the KV pool, and it keeps one block of the pool for itself.

    Raises:
        ServerError: a request of ``max_model_len`` tokens, or any, does not fit the KV pool.
        StepTimesError: an unknown GPU or model, or the model's weights do not fit the GPU.
    """
    wanted = config.max_model_len
    if wanted is None and _passed_on("max-model-len", config.vllm_arguments):
        return None
    model = _known_model(config)
    if model is None:
        return "auto" if wanted is None and config.kv_blocks is not None else wanted
    blocks, size = config.kv_blocks, _block_size(config)
    if blocks is None and size is not None and config.engine == "emulated":
        blocks = _emulated(config).kv_blocks(size)
    if blocks is None or size is None:
        return wanted
    room = _room(config, model, blocks - 1, size)
    if room < 1:
        raise ServerError(f"{blocks} KV blocks hold no request of {model.name}; allow more (--kv-blocks)")
    if wanted is not None and wanted > room:
        raise ServerError(
            f"a prompt plus output of {wanted} tokens does not fit {blocks} KV blocks, which hold {room} tokens; "
            "allow less (--max-model-len) or more blocks (--kv-blocks)"
        )
    return room if wanted is None and room < model.max_context_tokens else wanted


def _room(config: ServerConfig, model: Model, blocks: int, block_size: int) -> int:
    """Return the tokens of the longest request that fits into so many blocks."""
    if config.engine != "emulated":
        return blocks * block_size
    emulated = _emulated(config)
    in_flight = config.chunk_tokens * (1 + emulated.schedules_ahead)
    return emulated.layout(block_size).longest(blocks, model.max_context_tokens, in_flight)


def model_name(config: ServerConfig) -> str:
    """Return the model name that clients send."""
    return _passed_value("served-model-name", config.vllm_arguments) or _model(config)[1] or str(config.model)


def tokenizer_folder(config: ServerConfig) -> str | None:
    """Return the folder of the model's tokenizer, for clients that count tokens; None: it is the model's own."""
    return None if _known_model(config) is None else _model(config)[0]


def needs_key(config: ServerConfig) -> bool:
    """Whether clients must send an API key."""
    return _passed_on("api-key", config.vllm_arguments) is not None or bool(os.environ.get("VLLM_API_KEY"))


def scheme_of(config: ServerConfig) -> str:
    """Return ``https`` if vLLM is told of a certificate, else ``http``."""
    tls = any(_passed_on(option, config.vllm_arguments) for option in ("ssl-certfile", "ssl-keyfile"))
    return "https" if tls else "http"


# ------------------------------------------------------------------------------------------------------ checks


def _check(config: ServerConfig) -> None:
    if config.policy != STOCK:
        try:
            policy = find_policy(config.policy)
        except UnknownPolicy as error:
            raise UnknownPolicy(config.policy, [STOCK, *servable()]) from error
        if policy.label == "bound":
            raise PolicyError(f"policy {policy.name!r} {ONLY_IN_REPLAYS}")
        read_options(policy, config.policy_options)
    if config.engine == "gpu" and config.model is None:
        raise ServerError("engine gpu needs a model: a folder or a name that vLLM can load")
    if config.engine not in ("gpu", "emulated", "cpu"):
        raise ServerError(f"unknown engine {config.engine!r}; there are: gpu, emulated, cpu")
    if config.model is not None and _known_model(config) is None:
        _check_model_folder(config.model)
    if config.engine == "emulated" and config.emulated.replies is not None:
        read_script(Path(config.emulated.replies))
    if config.chunk_tokens < config.max_num_seqs:
        raise ServerError(
            f"{config.chunk_tokens} tokens of a step are fewer than {config.max_num_seqs} running requests, "
            "each of which needs one; raise --chunk-tokens or lower --max-num-seqs"
        )
    _check_arguments(config)
    if (config.key_weights or config.tenant_header) and not needs_key(config):
        option = "--key-weight" if config.key_weights else "--tenant-header"
        raise ServerError(f"{option}: needs API keys; add --api-key KEY, or several keys")


def _check_arguments(config: ServerConfig) -> None:
    if not _is_plain(config):
        _check_passed_on(config.vllm_arguments, "additional-config")
        _check_keys(config.vllm_arguments)
    if config.engine == "emulated":
        _check_emulated(config.vllm_arguments)
        _check_drafts(config)
    _check_reachable(config.vllm_arguments)
    _check_parser("--tool-call-parser", _chosen_parser(config), TOOL_CALLS, config.vllm_arguments)
    reasoning = _passed_value("reasoning-parser", config.vllm_arguments)
    _check_parser("--reasoning-parser", reasoning, REASONING, config.vllm_arguments)


def _check_model_folder(model: str) -> None:
    """Check a model's folder. A relative path that does not exist is taken for a name, which vLLM looks up."""
    folder = Path(model).expanduser()
    if folder.is_absolute() and not folder.exists():
        raise ServerError(f"model {model}: no such folder")
    if folder.is_dir() and not any((folder / name).is_file() for name in ("config.json", "params.json")):
        raise ServerError(f"model {model}: that folder has no config.json")


def check_classes(config: ServerConfig) -> None:
    """Refuse arguments that would replace our scheduler or engine, as commands do. A program that starts a server may
    give a class of its own, for example one that measures ours.

    Raises:
        ServerError: there is such an argument.
    """
    if not _is_plain(config):
        _check_passed_on(config.vllm_arguments, "scheduler-cls", "distributed-executor-backend")


def _is_plain(config: ServerConfig) -> bool:
    """Whether the server is vLLM as it is: its own scheduler, and an engine that computes."""
    return config.policy == STOCK and config.engine != "emulated"


def _check_passed_on(vllm_arguments: Sequence[str], *options: str) -> None:
    """Refuse arguments that would silently replace others: vLLM uses only the last of an option that is given twice."""
    for option in options:
        if name := _passed_on(option, vllm_arguments) or _abbreviated(option, vllm_arguments):
            raise ServerError(f"{name}: Continuum passes its own value of this option; use serve's options (--help)")


def _check_keys(vllm_arguments: Sequence[str]) -> None:
    if sum(word == "--api-key" or word.startswith("--api-key=") for word in vllm_arguments) > 1:
        raise ServerError("--api-key: given twice, and vLLM uses only the last; several keys are --api-key A B")


def _check_emulated(vllm_arguments: Sequence[str]) -> None:
    """Refuse what the emulated engine does not do before vLLM starts; what its configuration says is checked then."""
    for option, why in unsupported.OPTIONS.items():
        if name := _passed_on(option, vllm_arguments):
            raise ServerError(f"{name}: the emulated engine cannot do this: {why}; --engine gpu or cpu may")


def _check_drafts(config: ServerConfig) -> None:
    """Refuse more requests with drafts than the step times cover, before vLLM starts."""
    emulated = _emulated(config)
    if emulated.speculation is None:
        return
    try:
        emulated.times().step_s([], config.max_num_seqs, config.max_num_seqs)
    except OutOfRange as error:
        text = f"--speculative {emulated.speculative}, {config.max_num_seqs} requests: {error}"
        raise ServerError(f"{text}; allow fewer (--max-num-seqs)") from error


def _check_reachable(vllm_arguments: Sequence[str]) -> None:
    """Refuse arguments with which nobody could ask over HTTP whether the server is healthy."""
    for word in vllm_arguments:
        name = word.split("=")[0].replace("_", "-")
        if name in OWN:
            raise ServerError(f"{name}: is an option of serve, which must know it; give it before --")
        if name in ("--uds", "--grpc"):
            raise ServerError(f"{word}: serve needs a server that answers HTTP on --host and --port")
    if _passed_value("ssl-cert-reqs", vllm_arguments) == "2":
        raise ServerError("--ssl-cert-reqs 2: serve has no client certificate, and could not see that vLLM is ready")


def _check_parser(option: str, name: str | None, kind: str, vllm_arguments: Sequence[str]) -> None:
    """Refuse a parser that vLLM does not have, unless a file of the user's may add it."""
    adding = ("tool-parser", "reasoning-parser-", "config")  # vLLM takes beginnings of its options too
    if not name or any(_passed_on(argument, vllm_arguments) for argument in adding):
        return
    names = names_of(kind)
    if names and name not in names:
        raise ServerError(f"{option} {name}: {which(name, names)}")


def _passed_on(option: str, vllm_arguments: Sequence[str]) -> str | None:
    """Return this option as the user wrote it among the arguments for vLLM; None: the user did not give it."""
    names = (word.split("=")[0] for word in vllm_arguments if word.replace("_", "-").startswith(f"--{option}"))
    return next(names, None)


def _abbreviated(option: str, vllm_arguments: Sequence[str]) -> str | None:
    """Return the beginning of this option that the user wrote, which vLLM takes for the option; None: there is none."""
    names = (word.split("=")[0] for word in vllm_arguments if word.startswith("--") and word != "--")
    return next((name for name in names if f"--{option}".startswith(name.replace("_", "-"))), None)


def _passed_value(option: str, vllm_arguments: Sequence[str]) -> str | None:
    """Return the first value of this option among the arguments for vLLM; None: the user did not give it."""
    name = _passed_on(option, vllm_arguments)
    words = [part for word in vllm_arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    return next((value for word, value in pairwise(words) if word == name), None)


# ------------------------------------------------------------------------------------------------- model and KV


def _known_model(config: ServerConfig) -> Model | None:
    """Return the model if its geometry is known before vLLM starts, else None."""
    if config.engine == "emulated":
        return find_model(_emulated(config).model)
    return RANDOM.get(config.model or TINY.name) if config.engine == "cpu" else None


def has_random_weights(config: ServerConfig) -> bool:
    """Whether this module starts vLLM with random weights: on an emulated GPU, and on a CPU without a model's files."""
    if config.engine == "cpu" and _known_model(config) is None:
        folder = Path(str(config.model)).expanduser()
        return folder.is_dir() and not any(file for kind in WEIGHTS for file in folder.glob(kind))
    return config.engine != "gpu"


def _emulated(config: ServerConfig) -> EmulatedSettings:
    return replace(config.emulated, model=config.model) if config.model else config.emulated


def _model(config: ServerConfig) -> tuple[str, str | None]:
    """Return vLLM's ``--model``, and the name under which the model is served (None: the same)."""
    model = _known_model(config)
    if model is None:
        return str(config.model), None
    try:
        return str(ensure_model(model)), model.name
    except OSError as error:
        raise ServerError(f"{error.filename}: cannot write the model's folder: {error.strerror}") from error


def answers_in_harmony(config: ServerConfig) -> bool:
    """Whether the model is a gpt-oss, whose answers vLLM reads with a parser of its own and with no other."""
    if config.engine == "emulated" or _known_model(config) is not None:
        return False
    file = Path(str(config.model)).expanduser() / "config.json"
    try:
        return bool(json.loads(file.read_text(encoding="utf-8")).get("model_type") == "gpt_oss")
    except (OSError, ValueError, AttributeError):  # a name that vLLM looks up, or a file that vLLM will refuse
        return "gpt-oss" in str(config.model).lower()


def _tool_call_parser(config: ServerConfig) -> str | None:
    """Return vLLM's parser of tool calls.

    Raises:
        ServerError: the model is a gpt-oss, and another parser was chosen.
    """
    chosen = _chosen_parser(config)
    if chosen in (None, HARMONY) or not answers_in_harmony(config):
        return chosen
    if chosen != defaults.TOOL_CALL_PARSER:
        raise ServerError(f"--tool-call-parser {chosen}: for gpt-oss vLLM accepts only {HARMONY}, which is the default")
    return HARMONY


def _chosen_parser(config: ServerConfig) -> str | None:
    return _passed_value("tool-call-parser", config.vllm_arguments) or config.tool_call_parser


def _block_size(config: ServerConfig) -> int | None:
    """Return vLLM's ``--block-size``. For models with states vLLM itself takes a larger one, but only on a GPU."""
    if config.engine == "emulated":
        return _emulated(config).layout(config.block_size or defaults.BLOCK_SIZE).block_size
    return config.block_size or (32 if config.engine == "cpu" else None)


# --------------------------------------------------------------------------------------- settings and environment


def _additional_config(config: ServerConfig) -> dict[str, Any]:
    """Return the settings of the plugin and of the emulated engine, which vLLM passes to all its processes."""
    emulated = _emulated(config).to_config() if config.engine == "emulated" else {}
    if config.policy == STOCK:
        return emulated
    settings = Settings(
        policy=config.policy,
        policy_options=config.policy_options,
        guards=config.guards,
        recognise=config.recognise,
        session_headers=config.session_headers,
        **_speeds(config),
        record_path=str(config.record.absolute()) if config.record else None,
        statistics_path=str(config.statistics.absolute()) if config.statistics else None,
        tool_parser=None if answers_in_harmony(config) else _chosen_parser(config),  # vLLM's is a stub
    )
    return {**settings.to_config(), **emulated}


def _speeds(config: ServerConfig) -> dict[str, Any]:
    """Return the plugin's settings about prefill and decode times, if a profile or the emulated GPU gives them."""
    if config.profile is not None:
        profile = read_profile(config.profile)
        return {"prefill": profile.prefill_curve, "decode": profile.decode_line}
    if config.engine == "emulated":
        emulated = _emulated(config)
        times = emulated.times()
        prefill = fit_prefill(times, find_model(emulated.model).max_context_tokens)
        return {"prefill": prefill, "decode": fit_decode(times)}
    return {}


def _environment(config: ServerConfig) -> dict[str, str]:
    kept = os.environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", str(defaults.KEEP_ALIVE_S))
    environment = {"VLLM_NO_USAGE_STATS": "1", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": kept}
    local = _known_model(config) is not None or Path(str(config.model)).expanduser().is_dir()
    if config.engine != "gpu" and local:  # nothing needs to be looked up
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if config.engine == "emulated":
        environment["OMP_NUM_THREADS"] = "1"
    if config.engine == "cpu":
        environment["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
    if config.key_weights:
        environment[KEY_WEIGHTS] = json.dumps(config.key_weights)
    if config.tenant_header is not None:
        environment[TENANT_HEADER] = config.tenant_header
    return environment


def _flag(flag: str, value: object | None) -> list[str]:
    return [] if value is None else [flag, str(value)]
