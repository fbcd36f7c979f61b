"""Clients that are members of a streams group (KIP-1071), as the threads of a Kafka Streams application are."""

from __future__ import annotations

import asyncio

from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.classic_members import LEAVING_ODDS, MOVED, ClassicMembership
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.consumer_members import COUNTED_OUT, JOIN, LEAVE, STALE
from kpybroker.sim.laws.streams_law import StreamsLaw, Task
from kpybroker.wire.rpc import streams_group_describe, streams_group_heartbeat
from kpybroker.wire.rpc.streams_group_heartbeat import TaskIds

REBALANCE_TIMEOUT_MS = 60_000
SLOW_ODDS = 0.3
"""The odds that a member processes a task for a few more heartbeats after it was told to give it up."""
SLOW_BEATS = 3
SILENT_ODDS = 0.02
"""The odds that a member sends nothing for so long that its session may end."""
SILENT_S = 12.0
SHORT_ODDS = 0.3
"""The odds that a heartbeat leaves out tasks that have not changed."""
FENCED = int(ErrorCode.FENCED_MEMBER_EPOCH)


class StreamsGroupMember:
    """A member of a streams group. `sources`: the topic with the partitions of each subtopology's tasks.

    A fenced member joins again with its member id or with a new one. Tasks that it must give up are reported until the
    member has stopped processing them.
    """

    def __init__(
        self,
        client: SimClient,
        group: str,
        process_id: str,
        topology: streams_group_heartbeat.Topology,
        sources: dict[str, str],
        law: StreamsLaw,
        *,
        pace_s: float,
    ) -> None:
        self._client = client
        self._group = group
        self._process_id = process_id
        self._topology = topology
        self._sources = sources
        self._law = law
        self._pace_s = pace_s
        self._membership = ClassicMembership(client, group)
        self._number = 0
        self._is_settled = False
        self.active: set[Task] = set()
        """The active tasks that the coordinator has assigned."""
        self.standby: set[Task] = set()
        self._slow: dict[Task, int] = {}
        """Active tasks to give up, and the number of heartbeats until then."""
        self._told: tuple[set[Task], set[Task]] | None = None
        """The tasks in the last heartbeat that had a response."""
        self._become_new()
        self._start_over()

    def settle(self) -> None:
        """Stay in the group from now on."""
        self._is_settled = True

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await self._take_part()
                client.succeeded()
            except (Unanswered, Refused) as failed:
                client.note(f"in epoch {self._epoch} failed: {failed}")
                self._told = None
                if isinstance(failed, Refused) and failed.code in COUNTED_OUT:
                    if failed.code != FENCED or client.random.random() < 0.5:
                        self._become_new()
                    self._start_over()
                elif not (isinstance(failed, Refused) and failed.code == STALE):
                    client.forget_coordinator(self._group)
                    await client.nap(0.5)

    def _become_new(self) -> None:
        self._number += 1
        self._member_id = f"{self._client.name}.{self._number}"

    def _start_over(self) -> None:
        """Give up all tasks, and join with the next heartbeat."""
        self._law.revokes(self._client.name, self._owned())
        self.active, self.standby, self._slow, self._told = set(), set(), {}, None
        self._epoch = JOIN

    def _owned(self) -> set[Task]:
        """The active tasks that the member processes."""
        return self.active | self._slow.keys()

    async def _take_part(self) -> None:
        """Send a heartbeat, commit offsets, and sometimes leave or fall silent. Raises Unanswered, Refused."""
        client, before = self._client, self._owned()
        await self._beat()
        for task in sorted(self._owned() - before):
            await self._membership.fetch((self._sources[task[0]], task[1]))
        for task in sorted(self._owned()):
            await self._commit(task)
        draw = client.random.random()
        if self._is_settled or draw > LEAVING_ODDS + SILENT_ODDS:
            if before == self._owned():
                await asyncio.sleep(0.1 + client.random.random() * self._pace_s)
        elif draw < LEAVING_ODDS:
            await self._leave()
        else:
            await self._fall_silent()

    async def _beat(self) -> None:
        client, law = self._client, self._law
        self._give_up()
        sent_at_s, before = client.history.now_s, self._epoch
        told = self._owned(), set(self.standby)
        request = self._request(before)
        if before == JOIN:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.topology, request.process_id = self._topology, self._process_id
        if before == JOIN or told != self._told or client.random.random() > SHORT_ODDS:
            request.active_tasks, request.standby_tasks = _rows(told[0]), _rows(told[1])
            request.warmup_tasks = []
        response = await self._ask(request)
        self._told = told
        law.reached(self._member_id, before, response.member_epoch)
        self._epoch = response.member_epoch
        self._membership.become(self._member_id, self._epoch)
        if response.active_tasks is not None:
            self._adopt(_tasks(response.active_tasks), _tasks(response.standby_tasks or []))
        law.owns(client.name, self._owned(), sent_at_s)

    def _give_up(self) -> None:
        """Stop processing the tasks whose time has come."""
        done = [task for task, left in self._slow.items() if left == 0]
        self._law.revokes(self._client.name, done)
        self._slow = {task: left - 1 for task, left in self._slow.items() if left}

    def _adopt(self, active: set[Task], standby: set[Task]) -> None:
        client = self._client
        for task in sorted(self.active - active):
            if client.random.random() < SLOW_ODDS:
                self._slow[task] = client.random.randrange(SLOW_BEATS)
            else:
                self._law.revokes(client.name, [task])
        for task in active & self._slow.keys():
            del self._slow[task]
        self.active, self.standby = active, standby

    async def _commit(self, task: Task) -> None:
        client, member_id = self._client, self._member_id
        sent_at_s = client.history.now_s
        await self._membership.commit((self._sources[task[0]], task[1]), client.random.randint(1, 3))
        self._law.committed(client.name, member_id, task, sent_at_s)

    async def _leave(self) -> None:
        """Leave, and sometimes try to commit afterwards, which must be refused."""
        client, request, last = self._client, self._request(LEAVE), sorted(self._owned())
        member_id, epoch = self._member_id, self._epoch
        self._become_new()
        self._start_over()
        await self._ask(request)
        self._law.left.add(member_id)
        if last and client.random.random() < 0.5:
            self._membership.become(member_id, epoch)
            place = self._sources[last[0][0]], last[0][1]
            sent_at_s = client.history.now_s
            try:
                await self._membership.commit(place, 1)
            except Refused as refused:
                client.note(f"could not commit after it had left: {refused}")
            else:
                self._law.committed(client.name, member_id, last[0], sent_at_s)

    async def _fall_silent(self) -> None:
        """Send nothing for a while, and then try to commit first."""
        client = self._client
        await client.idle_until(client.loop.time() + client.random.random() * SILENT_S)
        for task in sorted(self._owned())[:1]:
            await self._commit(task)

    def _request(self, epoch: int) -> streams_group_heartbeat.Request:
        return streams_group_heartbeat.Request(group_id=self._group, member_id=self._member_id, member_epoch=epoch)

    async def _ask(self, request: streams_group_heartbeat.Request) -> streams_group_heartbeat.Response:
        node_id = await self._client.coordinator(self._group)
        response: streams_group_heartbeat.Response = await self._client.ask(node_id, "StreamsGroupHeartbeat", request)
        if response.error_code in MOVED:
            self._client.forget_coordinator(self._group)
        if response.error_code:
            raise Refused(response.error_code)
        return response


async def describe(client: SimClient, group: str, law: StreamsLaw) -> streams_group_describe.DescribedGroup:
    """A description of the group, checked. Raises Unanswered, Refused; Unanswered also if a former coordinator has
    answered."""
    least_epoch, left = law.least_epoch, set(law.left)
    node_id = await client.coordinator(group)
    request = streams_group_describe.Request(group_ids=[group])
    shown: streams_group_describe.DescribedGroup = (await client.ask(node_id, "StreamsGroupDescribe", request)).groups[
        0
    ]
    if shown.error_code:
        client.forget_coordinator(group)
        raise Refused(shown.error_code)
    law.check(shown)
    doubts = law.doubts(shown, least_epoch, left)
    if doubts and await client.is_deposed(node_id, group):
        client.forget_coordinator(group)
        raise Unanswered(f"node {node_id} is no longer the coordinator of {group}")
    for doubt in doubts:
        client.history.breach(doubt)
    return shown


def _rows(tasks: set[Task]) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=name, partitions=sorted(index for other, index in tasks if other == name))
        for name in sorted({name for name, _ in tasks})
    ]


def _tasks(rows: list[TaskIds]) -> set[Task]:
    return {(row.subtopology_id, index) for row in rows for index in row.partitions}
