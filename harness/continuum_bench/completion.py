"""What Tab offers after an option whose values are names. A list is read when Tab is pressed, so --help stays fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from continuum_bench.options.declare import Declared, Limit

Offer = Callable[[], Iterable[str]]
ENGINES = ("gpu", "emulated", "cpu")


def _policies() -> Iterable[str]:
    from continuum_server.policy.registry import POLICIES  # noqa: PLC0415 - imports every policy

    return POLICIES


def _policies_of_servers() -> Iterable[str]:
    from continuum_server.policy.registry import servable  # noqa: PLC0415 - imports every policy
    from continuum_server.server_config import STOCK  # noqa: PLC0415

    return (STOCK, *servable())


def _gpus() -> Iterable[str]:
    from continuum_server.step_times.specs import GPUS  # noqa: PLC0415

    return (gpu.name for gpu in GPUS)


def _models() -> Iterable[str]:
    from continuum_server.step_times.specs import MODELS  # noqa: PLC0415

    return (model.name for model in MODELS)


def _figures() -> Iterable[str]:
    from continuum_bench.figures.spec import figure_names  # noqa: PLC0415

    return ("list", *figure_names())


def _profiles() -> Iterable[str]:
    from continuum_traces.programs.synth import PROFILES  # noqa: PLC0415

    return PROFILES


def _trace_forms() -> Iterable[str]:
    from continuum_traces.importers.registry import IMPORTERS  # noqa: PLC0415 - imports every importer

    return sorted(IMPORTERS)


OFFERS: Mapping[tuple[str, str], Offer] = {
    ("ArmOptions", "policy"): _policies,
    ("ServeOptions", "policy"): _policies_of_servers,
    ("ServeOptions", "engine"): lambda: ENGINES,
    ("ServeOptions", "model"): _models,
    ("GpuSettings", "gpu"): _gpus,
    ("GpuSettings", "model"): _models,
    ("ImportLogOptions", "gpu"): _gpus,
    ("ImportLogOptions", "model"): _models,
    ("FigureOptions", "name"): _figures,
    ("SynthOptions", "profile"): _profiles,
    **{(each, "form"): _trace_forms for each in ("TraceOptions", "ImportOptions", "FitOptions", "StatsOptions")},
}
"""By the class that declares an option, and the option's field. Options that are ``one_of`` offer those names."""


def completer(option: Declared) -> Callable[[str], list[str]] | None:
    """Return what Typer asks for values; None: they are no names, and the shell offers files."""
    names = next((each.names for each in option.extras if isinstance(each, Limit) and each.names), ())
    offer = OFFERS.get((option.owner.__name__, option.name)) or ((lambda: names) if names else None)
    if offer is None:
        return None

    def offered(incomplete: str) -> list[str]:  # Typer finds this parameter by its name
        before, comma, _ = incomplete.rpartition(",")  # --policy A,B
        return [f"{before}{comma}{name}" for name in offer()]

    return offered
