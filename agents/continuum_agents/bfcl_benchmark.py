"""Use bfcl-eval's entries and its scorer without the SDKs of all model vendors.

``bfcl_eval.constants.model_config`` imports the handlers of all models, and with them torch and a dozen SDKs. The
scorer needs only the table in that module. Before the scorer is imported, this module is replaced by one with an empty
table.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from bfcl_eval import utils
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler

MODELS = ModuleType("bfcl_eval.constants.model_config")
MODELS.MODEL_CONFIG_MAPPING = {}  # type: ignore[attr-defined]
sys.modules.setdefault(MODELS.__name__, MODELS)

from bfcl_eval.eval_checker import eval_runner  # noqa: E402 - imports the table

EXPECTED_ANSWERS = "possible_answer"


class UnknownEntry(Exception):
    """BFCL has no entry with that id."""


class Handler(OpenAICompletionsHandler):  # type: ignore[misc]
    """BFCL's handler of OpenAI-compatible servers. It needs no API key, because our client replaces BFCL's client."""

    def _build_client_kwargs(self) -> dict[str, Any]:
        return {"api_key": "EMPTY"}


class Benchmark:
    """BFCL's entries and their answers.

    Args:
        data: a folder in bfcl-eval's layout: ``BFCL_v4_web_search.json``, and the answers in ``possible_answer/``.
            None: bfcl-eval's own folder.
    """

    def __init__(self, data: Path | None = None) -> None:
        if data is not None:
            utils.PROMPT_PATH = data
            utils.POSSIBLE_ANSWER_PATH = data / EXPECTED_ANSWERS

    def entry(self, entry_id: str) -> dict[str, Any]:
        """Return an entry for BFCL's loop: its question, functions and settings.

        Raises:
            UnknownEntry: BFCL has no entry with that id.
        """
        (entry,) = utils.populate_initial_settings_for_web_search_test_cases([self._find(entry_id)[1]])
        return dict(entry)

    def has_answers(self) -> bool:
        return (Path(utils.POSSIBLE_ANSWER_PATH) / f"{utils.VERSION_PREFIX}_web_search.json").exists()

    def valid(self, handler: Handler, result: dict[str, Any]) -> bool | None:
        """Return whether an entry's result is right, by BFCL's scorer; None if the folder has no answers."""
        if not self.has_answers():
            return None
        number, entry = self._find(result["id"])
        category, name = category_of(entry["id"]), handler.registry_name
        right = utils.load_ground_truth_entry(category)[number]["ground_truth"]  # in the order of the entries
        evaluate = eval_runner._evaluate_single_agentic_entry
        score = evaluate(handler, entry["id"], result["result"], right, entry, name, category)
        return bool(score["valid"])

    def evaluate(self, handler: Handler, category: str, results: list[dict[str, Any]], scores: Path) -> None:
        """Run BFCL's evaluation of some entries of a category. BFCL writes their score below ``scores``."""
        folder = handler.registry_dir_name
        eval_runner.evaluate_task(category, None, scores, results, folder, handler, {}, allow_missing=True)

    def _find(self, entry_id: str) -> tuple[int, dict[str, Any]]:
        for number, entry in enumerate(utils.load_dataset_entry(category_of(entry_id))):
            if entry["id"] == entry_id:
                return number, entry
        raise UnknownEntry(f"{utils.PROMPT_PATH}: no entry {entry_id!r}")


def category_of(entry_id: str) -> str:
    return str(utils.extract_test_category_from_id(entry_id))
