"""Simulated clients of the classic protocol, which join, sync, send heartbeats, commit, leave, crash and return; and
their invariants."""

from __future__ import annotations

from random import Random
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.group import GroupState
from kpybroker.groups.ground.commands import CommitOffsets, Heartbeat, Leave, PartitionCommit
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.wire.rpc import join_group, leave_group, sync_group
from tests.groups.stage import Stage, join, sync

SESSION_MS = 10_000
REBALANCE_MS = 8_000
START_AGAIN = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


class Citizen:
    """One client. `waits_for` is the request without a response."""

    def __init__(self, name: str, instance: str | None, version: int) -> None:
        self.name = name
        self.instance = instance
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.assignment: bytes | None = None
        self.waits_for: int | None = None
        self.says = b"0"


class Town:
    """A group, its clients, and the observations so far. Every coordinator counts generations from the beginning."""

    def __init__(self, chance: Random, settings: GroupSettings) -> None:
        self.chance = chance
        self.stage = Stage(settings)
        self.citizens: list[Citizen] = []
        self.asked: dict[int, Citizen] = {}
        self.coordinator = 0
        self.gave: dict[tuple[int, int], dict[str, bytes]] = {}
        self.born = 0
        self.offset = 0

    # -- events ---------------------------------------------------------------------------------------------------

    def disturb(self) -> None:
        """A random event for a random client."""
        chance = self.chance
        self._hear(self.stage.wait(chance.choice([0, 1, 100, 1_000, 3_000])))
        what = chance.randrange(20)
        if what < 2 and len(self.citizens) < 6:
            self._be_born()
        elif what == 2 and self.citizens:
            self._part(chance.choice(self.citizens), says_so=True)
        elif what == 3 and self.citizens:
            self._part(chance.choice(self.citizens), says_so=False)
        elif what == 4 and chance.random() < 0.3:
            self._new_coordinator()
        elif what == 5 and self.citizens:
            chance.choice(self.citizens).says = b"%d" % chance.randrange(3)
        else:
            for citizen in chance.sample(self.citizens, len(self.citizens)):
                self._act(citizen)

    def settle(self) -> None:
        """Let the clients run without further random events."""
        for _ in range(60):
            for citizen in self.citizens:
                self._act(citizen)
            self._hear(self.stage.wait(1_000))

    def _be_born(self) -> None:
        self.born += 1
        instance = self.chance.choice([None, None, "one", "two"])
        if instance is not None and any(each.instance == instance for each in self.citizens):
            instance = None
        self.citizens.append(Citizen(f"c{self.born}", instance, self.chance.choice([3, 5, 9])))

    def _part(self, citizen: Citizen, says_so: bool) -> None:
        self.citizens.remove(citizen)
        if citizen.waits_for is not None:
            self.asked.pop(citizen.waits_for)
        if says_so and citizen.member_id:
            identity = leave_group.MemberIdentity(member_id=citizen.member_id, group_instance_id=citizen.instance)
            self._hear(self.stage.ask(Leave("g", [identity]))[1])
        if citizen.instance is not None and self.chance.random() < 0.7:  # it is restarted
            self.citizens.append(Citizen(citizen.name, citizen.instance, citizen.version))

    def _new_coordinator(self) -> None:
        self.stage.restart()
        self.coordinator += 1
        self.asked.clear()
        for citizen in self.citizens:
            citizen.waits_for = None

    # -- actions of clients ---------------------------------------------------------------------------------------

    def _act(self, citizen: Citizen) -> None:
        if citizen.waits_for is not None:
            return
        if citizen.generation < 0:
            self._ask(
                citizen,
                join(
                    citizen.member_id,
                    client=citizen.name,
                    instance=citizen.instance,
                    version=citizen.version,
                    protocols=(("range", citizen.says),),
                    session_ms=SESSION_MS,
                    rebalance_ms=REBALANCE_MS,
                ),
            )
        elif citizen.assignment is None:
            self._ask(citizen, sync(citizen.member_id, citizen.generation, instance=citizen.instance))
        elif self.chance.random() < 0.5:
            self._ask(citizen, Heartbeat("g", citizen.member_id, citizen.instance, citizen.generation))
        else:
            self._commit(citizen)

    def _commit(self, citizen: Citizen) -> None:
        self.offset += 1
        commits = [("t", bytes(16), [PartitionCommit(0, self.offset, -1, "")])]
        generation = citizen.generation - self.chance.choice([0, 0, 0, 1])
        current = self.stage.machine.kinds["classic"].groups.get("g")
        command = CommitOffsets("g", citizen.member_id, citizen.instance, generation, -1, commits, True)
        ticket, answers, written = self.stage.ask(command)
        answer = dict(answers)[ticket]
        if isinstance(answer, list):
            assert current is not None
            assert generation == current.generation, "a member of an earlier generation committed"
            assert citizen.member_id in current.members, "a client that is not a member committed"
            assert len(written) == 1
        elif generation == citizen.generation:
            self._refused(citizen, answer.code)

    def _ask(self, citizen: Citizen, command: Any) -> None:
        ticket, answers, _ = self.stage.ask(command)
        citizen.waits_for = ticket
        self.asked[ticket] = citizen
        self._hear(answers)

    # -- responses ------------------------------------------------------------------------------------------------

    def _hear(self, answers: list[tuple[int, Any]]) -> None:
        for ticket, answer in answers:
            citizen = self.asked.pop(ticket, None)
            if citizen is None:
                continue
            citizen.waits_for = None
            if isinstance(answer, join_group.Response):
                self._joined(citizen, answer)
            elif isinstance(answer, sync_group.Response):
                self._synced(citizen, answer)
            else:
                self._refused(citizen, answer.code if isinstance(answer, KafkaError) else answer)

    def _joined(self, citizen: Citizen, answer: join_group.Response) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            citizen.member_id = answer.member_id
            return
        if answer.error_code:
            self._refused(citizen, ErrorCode(answer.error_code))
            return
        citizen.member_id, citizen.generation, citizen.assignment = answer.member_id, answer.generation_id, None
        if answer.leader != answer.member_id or answer.skip_assignment:
            return
        assert answer.member_id in {each.member_id for each in answer.members}
        when = (self.coordinator, answer.generation_id)
        gives = {each.member_id: f"{when} {each.member_id}".encode() for each in answer.members}
        assert self.gave.setdefault(when, gives) == gives, "two leaders in one generation"
        if self.chance.random() < 0.9:  # otherwise the leader is slow, and its next SyncGroup has no assignments
            self._ask(
                citizen, sync(citizen.member_id, citizen.generation, instance=citizen.instance, assignments=gives)
            )

    def _synced(self, citizen: Citizen, answer: sync_group.Response) -> None:
        if answer.error_code:
            self._refused(citizen, ErrorCode(answer.error_code))
            return
        citizen.assignment = bytes(answer.assignment)
        if citizen.assignment and citizen.instance is None:
            gave = [gives for (_, number), gives in self.gave.items() if number == citizen.generation]
            assert citizen.assignment in [each.get(citizen.member_id) for each in gave], "not from the leader"

    def _refused(self, citizen: Citizen, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            return
        citizen.generation = -1
        citizen.assignment = None
        if code in START_AGAIN:
            citizen.member_id = ""

    # -- the end --------------------------------------------------------------------------------------------------

    def assert_at_rest(self) -> None:
        """Check that all live clients are in one generation, with no other member, and that each has the assignment
        from the leader."""
        group = self.stage.machine.kinds["classic"].groups.get("g")
        if not self.citizens:
            assert group is None or group.state is GroupState.EMPTY
            return
        assert group is not None
        assert group.state is GroupState.STABLE
        assert set(group.members) == {citizen.member_id for citizen in self.citizens}
        for citizen in self.citizens:
            assert citizen.generation == group.generation
            assert citizen.assignment == group.members[citizen.member_id].assignment
