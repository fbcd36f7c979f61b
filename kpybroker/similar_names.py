"""The existing name that a wrong one probably stands for, for error messages."""

from __future__ import annotations

from collections.abc import Iterable

CUTOFF = 0.6
PREFIX_MIN = 3
"""The fewest characters that stand for the only name that begins with them."""


def nearest_name(wanted: str, known: Iterable[str]) -> str | None:
    """The existing name most similar to a wrong one, if any."""
    names = list(known)
    longer = [name for name in names if name.startswith(wanted)]
    if len(longer) == 1 and len(wanted) >= PREFIX_MIN:
        return longer[0]
    import difflib  # needed only for an error

    found = difflib.get_close_matches(wanted, names, n=1, cutoff=CUTOFF)
    return found[0] if found else None


def meant(wrong: object, known: Iterable[str]) -> str:
    """The end of an error message about a wrong name: `; did you mean ...?`, or nothing if no name is similar."""
    near = nearest_name(str(wrong), known)
    return "" if near is None else f"; did you mean {near}?"
