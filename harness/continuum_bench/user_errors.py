"""The errors that a user can correct. Each is shown in one line, without a traceback."""

from __future__ import annotations

from continuum_agents.environments import AgentEnvironmentError
from continuum_analysis.records.timeline import AnalysisError
from continuum_server.emulated.settings import EmulatedError
from continuum_server.policy.registry import PolicyError
from continuum_server.server_config import ServerError
from continuum_server.step_times.model import StepTimesError
from continuum_server.virtual.config import EngineError
from continuum_server.vllm_plugin.versions import PluginError
from continuum_traces.json_io import RunDirError
from continuum_traces.programs.jsonl import TraceError

from continuum_bench.errors import BenchError

USER_ERRORS = (
    AgentEnvironmentError,
    AnalysisError,
    BenchError,
    EmulatedError,
    EngineError,
    PluginError,
    PolicyError,
    ServerError,
    StepTimesError,
    TraceError,
    RunDirError,
)
