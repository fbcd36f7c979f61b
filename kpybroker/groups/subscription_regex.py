"""Subscriptions by regular expression: RE2 (google-re2), as in Kafka, matched in time linear in the topic's name.

An expression is matched against whole names. Topics are tried in steps, so that a large cluster does not hold up the
loop; an expression that takes much memory when compiled is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError

NAMES_A_STEP = 1_000
"""Names tried in one step, one expression each: about two milliseconds."""
COMPILED_BYTES = 8 << 20
"""RE2's limit for one compiled expression; beyond it the expression is refused."""
LENGTH_MAX = 4_096
COMPILED_KEPT = 256


@lru_cache(maxsize=COMPILED_KEPT)
def compiled(regex: str) -> Any:
    """The expression, ready to match. Raises INVALID_REGULAR_EXPRESSION."""
    import re2  # only who subscribes by expression pays for loading it

    why: object = f"it is longer than {LENGTH_MAX} characters"
    if len(regex) <= LENGTH_MAX:
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
    """Tries expressions on names, a step at a time."""

    def __init__(self, regexes: Iterable[str], names: Iterable[str]) -> None:
        self.found: dict[str, set[str]] = {regex: set() for regex in regexes}
        self._matches = {regex: compiled(regex).fullmatch for regex in self.found}
        self._names: Iterator[str] = iter(list(names))

    def step(self) -> Mapping[str, set[str]] | None:
        """Go on; what every expression matched once all names have been tried, else None."""
        count = max(NAMES_A_STEP // max(len(self._matches), 1), 1)
        names = list(islice(self._names, count))
        for regex, matches in self._matches.items():
            found = self.found[regex]
            found.update(name for name in names if matches(name) is not None)
        return self.found if len(names) < count else None
