"""Faults of this machine that vLLM would report in pages: no GPU, a build without GPUs, a model that cannot be had."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from continuum_server.local_model import RANDOM
from continuum_server.server_config import ServerConfig, ServerError

DEVICES = (
    "dev/nvidia[0-9]*",
    "proc/driver/nvidia/gpus/*",
    "dev/kfd",
    "dev/dri/renderD*",
    "dev/dxg",
    "dev/accel*",
    "dev/vfio/[0-9]*",
    "dev/davinci[0-9]*",
    "dev/habanalabs*",
    "dev/apex_*",
    "dev/nvhost-gpu",
    "dev/nvgpu/*",
)
"""Files that a machine has whose accelerators vLLM, or a plugin of vLLM, may use."""
OTHERWISE = "--engine emulated models a GPU, --engine cpu computes on the processor"
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
OF_ANOTHER_PLACE = ("--load-format", "--config-format", "--hf-config-path", "--revision", "--download-dir")
"""Options of vLLM with which a model's configuration is somewhere else."""
PATIENCE_S = 5.0


def check_machine(config: ServerConfig, root: Path = Path("/")) -> None:
    """Check that this machine has what the engine needs, before vLLM starts.

    Args:
        config: the server's configuration.
        root: where this machine's ``dev`` and ``proc`` are.

    Raises:
        ServerError: it has no GPU, vLLM here uses none, or the model is neither here nor can be downloaded.
    """
    if config.engine == "gpu":
        _check_gpu(root)
    if config.engine == "gpu" or (config.engine == "cpu" and config.model not in (None, *RANDOM)):
        _check_model(str(config.model), config.vllm_arguments, os.environ)


def _check_gpu(root: Path) -> None:
    if not any(_devices(root)):
        raise ServerError(f"engine gpu: this machine has no GPU; {OTHERWISE}")
    if (torch := _torch()).endswith("+cpu"):
        raise ServerError(
            f"engine gpu: vLLM here is a CPU build (torch {torch}); use an environment with vLLM for GPUs"
        )


def _devices(root: Path) -> Iterator[Path]:
    return (file for pattern in DEVICES for file in root.glob(pattern))


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _check_model(model: str, vllm_arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Check that a model of Hugging Face's hub is in the cache, or that the hub answers."""
    elsewhere = any(word.split("=")[0].replace("_", "-") in OF_ANOTHER_PLACE for word in vllm_arguments)
    if elsewhere or environment.get("VLLM_USE_MODELSCOPE") or not HUB_NAME.fullmatch(model):
        return
    if Path(model).expanduser().is_dir():
        return
    from huggingface_hub import constants, try_to_load_from_cache  # noqa: PLC0415 - slow to import

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    where = f"model {model}: is no folder and not in Hugging Face's cache"
    if constants.HF_HUB_OFFLINE:
        raise ServerError(f"{where}, and HF_HUB_OFFLINE forbids a download; --model takes the path of a folder too")
    try:
        urllib.request.urlopen(f"{constants.ENDPOINT}/{model}/resolve/main/config.json", timeout=PATIENCE_S).close()
    except urllib.error.HTTPError:
        return  # the hub answers, and vLLM says what is wrong
    except OSError as error:
        why = " ".join(str(getattr(error, "reason", error)).split())
        raise ServerError(
            f"{where}, and {constants.ENDPOINT} does not answer ({why}); --model takes the path of a folder too"
        ) from error
