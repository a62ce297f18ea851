"""The times of LangChain's own tools (docs/client/frameworks.md): agent.invoke(..., {"callbacks": [ToolTimes()]})."""

import time

from langchain_core.callbacks import BaseCallbackHandler

from continuum_client import current_program


class ToolTimes(BaseCallbackHandler):
    run_inline = True  # otherwise asynchronous runs call the handler in another thread

    def __init__(self):
        self.started = {}

    def on_tool_start(self, serialized, input_str, *, run_id, **more):
        self.started[run_id] = (serialized["name"], time.monotonic())

    def on_tool_end(self, output, *, run_id, **more):
        name, start_s = self.started.pop(run_id)
        if (program := current_program()) is not None:
            program.ran(name, time.monotonic() - start_s)

    on_tool_error = on_tool_end
