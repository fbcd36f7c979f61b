"""A clock for measurements, never for decisions: it runs while the loop stands still, and is alike in every World."""

from __future__ import annotations

from time import perf_counter

__all__ = ["perf_counter"]
