"""Score a batch with BFCL's own evaluator: ``python -m continuum_agents.bfcl_score``.

The module runs in bfcl-eval's environment. It reads a JSON object that describes the batch from stdin, and writes a
JSON object with the score of each category to stdout. Results and scores are written from the records of the programs,
again at each run, in BFCL's layout::

    OUT/result/MODEL/agentic/BFCL_v4_CATEGORY_result.json
    OUT/score/MODEL/agentic/BFCL_v4_CATEGORY_score.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from bfcl_eval import utils
from continuum_traces.json_io import read_json

from continuum_agents.bfcl_benchmark import Benchmark, Handler, category_of
from continuum_agents.protocol import ANSWERS


def results_of(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the results of ended programs by category, in BFCL's order. A program without a record has failed."""
    results: dict[str, list[dict[str, Any]]] = {}
    answers = read_json(out / ANSWERS) if (out / ANSWERS).exists() else {}
    for entry_id, answer in answers.items():
        record = out / entry_id / f"{entry_id}.traj.json"
        failed = {"id": entry_id, "result": f"Error during inference: {answer['status']}"}
        stopped = answer["status"] == "TimeLimit" or not record.exists()
        results.setdefault(category_of(entry_id), []).append(failed if stopped else read_json(record))
    return {category: sorted(unsorted, key=utils.sort_key) for category, unsorted in results.items()}


def score(out: Path, model: str, data: Path | None, prompting: bool) -> dict[str, Any]:
    """Write results and scores. Return the first line of each category's score file."""
    benchmark = Benchmark(data)
    handler = Handler(model, 0.0, model, not prompting)
    folder = handler.registry_dir_name
    heads = {}
    for category, results in results_of(out).items():
        below = Path(folder) / utils.get_directory_structure_by_category(category)
        name = utils.get_file_name_by_category(category, is_result_file=True)
        utils.write_list_of_dicts_to_file(name, results, out / "result" / below)
        if not benchmark.has_answers():
            continue
        scores = out / "score"
        benchmark.evaluate(handler, category, results, scores)
        file = scores / below / utils.get_file_name_by_category(category, is_score_file=True)
        with file.open(encoding="utf-8") as lines:
            heads[category] = json.loads(lines.readline())
    return heads


def main() -> None:
    stdout = os.dup(1)
    os.dup2(2, 1)  # what BFCL prints to stdout goes to stderr
    batch = json.load(sys.stdin)
    data = Path(batch["data"]) if batch["data"] else None
    heads = score(Path(batch["out"]), batch["model"], data, batch["prompting"])
    os.write(stdout, json.dumps(heads).encode())


if __name__ == "__main__":
    main()
