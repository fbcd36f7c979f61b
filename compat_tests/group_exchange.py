"""Runs the scripts of the group machine on a running broker: sends the same requests over sockets, each on a separate
connection, and translates the responses to the language of the scripts.
"""

import asyncio
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.groups.ground import commands
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.wire.rpc import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from kpybroker.world import Network
from tests.groups.play import Player, shown

STEP_MS = 200
"""The time that passes in each step on the machine's clock: more than the pause of a first generation, but less than
any timeout."""
DUE_S = 5.0
MORE_S = 0.01
SESSION_MS = 1_800_000


class Exchange:
    """One script on one broker. `suffix` is appended to its groups; `topics` maps the script's topics to the
    broker's."""

    def __init__(self, network: Network, host: str, port: int, suffix: str, topics: dict[str, str]) -> None:
        self._network, self._host, self._port = network, host, port
        self._suffix = suffix
        self._topics = topics
        self._player = Player(GroupSettings())
        self._ids: dict[str, str] = {}
        """The script's member ids -> the broker's."""
        self._open: dict[asyncio.Task[Any], tuple[str, Peer]] = {}

    async def play(self, script: str) -> list[tuple[str, list[str], list[str]]]:
        """Yield every step as (line, expected responses, received responses), up to the first step that needs time to
        pass."""
        await self._find_coordinator()
        steps = []
        for line in script.splitlines():
            if not line.startswith("@"):
                continue
            _, verb, *words = line.split()
            if verb in ("wait", "restart"):
                break
            due, heard = await self._step(verb, words)
            steps.append((line, sorted(due), sorted(heard)))
        for task, (_, peer) in self._open.items():
            task.cancel()
            peer.close()
        return steps

    async def _find_coordinator(self) -> None:
        """Return when groups are served: then a Heartbeat is refused only because its member is unknown."""
        peer = await Peer.dial(self._network, self._host, self._port)
        beat = heartbeat.Request(group_id="none" + self._suffix, member_id="nobody", generation_id=1)
        code = None
        while code != ErrorCode.UNKNOWN_MEMBER_ID:
            await peer.ask("FindCoordinator", find_coordinator.Request(coordinator_keys=["g"]))
            code = (await peer.ask("Heartbeat", beat)).error_code
        peer.close()

    async def _step(self, verb: str, words: list[str]) -> tuple[list[str], list[str]]:
        given = dict(word.split("=", 1) for word in words if "=" in word)
        name, command = getattr(self._player, f"_{verb}")([word for word in words if "=" not in word], given)
        if isinstance(command, commands.Join):
            command.request.session_timeout_ms = SESSION_MS
        stage = self._player.stage
        ticket, answers, _ = stage.ask(command)
        self._player.names[ticket] = name
        answers = answers + stage.wait(STEP_MS)
        expected = [(self._player.names[each], answer) for each, answer in answers]
        await self._send(name, command, given)
        heard = await self._hear(len(expected))
        for who, reply in heard:
            self._match(reply, [answer for whose, answer in expected if whose == who])
        due = [f"{who}: {_sorted(_plain(answer))}" for who, answer in expected]
        return due, [f"{who}: {_sorted(self._in_script_words(reply))}" for who, reply in heard]

    async def _hear(self, count: int) -> list[tuple[str, Any]]:
        """Receive the expected number of replies, and any further replies that follow at once."""
        heard: list[tuple[str, Any]] = []
        while self._open:
            timeout_s = DUE_S if len(heard) < count else MORE_S
            done, _ = await asyncio.wait(self._open, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for task in done:
                who, peer = self._open.pop(task)
                peer.close()
                heard.append((who, task.result()))
        return heard

    # -- from the script to the wire ------------------------------------------------------------------------------

    async def _send(self, name: str, command: Any, given: dict[str, str]) -> None:
        api, version, request = self._request(command, given)
        client = given.get("client", "c")
        peer = await Peer.dial(self._network, self._host, self._port, client_id=client)
        self._open[asyncio.ensure_future(peer.ask(api, request, version=version))] = (name, peer)

    def _id(self, member_id: str) -> str:
        return self._ids.get(member_id, member_id)

    def _group(self, group_id: str) -> str:
        return group_id and group_id + self._suffix

    def _request(self, command: Any, given: dict[str, str]) -> tuple[str, int, Any]:
        version = int(given.get("v", "9"))
        match command:
            case commands.Join(request=asked):
                return "JoinGroup", version, self._joining(asked)
            case commands.Sync(request=asked):
                return "SyncGroup", 5, self._syncing(asked)
            case commands.Heartbeat():
                return "Heartbeat", 4, self._beating(command)
            case commands.Leave():
                members = [
                    leave_group.MemberIdentity(
                        member_id=self._id(each.member_id), group_instance_id=each.group_instance_id
                    )
                    for each in command.members
                ]
                return "LeaveGroup", 5, leave_group.Request(group_id=self._group("g"), members=members)
            case commands.CommitOffsets():
                return "OffsetCommit", version, self._committing(command)
            case commands.FetchOffsets():
                return "OffsetFetch", 9, self._fetching(command)
            case commands.DeleteOffsets():
                return "OffsetDelete", 0, self._forgetting(command)
            case commands.DescribeGroup():
                return "DescribeGroups", 6, describe_groups.Request(groups=[self._group(command.group_id)])
            case commands.ListGroups():
                return "ListGroups", 5, list_groups.Request()
            case commands.DeleteGroup():
                return "DeleteGroups", 2, delete_groups.Request(groups_names=[self._group(command.group_id)])
        raise AssertionError(f"no request for {command}")

    def _joining(self, asked: join_group.Request) -> join_group.Request:
        return join_group.Request(
            group_id=self._group(asked.group_id),
            member_id=self._id(asked.member_id),
            group_instance_id=asked.group_instance_id,
            session_timeout_ms=asked.session_timeout_ms,
            rebalance_timeout_ms=asked.rebalance_timeout_ms,
            protocol_type=asked.protocol_type,
            protocols=asked.protocols,
        )

    def _syncing(self, asked: sync_group.Request) -> sync_group.Request:
        group = self._player.stage.machine.kinds["classic"].groups.get(asked.group_id)
        return sync_group.Request(
            group_id=self._group(asked.group_id),
            member_id=self._id(asked.member_id),
            generation_id=asked.generation_id,
            group_instance_id=asked.group_instance_id,
            protocol_type=asked.protocol_type or "consumer",
            protocol_name=asked.protocol_name or (group and group.protocol) or "range",
            assignments=[
                sync_group.SyncGroupRequestAssignment(member_id=self._id(each.member_id), assignment=each.assignment)
                for each in asked.assignments
            ],
        )

    def _beating(self, command: commands.Heartbeat) -> heartbeat.Request:
        return heartbeat.Request(
            group_id=self._group(command.group_id),
            member_id=self._id(command.member_id),
            generation_id=command.generation,
            group_instance_id=command.instance_id,
        )

    def _committing(self, command: commands.CommitOffsets) -> offset_commit.Request:
        topics = [
            offset_commit.OffsetCommitRequestTopic(
                name=self._topics.get(topic, topic + self._suffix),
                partitions=[
                    offset_commit.OffsetCommitRequestPartition(
                        partition_index=each.partition, committed_offset=each.offset, committed_metadata=each.metadata
                    )
                    for each in partitions
                ],
            )
            for topic, _, partitions in command.topics
        ]
        return offset_commit.Request(
            group_id=self._group(command.group_id),
            member_id=self._id(command.member_id),
            group_instance_id=command.instance_id,
            generation_id_or_member_epoch=command.generation,
            retention_time_ms=command.retention_ms,
            topics=topics,
        )

    def _fetching(self, command: commands.FetchOffsets) -> offset_fetch.Request:
        topics = None
        if command.topics is not None:
            topics = [
                offset_fetch.OffsetFetchRequestTopics(
                    name=self._topics.get(topic, topic + self._suffix), partition_indexes=list(partitions)
                )
                for topic, partitions in command.topics
            ]
        group = offset_fetch.OffsetFetchRequestGroup(group_id=self._group(command.group_id), topics=topics)
        return offset_fetch.Request(groups=[group])

    def _forgetting(self, command: commands.DeleteOffsets) -> offset_delete.Request:
        topics = [
            offset_delete.OffsetDeleteRequestTopic(
                name=self._topics.get(topic, topic + self._suffix),
                partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=each) for each in partitions],
            )
            for topic, partitions in command.topics
        ]
        return offset_delete.Request(group_id=self._group(command.group_id), topics=topics)

    # -- from the wire to the script ------------------------------------------------------------------------------

    def _match(self, reply: Any, expected: list[Any]) -> None:
        if isinstance(reply, join_group.Response) and reply.member_id:
            for answer in expected:
                if isinstance(answer, join_group.Response) and answer.member_id:
                    self._ids.setdefault(answer.member_id, reply.member_id)

    def _in_script_words(self, reply: Any) -> str:
        said = _reply_shown(reply, self._suffix)
        for ours, theirs in self._ids.items():
            said = said.replace(theirs, ours)
        for script_name, real_name in self._topics.items():
            said = said.replace(real_name, script_name)
        return said.replace(self._suffix, "")


def _plain(answer: Any) -> str:
    return "NONE" if answer is False else shown(answer)


def _sorted(said: str) -> str:
    """Members and topics in the order of their names: brokers may list them in any order."""
    if ", " in said:
        return ", ".join(sorted(said.split(", ")))
    words = said.split(" ")
    members = [word for word in words if word.endswith(")")]
    return " ".join([word for word in words if word not in members] + sorted(members))


def _reply_shown(reply: Any, suffix: str) -> str:
    match reply:
        case heartbeat.Response():
            return ErrorCode(reply.error_code).name
        case leave_group.Response():
            return ", ".join(ErrorCode(each.error_code).name for each in reply.members)
        case offset_commit.Response():
            return ", ".join(ErrorCode(each.error_code).name for topic in reply.topics for each in topic.partitions)
        case delete_groups.Response():
            return ErrorCode(reply.results[0].error_code).name
        case describe_groups.Response():
            (group,) = reply.groups
            return ErrorCode(group.error_code).name if group.error_code else shown(group)
        case list_groups.Response():
            return shown([each for each in reply.groups if each.group_id.endswith(suffix)])
        case offset_fetch.Response():
            offsets = [
                f"{topic.name}-{each.partition_index}:{each.committed_offset if each.committed_offset >= 0 else 'none'}"
                for topic in reply.groups[0].topics
                for each in topic.partitions
            ]
            return ", ".join(offsets) or "nothing"
        case offset_delete.Response():
            if reply.error_code:
                return ErrorCode(reply.error_code).name
            subscribed = int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            kept = [topic.name for topic in reply.topics if topic.partitions[0].error_code == subscribed]
            return f"kept {sorted(kept)}"
    return shown(reply)
