"""A transaction machine for tests: a log in memory, and a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Moment, Stored, Tick
from kpybroker.transactions.commands import AwaitEndings, Complete, InitProducerId, ProducerIdWanted
from kpybroker.transactions.machine import TransactionMachine, TransactionSettings
from kpybroker.transactions.transaction import Transaction

START_MS = 1_000_000


class Stage:
    """Decides, stores the records and applies them, as a Runner does, but without waiting."""

    def __init__(self, settings: TransactionSettings | None = None, level: int = 2) -> None:
        self.settings = settings or TransactionSettings()
        self.level = level
        self.now_ms = START_MS
        self.ahead_ms = 0
        """The difference between the wall clock and the steady clock."""
        self.log: list[Stored] = []
        self.machine = self.empty()
        self.tickets = 0
        self.ids = 0
        self.refuses = False
        self.ask(Tick())

    def empty(self) -> TransactionMachine:
        return TransactionMachine(self.settings, lambda: self.level)

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.now_ms + self.ahead_ms)

    def ask(self, command: Any) -> dict[int, Any]:
        """Run one step. Returns all responses that it led to. The caller's ticket is in `tickets`."""
        self.tickets += 1
        ticket: Any = self.tickets
        try:
            outcome = self.machine.decide(ticket, command, self.now)
        except KafkaError as refusal:
            return {ticket: refusal}
        if outcome.records and self.refuses:
            return {each: KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) for each, _ in outcome.answers}
        for record in outcome.records:
            record.offset = len(self.log)
            self.log.append(record)
            self.machine.apply(record)
        return dict(outcome.answers)

    def answer(self, command: Any) -> Any:
        """Run a command. Returns the response, or the error code of the refusal. A producer id is provided if one is
        needed."""
        answers = self.ask(command)
        found = answers.get(self.tickets)
        if isinstance(found, ProducerIdWanted):
            self.ids += 1
            found = self.ask(command._replace(new_producer_id=1000 + self.ids)).get(self.tickets)
        return found.code if isinstance(found, KafkaError) else found

    def begin(self, name: str = "t", timeout_ms: int = 60_000) -> tuple[int, int]:
        answer = self.answer(InitProducerId(name, timeout_ms))
        assert isinstance(answer, tuple), answer
        return answer

    def settle(self) -> list[Transaction]:
        """Do the work of the marker sender, as if every partition accepted its marker at once."""
        endings = self.answer(AwaitEndings()) or []
        for ending in endings:
            self.ask(Complete(ending))
        return list(endings)

    def wait(self, for_ms: int) -> None:
        """Let time pass, and run the machine at each of its deadlines."""
        end_ms = self.now_ms + for_ms
        while (deadline_ms := self.machine.deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.ask(Tick())
        self.now_ms = end_ms

    def replayed(self, log: list[Stored] | None = None) -> TransactionMachine:
        """Another machine, built only from the bytes of the same log, or of the given log."""
        machine = self.empty()
        for record in self.log if log is None else log:
            machine.apply(Stored(record.key, record.value, record.timestamp_ms, record.offset))
        return machine

    def restart(self) -> None:
        """Drop the coordinator; another coordinator replays the log."""
        self.machine = self.replayed()
        self.ask(Tick())


def hard(machine: TransactionMachine) -> dict[str, Transaction]:
    """The part of the state that is in the records."""
    return {name: replace(each, last_epoch=-1) for name, each in machine.transactions.items()}
