"""Tries, on every node in turn, an operation that is denied at times and passwords that are valid at times."""

from __future__ import annotations

import threading
import time
from random import Random

from chaos.history import History
from kpybroker.client.login import LoginFailed
from kpybroker.config.login import Login
from kpybroker.errors import ErrorCode
from kpybroker.wire.records.batch import Record, encode_batch
from kpybroker.wire.rpc import metadata, produce
from oracle.asking import Conversation, Door
from oracle.cluster import Cluster
from oracle.secured import Secured

SPARE = "spare"
"""The user that is denied at times, and the topic that it may write to otherwise."""
GUEST, MECHANISM = "guest", "SCRAM-SHA-256"
"""The user whose password changes."""
ALLOWED, DENIED = "allowed", "denied"
NOBODY = ""
"""Stands for the guest's password while the guest has none."""
NEVER = "never-right"
REMEMBERED = 4
TIMEOUT_S = 2.0
PAUSE_S = 0.05
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Trials(threading.Thread):
    """Makes one attempt after the other, on one node after the other, and records each response in the history."""

    def __init__(self, history: History, cluster: Cluster, secured: Secured, seed: int) -> None:
        super().__init__(daemon=True)
        self._history = history
        self._cluster = cluster
        self._secured = secured
        self._random = Random(seed)
        self._spare: dict[int, Conversation] = {}
        self._wanted = True
        self.start()

    def run(self) -> None:
        while self._wanted:
            for broker in self._cluster.brokers:
                if broker.running:
                    self._use(broker.node_id, broker.address)
                    self._guess(broker.node_id, broker.address)
            time.sleep(PAUSE_S)

    def _use(self, node_id: int, address: tuple[str, int]) -> None:
        """Write as the spare user, on a connection that stays open."""
        try:
            if node_id not in self._spare:
                self._spare[node_id] = Conversation(address, TIMEOUT_S, self._secured.door(SPARE))
            for ask in (self._write, self._describe):
                began_s = time.monotonic()
                code = ask(self._spare[node_id])
                self._history.decided_right(node_id, began_s, DENIED, code == REFUSED)
        except OSError as error:
            gone = self._spare.pop(node_id, None)
            if gone is not None:
                gone.close()
            if isinstance(error, LoginFailed):
                self._history.incident(f"node {node_id} refused the password of {SPARE}: {error}")

    def _write(self, node: Conversation) -> int:
        batch = bytes(encode_batch([Record(0, 0, None, b"x", ())]))
        data = produce.TopicProduceData(
            name=SPARE, partition_data=[produce.PartitionProduceData(index=0, records=batch)]
        )
        response = node.ask("Produce", 9, produce.Request(acks=1, timeout_ms=1000, topic_data=[data]), produce.Response)
        return int(response.responses[0].partition_responses[0].error_code)

    def _describe(self, node: Conversation) -> int:
        request = metadata.Request(topics=[metadata.MetadataRequestTopic(name=SPARE)], allow_auto_topic_creation=False)
        return int(node.ask("Metadata", 12, request, metadata.Response).topics[0].error_code)

    def _guess(self, node_id: int, address: tuple[str, int]) -> None:
        """Log in as the guest, with a password that was valid at some time, or never was."""
        former = [change.value for change in self._history.passwords.changes[-REMEMBERED:] if change.value != NOBODY]
        password = self._random.choice([NEVER, *former])
        began_s = time.monotonic()
        try:
            Conversation(address, TIMEOUT_S, Door(self._secured.context, Login(MECHANISM, GUEST, password))).close()
            is_in = True
        except LoginFailed:
            is_in = False
        except OSError:
            return
        self._history.decided_password(node_id, began_s, password, is_in)

    def finish(self) -> None:
        self._wanted = False
        self.join(30)
