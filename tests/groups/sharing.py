"""Members of share groups, and the runner of their coordinator's errands, for tests of the group machine."""

from __future__ import annotations

from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.groups.ground.commands import AwaitErrands, ErrandDone, ShareHeartbeat
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.share.errands import Errand
from kpybroker.wire.rpc import share_group_heartbeat
from tests.groups.stage import Stage

AT_ONCE = GroupSettings(first_join_pause_ms=0, share_assignment_interval_ms=0)


def beat(member_id: str, epoch: int, *names: str, group: str = "s", **more: Any) -> ShareHeartbeat:
    """A heartbeat; without names, the subscription is unchanged."""
    request = share_group_heartbeat.Request(
        group_id=group, member_id=member_id, member_epoch=epoch, subscribed_topic_names=list(names) or None, **more
    )
    return ShareHeartbeat(request, "client", "/127.0.0.1")


class ShareStage(Stage):
    """A stage whose errands are run, as the coordinator's ErrandRunner does."""

    def __init__(self, settings: GroupSettings = AT_ONCE) -> None:
        super().__init__(settings)
        self.errands: list[Errand] = []
        self.waiting: int | None = None

    def ask(self, command: Any) -> Any:
        """Run one step, and another step for each result of an errand."""
        asked = super().ask(command)
        for ticket, answer in asked[1]:
            if ticket == self.waiting:
                self.waiting = None
                self.errands += answer if isinstance(answer, list) else []
        self._await()
        return asked

    def _await(self) -> None:
        while self.waiting is None:
            ticket, answers, _ = super().ask(AwaitErrands())
            found = dict(answers).get(ticket)
            if found is None:
                self.waiting = ticket
            else:
                self.errands += found

    def run_errands(self, code: ErrorCode = ErrorCode.NONE) -> list[tuple[int, Any]]:
        """Run all errands. Returns the responses to clients that this led to."""
        told = []
        while self.errands:
            ticket, answers, _ = self.ask(ErrandDone(self.errands.pop(0), code))
            told += [each for each in answers if each[0] not in (ticket, self.waiting)]
        return told

    def restart(self) -> None:
        """Drop the coordinator and its errands."""
        self.errands, self.waiting = [], None
        super().restart()

    def joined(self, member_id: str, *names: str, group: str = "s") -> Any:
        """Join as a member. Returns the heartbeat response with its assignment, when all partitions are initialized."""
        told = self.answer(beat(member_id, 0, *names, group=group))
        self.run_errands()
        return self.answer(beat(member_id, told.member_epoch, *names, group=group))


def places(response: Any) -> set[tuple[bytes, int]] | None:
    """The assignment in a response."""
    if response.assignment is None:
        return None
    return {(bytes(row.topic_id), index) for row in response.assignment.topic_partitions for index in row.partitions}
