"""Subscriptions by regular expression: RE2 (google-re2), as in Kafka, matched in time linear in the topic's name.

An expression is matched against whole names. Expressions and names are tried in steps, so that many of them do not hold
up the loop; an expression that takes much memory when compiled is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError

NAMES_A_STEP = 1_000
"""Names tried in one step: about two milliseconds."""
COMPILING_IN_NAMES = 250
"""An expression is compiled anew where it is not known any more: a fresh one of usual size takes as long as these."""
COMPILED_BYTES = 1 << 20
"""RE2's limit for one compiled expression, which then takes a few milliseconds; beyond it the expression is refused."""
LENGTH_MAX = 4_096
COMPILED_KEPT = 256
_INNOCENT = re.compile(r"\\Q.*?(\\E|$)|\\[^CQ]", re.DOTALL)
"""What has nothing to do with `\\C`, which this RE2 knows and Kafka's does not: quoted text, other escapes."""


@lru_cache(maxsize=COMPILED_KEPT)
def compiled(regex: str) -> Any:
    """The expression, ready to match. Raises INVALID_REGULAR_EXPRESSION."""
    import re2  # only who subscribes by expression pays for loading it

    why: object = f"it is longer than {LENGTH_MAX} characters"
    if _INNOCENT.sub("", regex).find("\\C") >= 0:
        why = "\\C, a single byte, is not known here"
    elif len(regex) <= LENGTH_MAX:
        options = re2.Options()
        options.log_errors = False
        options.max_mem = COMPILED_BYTES
        try:
            return re2.compile(regex, options)
        except re2.error as error:
            said = error.args[0] if error.args else ""
            why = said.decode(errors="replace") if isinstance(said, bytes) else said
    raise KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{regex[:200]}` is not a valid regular expression: {why}.",
    )


class Resolving:
    """Tries expressions on names, one expression after the other, a step at a time."""

    def __init__(self, regexes: Iterable[str], names: Iterable[str]) -> None:
        self.found: dict[str, set[str]] = {regex: set() for regex in regexes}
        self._names = list(names)
        self._at = ((regex, first) for regex in self.found for first in range(0, len(self._names), NAMES_A_STEP))

    def step(self) -> Mapping[str, set[str]] | None:
        """Go on; what every expression matched once all names have been tried, else None."""
        left = NAMES_A_STEP
        while left > 0:
            at = next(self._at, None)
            if at is None:
                return self.found
            regex, first = at
            names = self._names[first : first + NAMES_A_STEP]
            matches = compiled(regex).fullmatch
            self.found[regex].update(name for name in names if matches(name) is not None)
            left -= len(names) + COMPILING_IN_NAMES
        return None
