"""SWE-bench's tasks, found as ``mini-extra swebench`` finds them: ``python -m continuum_agents.swebench``.

Runs in mini-swe-agent's environment, which has ``datasets``. Names of subsets, filter and slice are mini-swe-agent's
own code. Writes JSON lines to stdout: instance_id, problem_statement, repo, base_commit, image.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from datasets import load_dataset
from minisweagent.run.benchmarks.swebench import DATASET_MAPPING, filter_instances, get_swebench_docker_image_name

FILES = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}
"""Kinds of a local file, by its suffix."""


def load(subset: str, split: str) -> list[dict[str, Any]]:
    """Instances of a subset by mini-swe-agent's name for it, of a dataset on the Hub, of a local folder or file."""
    path = Path(subset)
    if path.is_file():
        kind = FILES.get(path.suffix)
        if kind is None:
            raise ValueError(f"{subset}: expected one of {', '.join(FILES)}, or a folder")
        return list(load_dataset(kind, data_files={split: str(path)}, split=split))
    return list(load_dataset(DATASET_MAPPING.get(subset, subset), split=split))


def task_of(instance: dict[str, Any]) -> dict[str, Any]:
    """What the harness needs of an instance."""
    found = {name: instance.get(name) for name in ("instance_id", "problem_statement", "repo", "base_commit")}
    return {**found, "image": get_swebench_docker_image_name(instance)}


def main() -> int:
    """0; 1 for what cannot be had, in a line on stderr."""
    options = argparse.ArgumentParser()
    options.add_argument("--subset", required=True)
    options.add_argument("--split", required=True)
    options.add_argument("--slice", default="")
    options.add_argument("--filter", default="")
    options.add_argument("--shuffle", action="store_true")
    given = options.parse_args()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # mini-swe-agent logs to stdout
    try:
        found = load(given.subset, given.split)
        found = filter_instances(found, filter_spec=given.filter, slice_spec=given.slice, shuffle=given.shuffle)
    except Exception as error:  # noqa: BLE001 - the edge of the process: the loader's errors are of many kinds
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    with out:
        for instance in found:
            out.write(json.dumps(task_of(instance)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
