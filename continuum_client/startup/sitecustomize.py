"""Python imports this file at its start if its folder is in ``PYTHONPATH``."""

import importlib.machinery
import importlib.util
import os
import sys

import continuum_startup  # type: ignore[import-not-found]

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would double the time of a start


def run_the_next_sitecustomize() -> None:
    """Run another ``sitecustomize.py``, which this file hides, if there is one."""
    folders = [folder for folder in sys.path if os.path.abspath(folder or ".") != FOLDER]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


continuum_startup.begin()
run_the_next_sitecustomize()
