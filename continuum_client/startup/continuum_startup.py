"""Instrument openai after its import.

Python's start or OpenTelemetry calls ``begin`` if this folder is in ``PYTHONPATH``, as ``continuum-instrument`` sets
it: Python imports ``sitecustomize`` of the first folder that has one. If that is OpenTelemetry's, it calls the entry
points ``opentelemetry_pre_instrument``, of which the ``dist-info`` beside this file has one.

The file uses only the standard library, because every Python process that an agent starts imports it, also processes of
other environments.
"""

import importlib.abc
import importlib.util
import sys


def instrument() -> None:
    """Instrument openai. If that fails, write a message and let the agent go on."""
    try:
        from continuum_client import instrumentation  # noqa: PLC0415 - it imports openai

        if hasattr(instrumentation, "instrument"):  # else the agent imports it just now, to call it
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


def begin() -> None:
    """Instrument openai now, or after its import. A second call has no effect."""
    if _begun:
        return
    _begun.append(True)
    if "openai" in sys.modules:
        instrument()
    else:
        sys.meta_path.insert(0, AfterImport())


_begun: list = []  # type: ignore[type-arg]
