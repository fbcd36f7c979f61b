"""The controller: a Machine over `__cluster_metadata`. Commands in, metadata records out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.controller import assignments, brokers, configs, topics
from kpybroker.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    BrokerHeartbeat,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    IncrementalAlterConfigs,
    ProducerIdBlock,
    RegisterBroker,
)
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine import Outcome, Stored, Tick, Ticket
from kpybroker.wire.stored import metadata as stored

PRODUCER_ID_BLOCK = 1000
"""Kafka's size of a block (KIP-730)."""


class ControllerMachine:
    """`next_offset` gives the offset that the next record will have: broker epochs are made of it.

    `random` draws topic ids and the order of brokers. `config` has the cluster's defaults.
    """

    def __init__(self, config: BrokerConfig, random: Random, next_offset: Callable[[], int]) -> None:
        self.config = config
        self.state = ControllerState()
        self._random = random
        self._next_offset = next_offset

    def decide(self, ticket: Ticket, command: Command, now_ms: int) -> Outcome:
        """Look, and say which records and which answer. A refusal is an answer too."""
        try:
            records, answer = self._decide(command)
        except KafkaError as refusal:
            return Outcome(answers=[(ticket, refusal)])
        values = [Stored(None, None, now_ms, message=record) for record in records]
        return Outcome(values, [(ticket, answer)])

    def _decide(self, command: Command) -> tuple[list[Any], Any]:
        match command:
            case CreateTopics():
                return topics.create_topics(self.state, self.config, self._random, command)
            case DeleteTopics():
                return topics.delete_topics(self.state, self.config, command)
            case CreatePartitions():
                return assignments.create_partitions(self.state, self.config, self._random, command)
            case AlterConfigs():
                return configs.alter_configs(self.state, self.config, command)
            case IncrementalAlterConfigs():
                return configs.incremental_alter_configs(self.state, self.config, command)
            case AllocateProducerIds():
                return self._allocate_producer_ids(command)
            case RegisterBroker():
                return brokers.register_broker(self.state, command, self._next_offset())
            case BrokerHeartbeat():
                return brokers.heartbeat(self.state, command)
            case Tick():
                return [], None

    def apply(self, record: Stored) -> None:
        """Take in one metadata record, which is `message`."""
        self.state.apply(record.message)

    def deadline_ms(self) -> int | None:
        """Nothing here happens by time alone: one node has no session that could end."""
        return None

    def _allocate_producer_ids(self, command: AllocateProducerIds) -> tuple[list[Any], ProducerIdBlock]:
        broker = self.state.brokers.get(command.node_id)
        if broker is None or broker.epoch != command.broker_epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH, f"Broker {command.node_id} is not registered with that epoch."
            )
        first = self.state.next_producer_id
        record = stored.ProducerIdsRecord(
            broker_id=command.node_id,
            broker_epoch=command.broker_epoch,
            next_producer_id=first + PRODUCER_ID_BLOCK,
        )
        return [record], ProducerIdBlock(first, PRODUCER_ID_BLOCK)
