"""Parses and formats times for the command line."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from kpybroker.errors import ConfigError

TIMESTAMP_MAX = 2**63 - 1
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
AGO = re.compile(r"(?:\d{1,12}(?:ms|[smhdw]))+")
TIME_HELP = "5m (five minutes ago), 2h30m, yesterday, 2026-07-01T12:00, or milliseconds since the epoch"


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Milliseconds since the epoch.

    `text` is milliseconds since the epoch, an ISO 8601 time (local time if it has no zone), a time span before now such
    as `5m` or `1h30m`, or `now`, `today` or `yesterday` (local midnight). `now_ms`: the current time (default: the
    system's clock). Raises ConfigError.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if text.isascii() and text.isdigit():
        if len(text) > 19 or int(text) > TIMESTAMP_MAX:
            raise ConfigError(f"{text} is too large for a timestamp in milliseconds")
        return int(text)
    if text == "now":
        return now_ms
    try:
        if text in ("today", "yesterday"):
            midnight = datetime.fromtimestamp(now_ms / 1000).replace(hour=0, minute=0, second=0, microsecond=0)
            return round((midnight - timedelta(days=text == "yesterday")).timestamp() * 1000)
        if AGO.fullmatch(text):
            return max(0, now_ms - parse_span(text))
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"cannot read the time {text!r}: write {TIME_HELP}") from None


def parse_span(text: str) -> int:
    """The milliseconds of a time span such as `5m` or `1h30m`, or a number of milliseconds. Raises ConfigError."""
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    if AGO.fullmatch(text) is None:
        raise ConfigError(f"cannot read the time span {text!r}: write 30s, 10m, 1h30m, or milliseconds")
    return sum(int(count) * UNIT_MS[unit] for count, unit in re.findall(r"(\d+)(ms|[smhdw])", text))


def when(timestamp_ms: int) -> str:
    """A record's timestamp in readable form, in UTC; `-` if it has none."""
    if timestamp_ms < 0:
        return "-"
    try:
        shown = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)  # beyond the range of datetime
    return shown.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
