"""Writes the sources of the docs site, with the pages that are generated from the code.

    python docs/generate.py [build/docs]

It writes ``docs/reference/`` (the command line, the file formats, the policies), the list of ``docs/metrics.md``, the
tables of ``docs/policies/README.md``, and the tables of results that docs/results/data/tables.yaml describes (from the
runs of ``make results``). Then it copies every page to the given folder (default: build/docs). ``make docs`` builds the
site from there.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from statistics import fmean, geometric_mean
from types import ModuleType
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from continuum_analysis.compare.intervals import Interval, interval_text, mean_interval, ratio_by_seed
from continuum_analysis.compare.verdict import outcome
from continuum_analysis.compare.words import TextTable
from continuum_analysis.metrics import BY_NAME, METRICS, SAME, Metric
from continuum_analysis.slo import Level, read_slo, slo_text
from continuum_analysis.sweep.capacity import AT_A_TIME, PolicyCapacity, bracket_of
from continuum_bench.cli import app
from continuum_bench.figures.spec import load_figure
from continuum_bench.options.declare import sentences
from continuum_server.foreign_ids import ROWS
from continuum_server.policy.limits import described
from continuum_server.policy.registry import POLICIES
from continuum_server.retention import HINTS
from continuum_server.server_config import STOCK
from continuum_traces import exporters, schema
from continuum_traces.importers import registry
from continuum_traces.records import run_dir
from typer.main import get_command

DOCS = Path(__file__).resolve().parent
PROGRAM = "continuum-bench"
TABLES = yaml.safe_load((DOCS / "results" / "data" / "tables.yaml").read_text(encoding="utf-8"))
PREDICTION_HEADS = (
    *("load", "policy", "JCT mean, s: measured", "predicted", "errors by sequence"),
    *("to stock: measured", "predicted", "error", "TTFT mean, s: measured, predicted", "prefix hits"),
)
WITH_RESULTS = (
    DOCS.parent / "README.md",
    *sorted((DOCS / "results").glob("*.md")),
    *sorted((DOCS / "server").glob("*.md")),
)


def unlinked(markdown: str, page: Path) -> str:
    """Replace a page's links to files outside ``docs/`` by the paths of these files."""

    def plain(link: re.Match[str]) -> str:
        target = page.parent.joinpath(link[2]).resolve()
        outside = target.exists() and not target.is_relative_to(DOCS)
        return f"{link[1]} (`{target.relative_to(DOCS.parent)}`)" if outside else link[0]

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)#:]+)\)", plain, markdown)


def stage(folder: Path) -> None:
    """Write the sources of the site: the pages of ``docs/``."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in DOCS.rglob("*.md"):
        text = unlinked(page.read_text(encoding="utf-8"), page)
        (folder / page.relative_to(DOCS)).write_text(text, encoding="utf-8")


# ------------------------------------------------------------------------------------------- command line


def cli() -> str:
    """Write every command with its arguments and options, with the texts of ``--help``."""
    head = [
        "# Command line",
        "",
        f"The same text that `{PROGRAM} COMMAND --help` prints, or `--help-all` where there are many options.",
        "",
    ]
    return "\n".join(head + [line for name, command in _commands(get_command(app)) for line in _command(name, command)])


def _commands(group: Any, prefix: str = PROGRAM) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _command(name: str, command: Any) -> list[str]:
    given = [param for param in command.params if param.name != "help_all"]
    arguments = [param for param in given if param.param_type_name == "argument"]
    usage = " ".join([name, *(_argument(param) for param in arguments), "[OPTIONS]"])
    title, says = name.removeprefix(PROGRAM).strip(), inspect.cleandoc(command.help or "")
    lines = [f"## {title}", "", says, "", "```text", usage, "```", ""]
    panels: dict[str, list[Any]] = {"Arguments": arguments}
    for param in given:
        if param.param_type_name == "option" and param.name != "help":
            panels.setdefault(param.rich_help_panel or "Options", []).append(param)
    for panel, params in panels.items():
        if params:
            rows = [f"| {_spelling(param)} | {_default(param)} | {_cell(param.help)} |" for param in params]
            lines += [f"| {panel} | default | |", "|---|---|---|", *rows, ""]
    return lines


def _argument(param: Any) -> str:
    return str(param.name).upper() + ("..." if param.nargs == -1 else "")


def _spelling(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{_argument(param)}`"
    kind = "" if param.is_flag else f" {_kind(param.type_descriptor.annotation)}"
    return f"`{', '.join((*param.opts, *param.secondary_opts))}{kind}`"


def _kind(annotation: Any) -> str:
    name = getattr(annotation, "__name__", str(annotation))
    inner = getattr(annotation, "__args__", ())
    return f"{inner[0].__name__.upper()}..." if name == "list" and inner else name.upper()


def _default(param: Any) -> str:
    if param.required:
        return "required"
    return "" if param.default is None or param.default is False else f"`{param.default}`"


# ------------------------------------------------------------------------------------------------ formats


def formats() -> str:
    """Write each record's fields, types, defaults and sentences, and the formats that can be read and written."""
    what = inspect.cleandoc(run_dir.__doc__ or "").replace("``", "`").split("\n\n")
    lines = ["# File formats", "", "This page is written from the dataclasses of `continuum_traces.schema`.", ""]
    lines += ["## A run directory", "", "```text", what[1].replace("`", ""), "```", "", *what[2:], ""]
    kinds = _comments(schema)
    for title, classes in {
        "Traces": (schema.Program, schema.Turn, schema.ToolCall),
        "The scheduler's events": (schema.SchedulerEvent,),
        "The client's records": (schema.TurnRecord, schema.ArrivalRecord),
        "Tags": (schema.Tags,),
        "The manifest": (schema.Manifest,),
    }.items():
        lines += [f"## {title}", ""]
        for each in classes:
            lines += [f"### {each.__name__}", "", _prose(each), "", *_field_table(each), ""]
        if title == "The scheduler's events":
            lines += ["| event | when; the fields it carries |", "|---|---|"]
            lines += [f"| `{kind}` | {_cell(says)} |" for kind, says in kinds.items()] + [""]
    read = "`--format NAME`; without it the format is detected from the file."
    lines += _named("Formats that can be read", read, {each.name: each.read for each in registry.IMPORTERS.values()})
    lines += _named(
        "Formats that can be written", "`continuum-bench traces convert SOURCE TARGET --to NAME`.", exporters.EXPORTERS
    )
    return "\n".join(lines)


def _named(title: str, option: str, formats: Mapping[str, Any]) -> list[str]:
    rows = [f"| `{name}` | {_cell(_first_paragraph(each))} |" for name, each in formats.items()]
    return [f"## {title}", "", option, "", "| name | |", "|---|---|", *rows, ""]


def _comments(module: ModuleType) -> dict[str, str]:
    """Return the values of ``EventKind``, each with the comment beside it."""
    source = inspect.getsource(module).partition("EventKind = Literal[")[2].partition("]")[0]
    return dict(re.findall(r'"(\w+)",\s+# (.*)', source))


def _field_table(record: type) -> list[str]:
    rows = [f"| `{name}` | `{kind}` | {default} | {_cell(says)} |" for name, kind, default, says in _fields(record)]
    return ["| field | type | default | |", "|---|---|---|---|", *rows]


def _fields(record: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, type, default and description of each field of a dataclass, including inherited fields."""
    for field in fields(record):
        owner = next(each for each in record.__mro__ if field.name in vars(each).get("__annotations__", {}))
        sentence = sentences(owner.__module__)[owner.__name__].get(field.name, "")
        yield field.name, _type(str(field.type), owner), _value(field), sentence


def _type(annotation: str, owner: type) -> str:
    """Write a type without ``None`` (the default says it), a choice as its values, and a number with its range."""
    name = annotation.removesuffix(" | None")
    evaluated = eval(name, vars(sys.modules[owner.__module__]))  # an annotation of this repository
    if get_origin(evaluated) is Annotated:
        return described(evaluated).removeprefix("a ")
    return ", ".join(get_args(evaluated)) if get_origin(evaluated) is Literal else name


def _value(field: Field[Any]) -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else "empty"
    return "none" if field.default is None else f"`{field.default!r}`"


# ----------------------------------------------------------------------------------------------- policies


def policies() -> str:
    """Write the sentence and the options of each policy, then of each bound."""
    intro = (
        "This page is written from the catalog. Options are set by `--policy NAME --policy-option NAME.OPTION=VALUE`."
    )
    more = "Where a rule names no order, the [usual order](../concepts.md#order) holds."
    lines = ["# Policies and their options", "", f"{intro} {more}", ""]
    for label, title in (
        ("policy", "For servers and replays"),
        ("bound", "Bounds: for replays only, because they know the future"),
    ):
        lines += [f"## {title}", ""]
        for name, policy in POLICIES.items():
            if policy.label == label:
                page = f"Its page: {_linked(name, '../policies/')}"
                options = _field_table(policy.options_type) if fields(policy.options_type) else ["No options."]
                lines += [f"### {name}", "", _first_paragraph(policy), "", page, "", *options, ""]
    return "\n".join(lines)


def policy_overview() -> str:
    """Return ``docs/policies/README.md`` with a new table of policies between its marks."""
    page = (DOCS / "policies" / "README.md").read_text(encoding="utf-8")
    served = {name: policy for name, policy in POLICIES.items() if policy.label == "policy"}
    rows = [(_linked(name), _cell(_first_paragraph(policy))) for name, policy in served.items()]
    return _filled(page, "policy", TextTable(("name", "rule"), rows).markdown())


def metrics() -> str:
    """Return ``docs/metrics.md`` with a new list of metrics. The statistics of one distribution share a line."""
    entries: list[tuple[list[str], Metric]] = []
    for metric in METRICS:
        if not metric.formula.endswith(SAME):
            entries.append(([], metric))
        entries[-1][0].append(f"`{metric.name}`")
    better = {"lower": "", "higher": " (higher)", "neither": " (neither)"}
    lines = (f"- {', '.join(names)}{better[first.better]}: {first.formula}" for names, first in entries)
    return _filled((DOCS / "metrics.md").read_text(encoding="utf-8"), "metrics", lines)


def foreign_ids() -> str:
    """Return ``docs/server/untagged.md`` with a new table of the ids that agents send."""
    heads = ("sent by", "header, or field of the body", "header with the parent's id", "the server uses")
    rows = []
    for row in ROWS:
        name = f"`{row.header}`" if row.header else f"body `{row.field}`"
        only = f", from `User-Agent: {row.user_agent}...` only" if row.user_agent else ""
        parents = ", ".join(f"`{parent}`" for parent in row.parents)
        rows.append((row.agents, name + only, parents, "id and prompt" if row.weak else "the id"))
    page = (DOCS / "server" / "untagged.md").read_text(encoding="utf-8")
    return _filled(page, "ids", TextTable(heads, rows).markdown())


def hints() -> str:
    """Return ``docs/client/dialects.md`` with a new table of the fields with which clients ask to keep KV."""
    rows = [(f"`{hint.name}`", hint.sent_by, hint.does) for hint in HINTS]
    page = (DOCS / "client" / "dialects.md").read_text(encoding="utf-8")
    return _filled(page, "hints", TextTable(("field", "sent by", "here"), rows).markdown())


def results(page: Path) -> str:
    """Return a page with new tables between the marks ``results NAME``, by docs/results/data/tables.yaml."""
    text = page.read_text(encoding="utf-8")
    for mark in re.findall(r"<!-- (results [\w-]+): written by make docs -->", text):
        table = TABLES[mark.split()[1]]
        by_figure = table.get("by") == "figure"
        text = _filled(text, mark, ["\n\n".join(_figures(table))] if by_figure else _results_table(table).markdown())
    return text


def _figures(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield two paragraphs for each figure: the published result, whether ours agrees and our ratios; the picture."""
    for name in table["from"]:
        spec = load_figure(name)
        claim = f" {spec.claim.removesuffix('.')}." if spec.claim else ""
        drawn = [*spec.plot.get("y", ["jct_mean_s"]), *table["also"].get(name, ())]
        shown = {metric: title for metric, title in table["metrics"].items() if metric in drawn}
        measured = "; ".join(_ranges(name, table["base"].get(name, "vllm"), shown))
        yield f"- **`{name}`** ({spec.paper}; {spec.minutes['quick']:g} min):{claim} {table['says'][name]}. {measured}."
        yield f"    ![{name}](figures/{name}.svg)"


def _within_levels(table: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield for each row the largest number of agents at a time within a level, under each policy."""
    for name, level, sources in table["rows"]:
        slo, points = read_slo(level), [point for source in sources for point in _points(source, ())]
        yield [name, slo_text(slo), *(_agents(points, arm, slo.levels) for arm in table["arms"])]


def _agents(points: Iterable[Mapping[str, Any]], arm: str, levels: Sequence[Level]) -> str:
    kept: dict[int, dict[int, bool]] = {}
    for point in points:
        for seed, run in point["runs"].get(arm, {}).items():
            keeps = all(level.keeps(run.get(level.metric)) for level in levels)
            kept.setdefault(int(seed), {})[point["axes"][AT_A_TIME]] = keeps
    return PolicyCapacity(arm, {seed: bracket_of(each) for seed, each in kept.items()}, {}).text.replace(" to ", "-")


def _results_table(table: Mapping[str, Any]) -> TextTable:
    if table.get("by") == "level":
        return TextTable(("", "service level", *table["arms"].values()), list(_within_levels(table)))
    if table.get("by") == "prediction":
        return TextTable(PREDICTION_HEADS, [row for name, of in table["grids"].items() for row in _measured(name, of)])
    points = [point for name in table["from"] for point in _points(name, table.get("apart", ()))]
    added = [point for name in table.get("with", ()) for point in _points(name, ())]
    for point, other in zip(points, added, strict=True) if added else ():
        point["runs"] |= other["runs"]
    older = dict(item for name in (*table["from"], *table.get("with", ())) for item in _older(name).items())
    columns = [column for _, column in table["columns"]]
    heads = [f"{heading}{_mark(column.partition(' ')[2], older)}" for heading, column in table["columns"]]
    if table.get("by") == "arm":
        arms = table.get("arms") or {arm: f"`{arm}`{_mark(arm, older)}" for arm in points[0]["runs"]}
        rows = [[name, *(_of_arm(points[0]["runs"], arm, column) for column in columns)] for arm, name in arms.items()]
        return TextTable(("", *heads), rows)
    named = zip(table["rows"], points, strict=True)
    rows = [[name, *(_of_point(point["runs"], column) for column in columns)] for name, point in named if name]
    if table.get("intervals") is False:
        rows = [[cell.partition(" (seeds ")[0] for cell in row] for row in rows]
    if table.get("mean"):
        rows.append(["**geometric mean**", *(_mean_of_points(points, column) for column in columns)])
    return TextTable(("", *heads), rows)


def _older(name: str) -> dict[str, str]:
    """Return the arms of a data file whose runs are of an earlier version of this project, with that version."""
    return dict(json.loads((DOCS / "results" / "data" / f"{name}.json").read_text(encoding="utf-8")).get("older", {}))


def _mark(arms: str, older: Mapping[str, str]) -> str:
    """Return what follows the heading of numbers of these arms (``A/B``, ``A@AXIS``) if an earlier version has them."""
    versions = {older[name] for arm in arms.split("/") if (name := arm.partition("@")[0]) in older}
    return f" ({', '.join(sorted(versions))})" if versions else ""


def _ranges(name: str, base: str, metrics: Mapping[str, str]) -> Iterator[str]:
    """Yield, for each of the metrics, the ranges of ratios of the policies in all the figure's points, and at how many
    points each policy is better, ties or is worse."""
    ratios_of = dict[tuple[str, str], dict[str, list[Interval]]]()
    points, older = [point["runs"] for point in _points(name, ())], _older(name)
    for runs in points:
        first = base if base in runs else f"{base}+offload"
        for metric in metrics:
            ratios = ratios_of.setdefault((metric, first), {})
            for arm in runs:
                if arm != first and (ratio := _ratio(runs, metric, arm, first)):
                    ratios.setdefault(arm, []).append(ratio)
    for (metric, first), arms in ratios_of.items():
        texts = [
            f"`{arm}`{_mark(arm, older)} {_range([ratio.mean for ratio in ratios])} ({_outcomes(metric, ratios)})"
            for arm, ratios in arms.items()
            if len(ratios) == len(points)
        ]
        yield f"{metrics[metric]} to `{first}`: {', '.join(texts)}"


def _outcomes(metric: str, ratios: Iterable[Interval]) -> str:
    """Count the points at which a policy is better, ties or is worse, such as ``better 4, tie 2``."""
    less, more = ("worse", "better") if BY_NAME[metric].better == "higher" else ("better", "worse")
    words = {"faster": less, "tie": "tie", "slower": more}
    counts = Counter(words[outcome(ratio)] for ratio in ratios)
    return ", ".join(f"{word} {counts[word]}" for word in ("better", "tie", "worse") if counts[word])


def _measured(name: str, loads: Sequence[str]) -> Iterator[list[str]]:
    """Yield a row for each load and policy of a grid that was played on servers: measured beside predicted."""
    grids = [_points(f"../measured/{name}{what}", ("repeat",)) for what in ("", "-predicted")]
    for load, *points in zip(loads, *grids, strict=True):
        measured, predicted = (_of_repeats(point["runs"]) for point in points)
        for policy in measured:
            jct, expected = (_values(side, policy, "jct_mean_s") for side in (measured, predicted))
            ratios = [_ratio(side, "jct_mean_s", policy, STOCK) for side in (measured, predicted)]
            errors = ", ".join(f"{expected[seed] / jct[seed] - 1:+.0%}" for seed in jct)
            row = [load, "stock" if policy == STOCK else f"`{policy}`", _of_arm(measured, policy, "jct_mean_s +-")]
            row += [_of_arm(predicted, policy, "jct_mean_s"), errors]
            if policy == STOCK:
                row += ["", "", ""]
            else:
                row += [_ratio_text(ratios[0]), f"{ratios[1].mean:.2f}", f"{ratios[1].mean / ratios[0].mean - 1:+.0%}"]
            yield row + [
                ", ".join(_of_arm(side, policy, metric) for side in (measured, predicted))
                for metric in ("ttft_mean_s", "prefix_hit_ratio")
            ]


def _of_repeats(runs: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Return runs with the means over the repeats of each policy and seed. Stock vLLM has one name in both worlds."""
    repeats: dict[str, dict[str, list[Mapping[str, float]]]] = {}
    for arm, seeds in runs.items():
        policy = arm.partition("@")[0].replace("vllm", STOCK)
        for seed, run in seeds.items():
            repeats.setdefault(policy, {}).setdefault(seed, []).append(run)
    return {
        policy: {seed: {name: fmean(run[name] for run in of) for name in of[0]} for seed, of in seeds.items()}
        for policy, seeds in repeats.items()
    }


def _range(values: Sequence[float]) -> str:
    return "-".join(dict.fromkeys(f"{end:.2f}" for end in (min(values), max(values))))


def _points(name: str, apart: Sequence[str]) -> list[dict[str, Any]]:
    """Read a data file. Points that differ only in the axes ``apart`` become one, whose arms are named ARM@VALUE."""
    points: dict[str, dict[str, Any]] = {}
    for point in json.loads((DOCS / "results" / "data" / f"{name}.json").read_text(encoding="utf-8"))["points"]:
        axes = {axis: value for axis, value in point["axes"].items() if axis not in apart}
        ends = [str(point["axes"][axis]) for axis in apart if axis in point["axes"]]
        same = points.setdefault(json.dumps(axes), {"axes": axes, "runs": {}})
        same["runs"] |= {"@".join([arm, *ends]): runs for arm, runs in point["runs"].items()}
    return list(points.values())


def _values(runs: Mapping[str, Any], arm: str, metric: str) -> dict[int, float]:
    return {int(seed): run[metric] for seed, run in runs.get(arm, {}).items() if metric in run}


def _of_arm(runs: Mapping[str, Any], arm: str, column: str) -> str:
    metric, _, more = column.partition(" ")
    if more.startswith("/"):
        return _ratio_text(_ratio(runs, metric, arm, more[1:]))
    values = list(_values(runs, arm, metric).values())
    mean = mean_interval(values) if values else None
    if mean is not None and mean.bounds is not None and min(values) >= 0.0:  # no metric's values have a mean below it
        mean = replace(mean, low=max(0.0, mean.bounds[0]))
    return _text(mean if more or mean is None else Interval(mean.mean), _form(metric, mean))


def _of_point(runs: Mapping[str, Any], column: str) -> str:
    metric, _, arm = column.partition(" ")
    if arm.endswith(" seeds"):
        values = _values(runs, arm.removesuffix(" seeds"), metric).values()
        return ", ".join(map(_form(metric, None), values))
    return _ratio_text(_ratio(runs, metric, *arm.split("/"))) if "/" in arm else _of_arm(runs, arm, metric)


def _ratio_text(ratio: Interval | None) -> str:
    """Write a ratio with two digits, or with three if its interval is narrower than 0.03."""
    bounds = ratio.bounds if ratio else None
    narrow = bounds is not None and bounds[1] - bounds[0] < 0.03
    return _text(ratio, ("{:.3f}" if narrow else "{:.2f}").format)


def _text(value: Interval | None, form: Callable[[float], str]) -> str:
    return interval_text(value, form).replace(" to ", "-")


def _ratio(runs: Mapping[str, Any], metric: str, arm: str, base: str) -> Interval | None:
    return ratio_by_seed(_values(runs, arm, metric), _values(runs, base, metric))


def _mean_of_points(points: Sequence[Mapping[str, Any]], column: str) -> str:
    metric, _, arms = column.partition(" ")
    if "/" not in arms:
        return ""
    ratios = [ratio.mean for point in points if (ratio := _ratio(point["runs"], metric, *arms.split("/")))]
    return f"{geometric_mean(ratios):.2f}"


def _form(metric: str, mean: Interval | None) -> Callable[[float], str]:
    if "ratio" in metric or "share" in metric:
        return "{:.0%}".format
    large = mean is not None and mean.mean >= 100
    return "{:.0f}".format if large else "{:.3f}".format if metric.endswith("jobs_per_s") else "{:.1f}".format


def _filled(page: str, mark: str, lines: Iterable[str]) -> str:
    """Return the page with these lines between the marks."""
    begin, end = f"<!-- {mark}: written by make docs -->", "<!-- end -->"
    head, _, rest = page.partition(begin)
    return "\n".join([f"{head}{begin}\n", *lines, f"\n{end}{rest.partition(end)[2]}"])


def _linked(policy: str, folder: str = "") -> str:
    """Return a policy's name, linked to the heading that is its name, or else from another folder to the overview."""
    for page in sorted((DOCS / "policies").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if re.search(rf"^#+ `?{re.escape(policy)}`?$", text, re.MULTILINE):
            return f"[{policy}]({folder}{page.name}#{policy})"
        if f"**`{policy}`**" in text:
            return f"[{policy}]({folder}{page.name})"
    return f"[{policy}]({folder}README.md)" if folder else f"`{policy}`"


# -------------------------------------------------------------------------------------------------- small


def _prose(documented: Any) -> str:
    """Return a docstring as Markdown."""
    return inspect.cleandoc(documented.__doc__ or "").replace("``", "`")


def _first_paragraph(documented: Any) -> str:
    return _prose(documented).partition("\n\n")[0]


def _cell(text: str | None) -> str:
    """Write text so that it stays inside one cell of a table."""
    return " ".join((text or "").replace("``", "`").replace("|", "\\|").split())


PAGES = {"cli": cli, "formats": formats, "policies": policies}

if __name__ == "__main__":
    for name, write in PAGES.items():
        (DOCS / "reference" / f"{name}.md").write_text(write(), encoding="utf-8")
    (DOCS / "metrics.md").write_text(metrics(), encoding="utf-8")
    (DOCS / "policies" / "README.md").write_text(policy_overview(), encoding="utf-8")
    (DOCS / "client" / "dialects.md").write_text(hints(), encoding="utf-8")
    (DOCS / "server" / "untagged.md").write_text(foreign_ids(), encoding="utf-8")
    for changed in WITH_RESULTS:
        changed.write_text(results(changed), encoding="utf-8")
    stage(Path(sys.argv[1]) if sys.argv[1:] else DOCS.parent / "build" / "docs")
