"""Replies that a group completes later, without a task for each reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kpybroker.call import Reply
from kpybroker.machine.contract import Answer, Ticket
from kpybroker.machine.runner import Runner


class ParkedReply(Reply):
    """A reply that is completed with the machine's result, and abandoned when the connection is closed."""

    __slots__ = ("_respond", "_runner", "_ticket")

    def __init__(self, runner: Runner, respond: Callable[[Answer], Any]) -> None:
        super().__init__()
        self._runner = runner
        self._respond = respond
        self._ticket: Ticket | None = None

    def ask(self, command: Any, timeout_ms: int) -> Any:
        """Submit the command. Returns the response if it is available at once, else this reply. Raises the Runner's
        KafkaError."""
        self._ticket = self._runner.submit(command, timeout_ms, self._answered)
        return self.response if self.done else self

    def _answered(self, answer: Answer) -> None:
        self._ticket = None
        self.complete(self._respond(answer))

    def abandon(self) -> None:
        if self._ticket is not None:
            self._runner.abandon(self._ticket)
