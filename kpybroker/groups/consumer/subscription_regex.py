"""Subscriptions by regular expression: RE2, as in Kafka, matched in time linear in the topic's name.

RE2 comes with google-re2, which the extra `regex` installs. Without it expressions are refused: Python's own `re` can
take exponential time, on the thread that serves everybody.

An expression is matched against whole names. Expressions and names are tried in steps, so that many of them do not hold
up the loop; an expression that takes much memory when compiled is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

NAMES_A_STEP = 1_000
"""Names tried in one step: about two milliseconds."""
COMPILING_IN_NAMES = 250
"""An expression is compiled anew where it is not known any more: a fresh one of usual size takes as long as these."""
COMPILED_BYTES = 1 << 20
"""RE2's limit for one compiled expression, which then takes a few milliseconds; beyond it the expression is refused."""
LENGTH_MAX = 4_096
WITHOUT_RE2 = (
    "This broker was installed without RE2 and cannot match regular expressions: "
    "pip install 'kpybroker[regex]' where it runs and restart it, or subscribe by topic names."
)
COMPILED_KEPT = 256
_INNOCENT = re.compile(r"\\Q.*?(\\E|$)|\\[^CQ]", re.DOTALL)
"""What has nothing to do with `\\C`, which this RE2 knows and Kafka's does not: quoted text, other escapes."""


@lru_cache(maxsize=COMPILED_KEPT)
def compiled(regex: str) -> Any:
    """The expression, ready to match. Raises INVALID_REGULAR_EXPRESSION."""
    try:
        import re2  # only who subscribes by expression pays for loading it
    except ImportError:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, WITHOUT_RE2) from None
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


class RegexResolution:
    """Tries expressions on names, one expression after the other, a step at a time.

    An expression that cannot be compiled here was accepted elsewhere (by Apache Kafka, or while RE2 was installed) and
    came with the log: it is left out, and what it matched before stays.
    """

    def __init__(self, regexes: Iterable[str], names: Iterable[str]) -> None:
        self.found: dict[str, set[str]] = {regex: set() for regex in regexes}
        self._names = list(names)
        self._at = ((regex, first) for regex in tuple(self.found) for first in range(0, len(self._names), NAMES_A_STEP))

    def step(self) -> Mapping[str, set[str]] | None:
        """Go on; once all names have been tried, what every expression matched that can be compiled, else None."""
        left = NAMES_A_STEP
        while left > 0:
            at = next(self._at, None)
            if at is None:
                return self.found
            regex, first = at
            if regex not in self.found:
                continue
            names = self._names[first : first + NAMES_A_STEP]
            try:
                matches = compiled(regex).fullmatch
            except KafkaError as refusal:
                log.warning("the topics of a group's subscription stay as they were: %s", refusal.message)
                del self.found[regex]
                left -= COMPILING_IN_NAMES
                continue
            self.found[regex].update(name for name in names if matches(name) is not None)
            left -= len(names) + COMPILING_IN_NAMES
        return None
