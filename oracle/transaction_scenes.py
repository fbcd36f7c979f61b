"""Scenes of transactions: valid and invalid requests to the coordinator, in transactions versions 1 and 2 (KIP-890)."""

import itertools

from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    create_topics,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_transactions,
)
from oracle.requests import versions
from oracle.scenes import Ask

TOPIC = "in-transactions"
TRANSACTION = 1
NOT_YET = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
SETTLED = ("Empty", "CompleteCommit", "CompleteAbort")
Producer = tuple[int, int]
"""Producer id and epoch."""


class TransactionScenes:
    """If a request is retried until it succeeds, only the last attempt is recorded."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def all(self) -> None:
        topic = create_topics.CreatableTopic(name=TOPIC, num_partitions=3, replication_factor=1)
        self.ask("CreateTopics", 7, create_topics.Request(topics=[topic], timeout_ms=9000))
        self.coordinators()
        self.producers()
        self.first_generation()
        self.second_generation()
        self.fenced()
        self.brokers()
        self.shown()

    # ---- single requests

    def init(self, name: str, note: str = "", version: int = 5, was: Producer = (-1, -1), ms: int = 60_000) -> Producer:
        request = init_producer_id.Request(
            transactional_id=name, transaction_timeout_ms=ms, producer_id=was[0], producer_epoch=was[1]
        )
        told = self.ask("InitProducerId", version, request, note)
        return told.producer_id, told.producer_epoch

    def begin(self, name: str) -> Producer:
        """Request a producer id and epoch, when the previous transaction has ended."""
        while True:
            request = init_producer_id.Request(transactional_id=name, transaction_timeout_ms=60_000)
            told = self.ask("InitProducerId", 5, request)
            if told.error_code not in NOT_YET:
                return told.producer_id, told.producer_epoch

    def add(
        self, name: str, who: Producer, note: str = "", version: int = 3, index: int = 0, topic: str = TOPIC
    ) -> None:
        wanted = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=[index])]
        request = add_partitions_to_txn.Request(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=who[0],
            v3_and_below_producer_epoch=who[1],
            v3_and_below_topics=wanted,
        )
        self.ask("AddPartitionsToTxn", version, request, note)

    def of_broker(
        self, name: str, who: Producer, note: str, *, verify: bool, index: int = 0, version: int = 5, topic: str = TOPIC
    ) -> None:
        wanted = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=[index])]
        asked = add_partitions_to_txn.AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=who[0], producer_epoch=who[1], verify_only=verify, topics=wanted
        )
        self.ask("AddPartitionsToTxn", version, add_partitions_to_txn.Request(transactions=[asked]), note)

    def end(self, name: str, who: Producer, commit: bool, note: str = "", version: int = 4) -> None:
        request = end_txn.Request(transactional_id=name, producer_id=who[0], producer_epoch=who[1], committed=commit)
        self.ask("EndTxn", version, request, note)

    def commit_nothing(self, name: str, who: Producer, note: str) -> None:
        """Commit an empty transaction in transactions version 2; retried while the coordinator is busy."""
        request = end_txn.Request(transactional_id=name, producer_id=who[0], producer_epoch=who[1], committed=True)
        while self.ask("EndTxn", 5, request).error_code in NOT_YET:
            pass
        self.ask("EndTxn", 5, request, note)

    def settle(self, name: str) -> None:
        """Wait until the markers are written."""
        while True:
            told = self.ask("DescribeTransactions", 0, describe_transactions.Request(transactional_ids=[name]))
            if told.transaction_states[0].transaction_state in SETTLED:
                return

    def describe(self, name: str, note: str) -> None:
        self.ask("DescribeTransactions", 0, describe_transactions.Request(transactional_ids=[name]), note)

    # ---- scenes

    def coordinators(self) -> None:
        for version in versions("FindCoordinator"):
            if version == 0:
                continue
            request = find_coordinator.Request(key="golden", key_type=TRANSACTION, coordinator_keys=["golden", ""])
            while True:
                found = self.ask("FindCoordinator", version, request)
                if found.error_code == 0 and all(one.error_code == 0 for one in found.coordinators):
                    break
            self.ask("FindCoordinator", version, request, "of transactions")

    def producers(self) -> None:
        who = self.begin("producers")
        for version in versions("InitProducerId"):
            who = self.init("producers", "the next epoch", version)
        self.init("producers", "no timeout", ms=0)
        self.init("producers", "a negative timeout", ms=-1)
        self.init("producers", "a timeout above the maximum", ms=900_001)
        self.init("producers", "an id without an epoch", was=(who[0], -1))
        self.init("producers", "an epoch without an id", was=(-1, who[1]))
        self.init("producers", "a foreign id", was=(who[0] + 1_000_000, who[1]))
        self.init("producers", "the current epoch", was=who)
        self.init("producers", "the current epoch, requested again", was=who)
        self.init("producers", "a future epoch", was=(who[0], who[1] + 9))
        self.init("producers", "a future epoch, in an old version", 3, was=(who[0], who[1] + 9))

    def first_generation(self) -> None:
        """Transactions version 1, as in librdkafka and older Java clients."""
        name, foreign = "first", (1 << 40, 0)
        who = self.begin(name)
        stale, ahead = (who[0], who[1] - 1), (who[0], who[1] + 1)
        self.end(name, who, True, "nothing to commit")
        self.end(name, who, False, "nothing to abort")
        for version, add in itertools.product((0, 1, 2, 3), (stale, ahead, foreign, who)):
            what = {stale: "a stale epoch", ahead: "a future epoch", foreign: "a foreign id", who: "a partition"}[add]
            self.add(name, add, what, version)
        self.add(name, who, "another partition", index=2)
        self.add(name, who, "an unknown topic", topic="nowhere")
        self.add(name, who, "an unknown partition", index=7)
        self.add("nobody", who, "an unknown transactional id")
        self.add("", who, "an empty transactional id")
        for version in range(5):
            for asked, what in ((stale, "a stale epoch"), (foreign, "a foreign id"), (who, "offsets of a group")):
                request = add_offsets_to_txn.Request(
                    transactional_id=name, producer_id=asked[0], producer_epoch=asked[1], group_id="golden"
                )
                self.ask("AddOffsetsToTxn", version, request, what)
        self.describe(name, "an open transaction")
        for version in range(5):
            for asked, what in ((stale, "a stale epoch"), (ahead, "a future epoch"), (foreign, "a foreign id")):
                self.end(name, asked, True, what, version)
            self.add(name, who)
            self.end(name, who, True, "commit", version)
            self.settle(name)
            self.end(name, who, True, "commit again", version)
            self.end(name, who, False, "abort what was committed", version)
        self.describe(name, "a committed transaction")
        self.add(name, who)
        self.end(name, who, False, "abort")
        self.settle(name)
        self.end(name, who, False, "abort again")
        self.end(name, who, True, "commit what was aborted")
        self.end("nobody", who, True, "an unknown transactional id")
        self.end("", who, True, "an empty transactional id")

    def second_generation(self) -> None:
        """Transactions version 2 (KIP-890): each end bumps the epoch, and leaders add partitions."""
        name = "second"
        who = self.begin(name)
        self.commit_nothing(name, who, "nothing to commit, 2nd generation")
        self.end(name, who, False, "nothing to abort, 2nd generation", 5)
        self.settle(name)
        self.end(name, who, False, "nothing to abort, again", 5)
        self.end(name, who, True, "commit what was aborted, 2nd generation", 5)
        who = (who[0], who[1] + 1)
        self.commit_nothing(name, who, "nothing to commit after an abort")
        self.of_broker(name, who, "by its leader", verify=False)
        self.end(name, (who[0], who[1] - 1), True, "a stale epoch", 5)
        self.end(name, (who[0], who[1] + 1), True, "a future epoch", 5)
        self.end(name, who, True, "commit", 5)
        self.settle(name)
        self.end(name, who, True, "commit again", 5)
        self.end(name, who, False, "abort what was committed", 5)
        self.describe(name, "a committed transaction, 2nd generation")
        who = (who[0], who[1] + 1)
        self.commit_nothing(name, who, "nothing to commit after a commit")
        self.of_broker(name, who, "by its leader, after a commit", verify=False)
        self.end(name, who, False, "abort", 5)
        self.settle(name)
        self.describe(name, "an aborted transaction, 2nd generation")

    def fenced(self) -> None:
        """A producer starts while the transaction of another producer is open."""
        for name in ("fenced", "going-on"):
            who = self.begin(name)
            self.add(name, who)
            self.init(name, "while a transaction runs", was=who if name == "going-on" else (-1, -1))
            self.settle(name)
            self.describe(name, "aborted for another producer")
            if name == "going-on":
                self.init(name, "continues after the abort", was=who)
            self.init(name, "after the abort")
            self.add(name, who, "the producer that was fenced")
            self.end(name, who, True, "the producer that was fenced")

    def brokers(self) -> None:
        """Requests of partition leaders, from version 4 on."""
        name = "asked-by-leaders"
        who = self.begin(name)
        for version in (4, 5):
            self.of_broker(name, who, "verify, before all others", verify=True, index=version, version=version)
            self.of_broker(name, who, "add", verify=False, index=1, version=version)
            self.of_broker(name, who, "verify, added", verify=True, index=1, version=version)
            self.of_broker(name, who, "verify, not added", verify=True, index=2, version=version)
            self.of_broker(name, who, "an unknown topic", verify=False, topic="nowhere", version=version)
            for verify in (True, False):
                said = "verify" if verify else "add"
                stale, foreign = (who[0], who[1] - 1), (1 << 40, 0)
                self.of_broker(name, stale, f"{said}, a stale epoch", verify=verify, version=version)
                self.of_broker(name, foreign, f"{said}, a foreign id", verify=verify, version=version)
                self.of_broker("nobody", who, f"{said}, an unknown id", verify=verify, version=version)
                self.of_broker("", who, f"{said}, an empty id", verify=verify, version=version)
        self.end(name, who, True, "", 5)
        self.settle(name)

    def shown(self) -> None:
        self.describe("nobody", "an unknown transactional id")
        self.describe("", "an empty transactional id")
        self.init("shown", "a first epoch")
        self.describe("shown", "a producer without a transaction")
        who = self.begin("shown-open")
        self.add("shown-open", who)
        ask = list_transactions.Request
        for version in versions("ListTransactions"):
            for note, request in (
                ("open ones", ask(state_filters=["Ongoing"])),
                ("unknown states", ask(state_filters=["ongoing", "Huh"])),
                ("a state without transactions", ask(state_filters=["Dead", "PrepareEpochFence"])),
                ("of nobody", ask(producer_id_filters=[1 << 40])),
                ("with a long duration", ask(state_filters=["Ongoing"], duration_filter=3_600_000)),
                ("by a pattern", ask(transactional_id_pattern="shown-.*")),
                ("by a pattern without matches", ask(transactional_id_pattern="hown")),
                ("by an invalid pattern", ask(transactional_id_pattern="sh(")),
            ):
                if version == 2 or request.transactional_id_pattern is None:
                    self.ask("ListTransactions", version, request, note)
        self.end("shown-open", who, False)
        self.settle("shown-open")
