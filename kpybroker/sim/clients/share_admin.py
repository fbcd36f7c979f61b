"""A client that describes, alters and deletes the offsets of a share group (KIP-932)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.share_consuming import Stage
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S
from kpybroker.sim.laws.share_law import ShareLaw
from kpybroker.wire.rpc import alter_share_group_offsets, delete_share_group_offsets, describe_share_group_offsets

NOT_EMPTY = int(ErrorCode.NON_EMPTY_GROUP)
NOTHING_DONE = frozenset(
    int(code)
    for code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
)
"""Errors after which the change has certainly not been made."""
EMPTIES_ODDS = 0.3
EMPTY_LIMIT_S = 10.0
"""Members that ended without leaving are removed after their session timeout."""
DELETE_ODDS = 0.3
PACE_S = 4.0


async def described(client: SimClient, group: str, topic: str) -> dict[int, Any]:
    """The rows of DescribeShareGroupOffsets by partition. Raises Unanswered, Refused."""
    asked = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    request = describe_share_group_offsets.Request(groups=[asked])
    try:
        node_id = await client.coordinator(group)
        response = await client.ask(node_id, "DescribeShareGroupOffsets", request, limit_s=ADMIN_LIMIT_S)
        found = response.groups[0]
        if found.error_code:
            raise Refused(found.error_code)
    except (Unanswered, Refused):
        client.forget_coordinator(group)
        raise
    return {row.partition_index: row for each in found.topics if each.topic_name == topic for row in each.partitions}


class ShareAdmin:
    """Describes the offsets of a group. From time to time, it empties the group and then alters or deletes its offsets.

    is_out: returns whether all members have left. may_delete: whether a group without offsets begins at offset 0.
    """

    def __init__(
        self,
        client: SimClient,
        group: str,
        topic: str,
        indexes: Sequence[int],
        stage: Stage,
        law: ShareLaw,
        is_out: Callable[[], bool],
        *,
        may_delete: bool,
    ) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._indexes = indexes
        self._stage = stage
        self._law = law
        self._is_out = is_out
        self._may_delete = may_delete
        self.has_ended = False

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await self._describe()
                if client.random.random() < EMPTIES_ODDS:
                    self._stage.empty(True)
                    try:
                        await self._change()
                    finally:
                        self._stage.empty(False)
                client.succeeded()
                await client.nap(PACE_S)
            except (Unanswered, Refused) as failed:
                client.note(f"cannot administer {self._group}: {failed}")
                client.forget_coordinator(self._group)
                await client.nap(1.0)
        self.has_ended = True

    async def _describe(self) -> None:
        for index, row in (await described(self._client, self._group, self._topic)).items():
            if row.error_code:
                continue
            if row.start_offset < -1 or row.lag < -1:
                self._client.history.breach(f"{self._group} is at {row.start_offset} of {self._topic}-{index}")
            if row.start_offset >= 0:
                self._law.told_start(index, row.start_offset)

    async def _change(self) -> None:
        """Alter or delete offsets when the group is empty. Raises Unanswered, Refused."""
        client = self._client
        until_s = client.history.now_s + EMPTY_LIMIT_S
        while not self._is_out() and client.history.now_s < until_s and not client.stopping:
            await asyncio.sleep(0.2)
        deletes = self._may_delete and client.random.random() < DELETE_ODDS
        while not client.stopping:
            try:
                await (self._delete() if deletes else self._alter())
                return
            except Refused as refused:
                if refused.code != NOT_EMPTY or client.history.now_s > until_s:
                    raise
                await asyncio.sleep(1.0)

    async def _alter(self) -> None:
        client, law, rpc = self._client, self._law, alter_share_group_offsets
        index = client.random.choice(self._indexes)
        known = sorted(law.facts(index).values)
        start = client.random.choice((0, *known[-30:]))
        row = rpc.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=start)
        topic = rpc.AlterShareGroupOffsetsRequestTopic(topic_name=self._topic, partitions=[row])
        request = rpc.Request(group_id=self._group, topics=[topic])

        def code_of(response: Any) -> int:
            return int(response.responses[0].partitions[0].error_code)

        await self._ask("AlterShareGroupOffsets", request, {index: start}, code_of)
        client.note(f"lets {self._group} begin at {start} of {index}")
        client.history.count("share offsets altered")

    async def _delete(self) -> None:
        client, rpc = self._client, delete_share_group_offsets
        topic = rpc.DeleteShareGroupOffsetsRequestTopic(topic_name=self._topic)
        request = rpc.Request(group_id=self._group, topics=[topic])

        def code_of(response: Any) -> int:
            return int(response.responses[0].error_code)

        await self._ask("DeleteShareGroupOffsets", request, dict.fromkeys(self._indexes, 0), code_of)
        client.note(f"has deleted the offsets of {self._group}")
        client.history.count("share offsets deleted")

    async def _ask(self, name: str, request: Any, starts: dict[int, int], code_of: Callable[[Any], int]) -> None:
        """Raises Unanswered, Refused."""
        client, law = self._client, self._law
        node_id = await client.coordinator(self._group)
        for index, start in starts.items():
            law.changes_offsets(index, start)
        try:
            response = await client.ask(node_id, name, request, limit_s=ADMIN_LIMIT_S)
            code = int(response.error_code) or code_of(response)
        except Unanswered:
            for index in starts:
                law.doubts_offsets(index)
            raise
        for index, start in starts.items():
            if not code:
                law.offsets_changed(index, start)
            elif code not in NOTHING_DONE:
                law.doubts_offsets(index)
        if code:
            raise Refused(code)
