"""Two producers use a transactional id one after the other: the first one stays fenced, on any broker."""

from __future__ import annotations

from compat_tests.changing import Source, coordinator, patiently
from compat_tests.takeover_clients import Transacting
from compat_tests.visible import TRANSACTION, Eyes, Place
from kpybroker.wire.rpc import end_txn

INVALID_PRODUCER_EPOCH, PRODUCER_FENCED = 47, 90


class Fenced:
    """Two producers with one id. The second one runs the transactions."""

    def __init__(self, source: Source, transactional_id: str, place: Place) -> None:
        self.id = transactional_id
        self._place = place
        self._first = Transacting(source, transactional_id, [place], place)
        self._second = Transacting(source, transactional_id, [place], place, commits=True)

    def begin(self, eyes: Eyes) -> None:
        """The first producer leaves a transaction open, which the start of the second one aborts."""
        self._first.begin(eyes)
        self._first.send(eyes, self._place)
        self._second.begin(eyes)
        self.go_on(eyes)

    def go_on(self, eyes: Eyes) -> None:
        """The first producer may not end anything; the second one commits."""
        who = self._first.who
        request = end_txn.Request(
            transactional_id=self.id, producer_id=who.producer_id, producer_epoch=who.producer_epoch, committed=True
        )

        def ask() -> int:
            told = eyes.ask("EndTxn", request, end_txn.Response, coordinator(eyes, self.id, TRANSACTION))
            return int(told.error_code)

        patiently(ask, INVALID_PRODUCER_EPOCH, PRODUCER_FENCED)
        self._second.send(eyes, self._place)
        self._second.end(eyes)
