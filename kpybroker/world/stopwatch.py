"""Real clocks for measurements, never for decisions. They are the same in every World, including the simulated one."""

from __future__ import annotations

from time import perf_counter, thread_time

__all__ = ["perf_counter", "thread_time"]
