"""Logs refused connections and frames: a limited number of lines per minute, and one line with the number of others."""

from __future__ import annotations

import logging
from collections import Counter

from kpybroker.security.audit import shown

log = logging.getLogger(__name__)

MINUTE_S = 60.0
LINES_PER_HOST = 5
"""The maximum number of lines per minute about one address."""
LINE_MAX = 1000
"""The maximum length of a line in characters. A line may contain names that a client has chosen."""
LINES = 60
"""The maximum number of lines per minute about all addresses."""
HOSTS_MAX = 1000
"""The maximum number of addresses that are counted separately. Others have no lines until the minute ends."""


class RefusalLog:
    """Writes or counts lines. `look` must be called at least once a second."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._told = 0
        self.by_host: Counter[str] = Counter()
        self._untold = 0
        self.untold_hosts: set[str] = set()

    def tell(self, host: str, line: str, *about: object) -> None:
        """Log a warning, formatted like those of `logging`, or count it if there have been too many."""
        is_known = host in self.by_host
        if (is_known or len(self.by_host) < HOSTS_MAX) and self.by_host[host] < LINES_PER_HOST and self._told < LINES:
            self.by_host[host] += 1
            self._told += 1
            log.warning("%s", shown(line % about, LINE_MAX))
            return
        self._untold += 1
        if len(self.untold_hosts) < HOSTS_MAX:
            self.untold_hosts.add(host)

    def look(self, now: float) -> None:
        """When the current minute is over, log how many lines were left out, and begin a new minute."""
        if now - self._since < MINUTE_S:
            return
        self.sum_up()
        self._since = now

    def sum_up(self) -> None:
        """Log how many lines were left out."""
        if self._untold:
            more = " or more" if len(self.untold_hosts) == HOSTS_MAX else ""
            log.warning(
                "%d more connections or frames were refused within %d s, from %d addresses%s, among them %s",
                self._untold,
                MINUTE_S,
                len(self.untold_hosts),
                more,
                min(self.untold_hosts),
            )
        self._told = self._untold = 0
        self.by_host.clear()
        self.untold_hosts.clear()
