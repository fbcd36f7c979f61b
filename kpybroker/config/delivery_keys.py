"""Settings of scheduled delivery, which only kpybroker has."""

from __future__ import annotations

from kpybroker.config.key import BOOLEAN, LONG, ConfigKey, at_least, obeyed

SCHEDULED = "kpybroker.delivery.scheduled"
DELIVERY_KEYS: tuple[ConfigKey, ...] = (
    obeyed(
        "kpybroker.delivery.max.ahead.ms",
        LONG,
        "31536000000",
        at_least(0),
        doc="How far ahead a record may be scheduled (365 days by default). A record that is due later is refused.",
    ),
    obeyed(
        "kpybroker.delivery.max.pending",
        LONG,
        "10000000",
        at_least(1),
        doc="Maximum number of pending records of one partition. Further scheduled records are refused.",
    ),
    obeyed(
        SCHEDULED,
        BOOLEAN,
        "false",
        doc="Whether a record with a header deliver-at or deliver-after is appended to its partition at that time. "
        "Until then it is in the topic __scheduled.<topic>.",
    ),
)
"""Settings of topics."""
