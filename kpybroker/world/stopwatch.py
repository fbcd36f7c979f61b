"""A clock for measurements, never for decisions. It is the real clock in every World, including the simulated one."""

from __future__ import annotations

from time import perf_counter

__all__ = ["perf_counter"]
