"""Two producers that use a transactional id one after the other: the first producer must stay fenced on either
broker."""

from __future__ import annotations

from compat_tests.changing import Source, coordinator, patiently
from compat_tests.takeover_clients import Transacting
from compat_tests.visible import TRANSACTION, Eyes, Place
from kpybroker.wire.rpc import end_txn

INVALID_PRODUCER_EPOCH, PRODUCER_FENCED = 47, 90


class Fenced:
    """Two producers with one transactional id. The second producer runs the transactions."""

    def __init__(self, source: Source, transactional_id: str, place: Place) -> None:
        self.id = transactional_id
        self._place = place
        self._first = Transacting(source, transactional_id, [place], place)
        self._second = Transacting(source, transactional_id, [place], place, commits=True)

    def begin(self, eyes: Eyes) -> None:
        """Let the first producer leave a transaction open, which the start of the second producer aborts."""
        self._first.begin(eyes)
        self._first.send(eyes, self._place)
        self._second.begin(eyes)
        self.go_on(eyes)

    def go_on(self, eyes: Eyes) -> None:
        """Check that the first producer may not end a transaction, and that the second producer can commit."""
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
