"""Options of ``step-times``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from continuum_server import defaults

from continuum_bench.options.declare import Options, at_least


@dataclass(frozen=True, kw_only=True)
class BuildOptions(Options):
    """Options of ``step-times build``.

    Attributes:
        model: The model: a config.json of Hugging Face, the folder that holds it, or a model that `doctor` lists.
        gpu: GPU whose measured kernel times are used.
        tp: Tensor parallel size: the number of GPUs of one replica.
        name: Short name of a model that is given as a config.json. Default: the name of its folder.
    """

    model: str
    gpu: str
    tp: Annotated[int, at_least(1)] = defaults.TENSOR_PARALLEL
    name: str | None = None
