"""A clock for measurements, never for decisions: it is the real clock in every World, simulated ones included."""

from __future__ import annotations

from time import perf_counter

__all__ = ["perf_counter"]
