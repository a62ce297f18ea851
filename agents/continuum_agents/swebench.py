"""List SWE-bench's tasks as ``mini-extra swebench`` selects them: ``python -m continuum_agents.swebench``.

The module runs in mini-swe-agent's environment, which has ``datasets``. The names of subsets, the filter and the slice
are interpreted by mini-swe-agent's code. The output is JSON lines on stdout: instance_id, problem_statement, repo,
base_commit, image.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from datasets import load_dataset
from minisweagent.run.benchmarks.swebench import DATASET_MAPPING, filter_instances, get_swebench_docker_image_name


def task_of(instance: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an instance that the harness needs."""
    fields = {name: instance.get(name) for name in ("instance_id", "problem_statement", "repo", "base_commit")}
    return {**fields, "image": get_swebench_docker_image_name(instance)}


def main() -> int:
    """Run the command. Exit status: 0; 1, the tasks cannot be loaded, with one line on stderr."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--subset", required=True)
    arguments.add_argument("--split", required=True)
    arguments.add_argument("--slice", default="")
    arguments.add_argument("--filter", default="")
    arguments.add_argument("--shuffle", action="store_true")
    options = arguments.parse_args()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # mini-swe-agent logs to stdout
    try:
        instances = filter_instances(
            list(load_dataset(DATASET_MAPPING.get(options.subset, options.subset), split=options.split)),
            filter_spec=options.filter,
            slice_spec=options.slice,
            shuffle=options.shuffle,
        )
    except Exception as error:  # noqa: BLE001 - the edge of the process: the loader's errors are of many kinds
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    with out:
        for instance in instances:
            out.write(json.dumps(task_of(instance)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
