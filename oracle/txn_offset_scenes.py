"""Scenes of TxnOffsetCommit: which requests are accepted, and when the offsets are visible."""

from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import add_offsets_to_txn, end_txn, find_coordinator, offset_fetch, txn_offset_commit
from oracle.requests import versions
from oracle.scenes import Ask
from oracle.transaction_scenes import TOPIC, Producer, TransactionScenes

GROUP = 0
FIRST_GENERATION = 3


class TxnOffsetScenes:
    """Uses the topic of TransactionScenes, which must run first."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._producers = TransactionScenes(ask)

    def all(self) -> None:
        for version in versions("TxnOffsetCommit"):
            self._commits(version)

    def _coordinated(self, group: str) -> None:
        request = find_coordinator.Request(key_type=GROUP, coordinator_keys=[group])
        while self.ask("FindCoordinator", 4, request).coordinators[0].error_code:
            pass

    def _fetch(self, group: str, *, require_stable: bool) -> int:
        """Fetch an offset. Returns the error code."""
        asked = offset_fetch.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
        request = offset_fetch.Request(
            require_stable=require_stable,
            groups=[offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=[asked])],
        )
        told = self.ask("OffsetFetch", 8, request)
        return int(told.groups[0].topics[0].partitions[0].error_code)

    def _commits(self, version: int) -> None:
        rpc = txn_offset_commit
        name, group = f"offsets {version}", f"transacting {version}"
        self._coordinated(group)
        who = self._producers.begin(name)

        def commit(note: str, as_who: Producer = who, index: int = 0, topic: str = TOPIC, **facts: Any) -> None:
            found = rpc.TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=5, committed_metadata=facts.pop("metadata", "noted")
            )
            known = {"transactional_id": name, "group_id": group, **facts}
            topics = [rpc.TxnOffsetCommitRequestTopic(name=topic, partitions=[found])]
            request = rpc.Request(producer_id=as_who[0], producer_epoch=as_who[1], topics=topics, **known)
            self.ask("TxnOffsetCommit", version, request, note)

        if version <= FIRST_GENERATION:
            commit("before the group is part of the transaction")
            add = add_offsets_to_txn.Request(
                transactional_id=name, producer_id=who[0], producer_epoch=who[1], group_id=group
            )
            while self.ask("AddOffsetsToTxn", FIRST_GENERATION, add).error_code:
                pass
        commit("the first")
        commit("without a note", metadata=None)
        commit("with metadata that is too long", metadata="m" * 5000)
        commit("of an unknown topic", topic="nowhere")
        commit("of an unknown partition", index=9)
        commit("of no group", group_id="")
        commit("of an older epoch", as_who=(who[0], who[1] - 1))
        commit("of a newer epoch", as_who=(who[0], who[1] + 1))
        commit("of another producer", as_who=(who[0] + 1000, who[1]))
        if version >= FIRST_GENERATION:
            commit("of a generation, where the group has none", generation_id=5)
            commit("of a member, where the group has none", member_id="nobody")
        assert self._fetch(group, require_stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert self._fetch(group, require_stable=False) == ErrorCode.NONE
        end = end_txn.Request(transactional_id=name, producer_id=who[0], producer_epoch=who[1], committed=True)
        ended = self.ask("EndTxn", FIRST_GENERATION if version <= FIRST_GENERATION else 5, end)
        assert not ended.error_code
        while self._fetch(group, require_stable=True):
            pass
