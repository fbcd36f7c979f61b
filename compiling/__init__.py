"""Builds wheels with modules compiled by mypyc (docs/decisions/0023-a-compiled-build.md)."""
