"""``continuum-bench step-times build``: build a table of step times from the kernel times that NVIDIA measured."""

from __future__ import annotations

from pathlib import Path

from continuum_server.step_times.build import build_table
from continuum_server.step_times.catalog import (
    TENSOR_PARALLEL,
    catalog_models,
    committed_table,
    find_gpu,
    find_model,
    table_name,
)
from continuum_server.step_times.hf_config import read_model
from continuum_server.step_times.model import StepTimesError
from continuum_server.step_times.specs import Model
from continuum_server.step_times.user_files import save_model, save_table

from continuum_bench.errors import BenchError
from continuum_bench.options.step_times import BuildOptions
from continuum_bench.show import print_line


def build_user_table(options: BuildOptions) -> int:
    """Write the model's description and its table of step times to the user's cache, which every command reads."""
    gpu, tp = find_gpu(options.gpu).name, options.tp
    if tp not in TENSOR_PARALLEL:
        raise BenchError(f"--tp {tp}: there are {', '.join(map(str, TENSOR_PARALLEL))}")
    model, known = _model(options)
    if committed_table(gpu, model, tp) is not None:
        raise BenchError(f"the table of {model.name} on {tp} x {gpu} comes with this package")
    try:
        table = build_table(model, gpu, tp)
    except StepTimesError as error:
        raise BenchError(f"{error}{'' if known else f'; {model.name} is known now, and has a roofline'}") from error
    file = save_table(table_name(gpu, model, tp), table)
    print_line(f"written to {file}; --gpu {gpu} --model {model.name} --tp {tp} uses it")
    return 0


def _model(options: BuildOptions) -> tuple[Model, bool]:
    """Return the model, and whether the catalog had it before."""
    path = Path(options.model).expanduser()
    if not path.exists():
        if options.name is not None:
            raise BenchError(f"--name {options.name}: only for a config.json; {options.model} has a name already")
        return find_model(options.model), True
    model = read_model(path, options.name)
    if model.name in catalog_models():
        raise BenchError(f"{model.name} is a model that comes with this package; give yours another name (--name)")
    save_model(model)
    return model, False
