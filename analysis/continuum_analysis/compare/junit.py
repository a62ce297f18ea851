"""Conditions as JUnit XML, which CI systems show as tests: one test for each condition and arm."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from continuum_traces.run_dir import write_text

from continuum_analysis.compare.conditions import Outcome


def write_junit(outcomes: Sequence[Outcome], file: Path) -> None:
    """Write the outcomes as a JUnit XML file.

    Raises:
        RunDirError: the file cannot be written.
    """
    counts = {"tests": str(len(outcomes)), "failures": str(sum(outcome.failed for outcome in outcomes)), "errors": "0"}
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "continuum-bench compare", **counts})
    for outcome in outcomes:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": outcome.pair.name, "name": f"not ({outcome.condition})", "time": "0"}
        )
        if outcome.failed:
            ElementTree.SubElement(case, "failure", {"message": outcome.found, "type": "condition"}).text = outcome.text
        else:
            ElementTree.SubElement(case, "system-out").text = outcome.text
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    write_text(file, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')
