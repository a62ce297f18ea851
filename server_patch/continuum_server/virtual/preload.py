"""Load the virtual engine in a fork server.

Python's garbage collector takes a third of the time while vLLM is imported, and finds nothing to free. The loaded
objects are also excluded from later collections in every forked process.
"""

import gc

gc.disable()
import continuum_server.virtual.engine  # noqa: E402, F401

gc.freeze()
gc.enable()
