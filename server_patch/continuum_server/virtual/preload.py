"""Loads the virtual engine in a fork server.

Python's garbage collector takes a third of the time while vLLM is imported, and finds nothing. What was loaded is kept
out of later collections too, in every process that is forked.
"""

import gc

gc.disable()
import continuum_server.virtual.engine  # noqa: E402, F401

gc.freeze()
gc.enable()
