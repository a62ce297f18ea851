"""Traces, which are sequences of programs: the format, checks, statistics, synthesis, and what imports assumed."""
