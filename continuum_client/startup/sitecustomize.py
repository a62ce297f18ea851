"""Instrument openai after its import. Python imports this file at its start if its folder is in ``PYTHONPATH``.

``continuum-instrument`` sets this variable. The file uses only the standard library, because every Python process that
an agent starts imports it, also processes of other environments.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would double the time of a start


def instrument() -> None:
    """Instrument openai. If that fails, write a message and let the agent go on."""
    try:
        from continuum_client import instrumentation  # noqa: PLC0415 - it imports openai

        instrumentation.instrument()
    except Exception as error:  # noqa: BLE001 - the agent's own import of openai must not fail
        sys.stderr.write("continuum: calls of this process are not tagged: %s\n" % error)  # noqa: UP031 - any Python 3


class AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds openai by the usual finders, and instruments it after its import."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "openai":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return self.loader.create_module(spec)

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        instrument()


def run_the_next_sitecustomize() -> None:
    """Run another ``sitecustomize.py``, which this file hides, if there is one."""
    folders = [folder for folder in sys.path if os.path.abspath(folder or ".") != FOLDER]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "openai" in sys.modules:
    instrument()
else:
    sys.meta_path.insert(0, AfterImport())
run_the_next_sitecustomize()
