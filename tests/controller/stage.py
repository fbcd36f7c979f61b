"""Drives the controller's Machine as a Runner does, keeps its records, and rebuilds its state from them."""

from __future__ import annotations

from random import Random
from typing import Any

from kpybroker.config import parse_config
from kpybroker.controller.commands import BrokerHeartbeat, BrokerLost, Command, RegisterBroker
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.controller.machine import ControllerMachine
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Moment, Stored, Ticket
from kpybroker.metadata.brokers import BrokerEndpoint
from kpybroker.metadata.image import Image
from kpybroker.metadata.topics import PartitionImage
from kpybroker.wire.stored import metadata as stored

NOW_MS = 1_700_000_000_000


class Stage:
    """One controller and its log. `ask` returns the answer or raises the refusal."""

    def __init__(self, brokers: int = 1, *, folds_case: bool = False, **settings: str) -> None:
        self.now_ms = NOW_MS
        self.log: list[Stored] = []
        config = parse_config({name.replace("_", "."): value for name, value in settings.items()})
        self.machine = ControllerMachine(config, Random(7), lambda: len(self.log), folds_case=folds_case)
        self.epochs: dict[int, int] = {}
        for node_id in range(1, brokers + 1):
            self.join(node_id)

    @property
    def state(self) -> ControllerState:
        return self.machine.state

    def ask(self, command: Command) -> Any:
        outcome = self.machine.decide(Ticket(1000), command, Moment(self.now_ms, self.now_ms))
        for record in outcome.records:
            record.offset = len(self.log)
            record.value = stored.frame_record(record.message)
            self.log.append(record)
            self.machine.apply(record)
        ((_, answer),) = outcome.answers
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def one(self, command: Command) -> Any:
        """Run a command, and return the only element of its list of results."""
        (result,) = self.ask(command)
        return result

    def code(self, command: Command) -> tuple[ErrorCode, str | None]:
        """Run a command, and return the code and message of its only result, or of the refusal of the whole command."""
        try:
            result = self.one(command)
        except KafkaError as refusal:
            return refusal.code, refusal.message
        return result.error_code, result.error_message

    def partition(self, topic: str = "t", index: int = 0) -> PartitionImage:
        return self.state.topics[topic].partitions[index]

    def join(
        self, node_id: int, rack: str | None = None, incarnation: int = 1, previous_epoch: int = -1, directory: int = 0
    ) -> None:
        """Register a broker and unfence it. The connection of an earlier incarnation is closed first."""
        if node_id in self.epochs:
            self.ask(BrokerLost(node_id, self.epochs[node_id]))
        self.epochs[node_id] = self.ask(
            RegisterBroker(
                node_id=node_id,
                incarnation_id=bytes([node_id, incarnation]) + bytes(14),
                endpoints=(BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9000 + node_id),),
                features=tuple((name, *levels) for name, levels in SUPPORTED_FEATURES.items()),
                rack=rack,
                log_dirs=(bytes([node_id + 16 * directory]) * 16,),
                previous_epoch=previous_epoch,
            )
        )
        self.ask(BrokerHeartbeat(node_id, self.epochs[node_id]))

    def records(self) -> list[Any]:
        return [stored.unframe_record(record.value) for record in self.log if record.value is not None]

    def replayed(self) -> ControllerState:
        """The state that a new controller builds from the log."""
        fresh = ControllerMachine(
            self.machine.config, Random(8), lambda: len(self.log), folds_case=self.state.folds_case
        )
        for offset, record in enumerate(self.records()):
            fresh.apply(Stored(None, None, NOW_MS, offset, record))
        return fresh.state

    def image(self) -> Image:
        return Image().apply(self.records(), len(self.log) - 1, 1)
