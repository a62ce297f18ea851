"""bfcl-eval's entries and its scorer, without the makers' SDKs that its table of models imports.

``bfcl_eval.constants.model_config`` imports the handlers of all models there are, and with them torch and a dozen SDKs.
All that the scorer wants of it is the table: here it is empty, put in place before the scorer is imported.
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

from bfcl_eval.eval_checker import eval_runner  # noqa: E402 - needs the table

ANSWERS = "possible_answer"


class UnknownEntry(Exception):
    """BFCL has no such entry."""


class Handler(OpenAICompletionsHandler):  # type: ignore[misc]
    """BFCL's handler of OpenAI-compatible servers, without a client of its own."""

    def _build_client_kwargs(self) -> dict[str, Any]:
        return {"api_key": "EMPTY"}


class Benchmark:
    """Entries and their answers.

    Args:
        data: a folder laid out as bfcl-eval's own (``BFCL_v4_web_search.json``, ``possible_answer/`` beside it); None:
            bfcl-eval's own.
    """

    def __init__(self, data: Path | None = None) -> None:
        if data is not None:
            utils.PROMPT_PATH = data
            utils.POSSIBLE_ANSWER_PATH = data / ANSWERS

    def entry(self, entry_id: str) -> dict[str, Any]:
        """An entry, ready for the loop: its question, functions and settings.

        Raises:
            UnknownEntry: there is none.
        """
        (found,) = utils.populate_initial_settings_for_web_search_test_cases([self._find(entry_id)[1]])
        return dict(found)

    def has_answers(self) -> bool:
        answers = Path(utils.POSSIBLE_ANSWER_PATH) / f"{utils.VERSION_PREFIX}_web_search.json"
        return answers.exists()

    def valid(self, handler: Handler, result: dict[str, Any]) -> bool | None:
        """BFCL's verdict on an entry's result; None where there are no answers to compare with."""
        if not self.has_answers():
            return None
        number, entry = self._find(result["id"])
        category, name = category_of(entry["id"]), handler.registry_name
        right = utils.load_ground_truth_entry(category)[number]["ground_truth"]  # in the same order as the entries
        judge = eval_runner._evaluate_single_agentic_entry
        judged = judge(handler, entry["id"], result["result"], right, entry, name, category)
        return bool(judged["valid"])

    def evaluate(self, handler: Handler, category: str, results: list[dict[str, Any]], scores: Path) -> None:
        """BFCL's evaluation of some entries of a category; it writes their score below ``scores``."""
        folder = handler.registry_dir_name
        eval_runner.evaluate_task(category, None, scores, results, folder, handler, {}, allow_missing=True)

    def _find(self, entry_id: str) -> tuple[int, dict[str, Any]]:
        for number, entry in enumerate(utils.load_dataset_entry(category_of(entry_id))):
            if entry["id"] == entry_id:
                return number, entry
        raise UnknownEntry(f"{utils.PROMPT_PATH}: no entry {entry_id!r}")


def category_of(entry_id: str) -> str:
    return str(utils.extract_test_category_from_id(entry_id))
