"""Evaluates subscriptions by regular expression with RE2, as in Kafka, in time linear in the topic's name.

RE2 is part of google-re2, which the extra `regex` installs. Without it, regular expressions are refused, because
Python's own `re` can take exponential time on the thread that serves all requests.

An expression is matched against whole names. Matching is done in steps, so that many expressions and names do not block
the event loop. An expression that needs much memory when it is compiled is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import MayDescribe

log = logging.getLogger(__name__)

NAMES_A_STEP = 1_000
"""The number of names that are matched in one step of about two milliseconds."""
COMPILING_IN_NAMES = 250
"""The cost of compiling an expression of usual size, as a number of names."""
ASKING_IN_NAMES = 2
"""The cost of calling the authorizer for a name, as a number of names."""
COMPILED_BYTES = 1 << 20
"""RE2's memory limit for one expression. At the limit, compilation takes a few milliseconds; larger ones are
refused."""
LENGTH_MAX = 4_096
WITHOUT_RE2 = (
    "This broker was installed without RE2 and cannot match regular expressions: "
    "pip install 'kpybroker[regex]' where it runs and restart it, or subscribe by topic names."
)
COMPILED_KEPT = 256
_INNOCENT = re.compile(r"\\Q.*?(\\E|$)|\\[^CQ]", re.DOTALL)
"""The parts of an expression that cannot contain the operator for a single byte, `\\C`, which this RE2 supports but
Kafka's RE2/J does not: quoted text and other escapes."""


@lru_cache(maxsize=COMPILED_KEPT)
def compiled(regex: str) -> Any:
    """The compiled expression. Raises INVALID_REGULAR_EXPRESSION."""
    try:
        import re2  # imported here, so that only groups with regular expressions need the import
    except ImportError:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, WITHOUT_RE2) from None
    why: object = f"it is longer than {LENGTH_MAX} characters"
    if _INNOCENT.sub("", regex).find("\\C") >= 0:
        why = "\\C, a single byte, is not supported"
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
    """Matches names with expressions, one expression after another, in steps.

    An expression that cannot be compiled is from a log whose broker accepted it (Apache Kafka, or a broker with RE2).
    It is skipped, and its previous result stays.
    """

    def __init__(self, regexes: Iterable[str], names: Iterable[str], may_describe: MayDescribe | None = None) -> None:
        """`may_describe` filters the matching names; None allows all of them."""
        self.may_describe = may_describe
        self.found: dict[str, set[str]] = {regex: set() for regex in regexes}
        self.regexes = frozenset(self.found)
        self._at_once = NAMES_A_STEP if may_describe is None else NAMES_A_STEP // (1 + ASKING_IN_NAMES)
        self._names = list(names)
        self._at = (
            (regex, first) for regex in tuple(self.found) for first in range(0, len(self._names), self._at_once)
        )

    def step(self) -> Mapping[str, set[str]] | None:
        """Do the next step. Returns None until the last step, which returns the topics of every expression that can be
        compiled."""
        left = NAMES_A_STEP
        while left > 0:
            at = next(self._at, None)
            if at is None:
                return self.found
            regex, first = at
            if regex not in self.found:
                continue
            names = self._names[first : first + self._at_once]
            try:
                matches = compiled(regex).fullmatch
            except KafkaError as refusal:
                log.warning("the topics of a group's subscription stay unchanged: %s", refusal.message)
                del self.found[regex]
                left -= COMPILING_IN_NAMES
                continue
            found = [name for name in names if matches(name) is not None]
            if self.may_describe is not None:
                left -= ASKING_IN_NAMES * len(found)
                found = list(filter(self.may_describe, found))
            self.found[regex].update(found)
            left -= len(names) + COMPILING_IN_NAMES
        return None
