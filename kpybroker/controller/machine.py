"""The controller's Machine over `__cluster_metadata`: it turns commands into metadata records."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller import (
    acls,
    brokers,
    configs,
    controllers,
    elections,
    features,
    growth,
    isr,
    log_dirs,
    quotas,
    reassignment,
    scram,
    topics,
)
from kpybroker.controller import commands as asked
from kpybroker.controller.acl_commands import CreateAcls, DeleteAcls
from kpybroker.controller.commands import Command, ProducerIdBlock
from kpybroker.controller.election_rules import Rules
from kpybroker.controller.scram_commands import AlterUserScramCredentials
from kpybroker.controller.sessions import BrokerSessions
from kpybroker.controller.state import ControllerState
from kpybroker.controller.token_commands import CreateDelegationToken, ExpireDelegationToken, RenewDelegationToken
from kpybroker.controller.tokens import Tokens
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Moment, Outcome, Stored, Tick, Ticket
from kpybroker.raft.log.loading import BATCH_LIMIT_BYTES
from kpybroker.wire.stored import metadata as stored

PRODUCER_ID_BLOCK = 1000
"""The size of a block of producer ids, as in Kafka (KIP-730)."""


WHOLE_RECORDS, WHOLE_BYTES = 1_000, BATCH_LIMIT_BYTES // 2
"""A write that is larger becomes a metadata transaction of several batches (KIP-868)."""
OF_THE_STATE = (
    asked.AlterPartition,
    asked.AssignReplicas,
    asked.BrokerHeartbeat,
    asked.BrokerLost,
    asked.ElectLeaders,
    asked.RegisterBroker,
    asked.UnregisterBroker,
    DeleteAcls,
    Tick,
)
"""Commands whose number of records depends on the state, so that a client cannot split them."""
LATE_MS = 500
"""A Tick that is later than this shows that this node was suspended, while the brokers may have been running."""


class ControllerMachine:
    """Decides on the controller's commands.

    `next_offset` returns the offset of the next record, which becomes the broker epoch of a registration. `random`
    draws topic ids and the order of brokers. `config` has the cluster's defaults. `node_id` is the controller's own
    node: if the broker of this node registers, its earlier incarnation has certainly ended. For `applied`, see
    `BrokerSessions`; for `folds_case`, see `ControllerState`.
    """

    def __init__(
        self,
        config: BrokerConfig,
        random: Random,
        next_offset: Callable[[], int],
        applied: Callable[[int], int] | None = None,
        *,
        folds_case: bool = False,
    ) -> None:
        self.config = config
        self.state = ControllerState(folds_case=folds_case)
        self.sessions = BrokerSessions(config.broker_session_timeout_ms, applied)
        self._tokens = Tokens(config.delegation_tokens)
        self._random = random
        self._next_offset = next_offset
        self._look_around_ms: int | None = None
        self._ticked_ms = 0
        self._leaving: list[brokers.Leaving] = []
        """The brokers that are being fenced, in order: one is fenced after another."""

    def decide(self, ticket: Ticket, command: Command, now: Moment) -> Outcome:
        """Decide on a command. Returns the records and the answer, which may be a refusal."""
        try:
            records, answer = self._decide(command, now)
        except KafkaError as refusal:
            return Outcome(answers=[(ticket, refusal)])
        values = [Stored(None, None, now.wall_ms, message=record) for record in records]
        if len(values) > WHOLE_RECORDS and isinstance(command, OF_THE_STATE):
            values = _whole(values, now.wall_ms)
        return Outcome(values, [(ticket, answer)])

    def _decide(self, command: Command, now: Moment) -> tuple[list[Any], Any]:
        state, now_ms = self.state, now.steady_ms
        self.config = self.config.with_dynamic(state.config(ResourceType.BROKER, ""), {})
        rules = Rules(self.config, state)
        match command:
            case asked.CreateTopics():
                return topics.create_topics(state, self.config, self._random, command)
            case asked.DeleteTopics():
                return topics.delete_topics(state, self.config, command)
            case asked.CreatePartitions():
                return growth.create_partitions(state, self.config, self._random, command)
            case asked.AlterConfigs():
                return configs.alter_configs(state, self.config, self._random, command)
            case asked.IncrementalAlterConfigs():
                return configs.incremental_alter_configs(state, self.config, self._random, command)
            case asked.AlterClientQuotas():
                return quotas.alter_client_quotas(state, command)
            case AlterUserScramCredentials():
                return scram.alter_user_scram_credentials(state, command)
            case CreateAcls():
                return acls.create_acls(state, self._random, command)
            case DeleteAcls():
                return acls.delete_acls(state, command)
            case CreateDelegationToken():
                return self._tokens.create(state, self._random, command, now.wall_ms)
            case RenewDelegationToken():
                return self._tokens.renew(state, command, now.wall_ms)
            case ExpireDelegationToken():
                return self._tokens.expire(state, command, now.wall_ms)
            case asked.AllocateProducerIds():
                return self._allocate_producer_ids(command)
            case asked.RegisterBroker():
                return self._register(rules, command, now_ms)
            case asked.RegisterController():
                return controllers.register_controller(state, command)
            case asked.BrokerHeartbeat():
                return self._heartbeat(rules, command, now_ms)
            case asked.AssignReplicas():
                return log_dirs.assign_replicas(state, rules, command)
            case asked.BrokerLost():
                return self._lose(rules, command)
            case asked.UnregisterBroker():
                return brokers.unregister_broker(state, rules, command.node_id)
            case asked.AlterPartition():
                return isr.alter_partition(state, rules, command)
            case asked.ElectLeaders():
                return elections.elect_leaders(state, rules, command)
            case asked.AlterReassignments():
                return reassignment.alter_reassignments(state, rules, command)
            case asked.ListReassignments():
                return reassignment.list_reassignments(state, command)
            case asked.UpdateFeatures():
                return features.update_features(state, self.config, command)
            case Tick():
                return self._tick(rules, now), None

    def apply(self, record: Stored) -> None:
        """Apply one metadata record, which is in `message`."""
        self.state.replay(record.message)

    def deadline_ms(self) -> int | None:
        """The time at which the first session ends, or the next leader rebalance or token removal is due; the current
        time if a step is pending."""
        if self._leaving:
            return 0
        sweep_ms = self._tokens.next_sweep_ms(self.state)
        ends_ms = self.sessions.next_end_ms(self.state)
        dues_ms = [sweep_ms, ends_ms, None if ends_ms is None else self._look_around_ms]
        return min((due_ms for due_ms in dues_ms if due_ms is not None), default=None)

    # ---- brokers

    def _register(self, rules: Rules, command: asked.RegisterBroker, now_ms: int) -> tuple[list[Any], int]:
        node_id = command.node_id
        known = self.state.brokers.get(node_id)
        is_other = known is not None and known.incarnation_id != command.incarnation_id
        if is_other and not command.is_own and self.sessions.holds(node_id, now_ms):
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Another broker is registered with that broker id {node_id}, and its session has not ended.",
            )
        records, epoch = brokers.register_broker(self.state, rules, command, self._next_offset())
        if is_other:
            self.sessions.end(node_id)
        return records, epoch

    def _heartbeat(
        self, rules: Rules, command: asked.BrokerHeartbeat, now_ms: int
    ) -> tuple[list[Any], asked.BrokerState]:
        records, told = brokers.heartbeat(self.state, rules, self.sessions, command, self._next_offset())
        if not records and command.want_fence and not command.want_shut_down and self._may_fence(command.node_id):
            records = self._fence(rules, command.node_id)
            told = told._replace(fenced=all(each.node_id != command.node_id for each in self._leaving))
        if told.should_shut_down:
            self.sessions.end(command.node_id)
        else:
            self.sessions.touch(command.node_id, now_ms, command.metadata_offset)
        return records, told

    def _may_fence(self, node_id: int) -> bool:
        """Whether a broker can be fenced at its own request: it is not fenced yet, and another broker can lead. If no
        other broker can, a broker with a hung disk is better than none."""
        leaving = {each.node_id for each in self._leaving}
        others = (other for other in self.state.brokers if other != node_id and other not in leaving)
        return not self.state.brokers[node_id].fenced and any(map(self.state.active, others))

    def _lose(self, rules: Rules, command: asked.BrokerLost) -> tuple[list[Any], None]:
        broker = self.state.brokers.get(command.node_id)
        if broker is None or broker.epoch != command.broker_epoch:
            return [], None  # another incarnation has registered in the meantime
        self.sessions.let_go(command.node_id)
        if broker.fenced or not command.dead:
            return [], None
        return self._fence(rules, command.node_id), None

    def _fence(self, rules: Rules, node_id: int) -> list[Any]:
        """Fence a broker, or begin to fence it: if it has many partitions, each Tick moves some of them, so that no
        request waits for all."""
        if all(each.node_id != node_id for each in self._leaving):
            self._leaving.append(brokers.Leaving(self.state, node_id))
        return self._go_on_leaving(rules)

    def _go_on_leaving(self, rules: Rules) -> list[Any]:
        records, is_done = self._leaving[0].step(self.state, rules)
        if is_done:
            del self._leaving[0]
        return records

    # ---- the timer

    def _tick(self, rules: Rules, now: Moment) -> list[Any]:
        """Fence one broker whose session has expired. From time to time, rebalance leaders and remove expired tokens.

        Brokers are fenced one at a time, since the new leaders for one depend on which brokers are fenced already. The
        deadline stays in the past, so the next Tick follows at once.
        """
        now_ms = now.steady_ms
        self.sessions.begin(self.state, now_ms)
        due_ms = self.sessions.next_end_ms(self.state)
        if due_ms is not None and now_ms - max(due_ms, self._ticked_ms) > LATE_MS:
            self.sessions.renew_all(now_ms)
        self._ticked_ms = now_ms
        if self._leaving:
            return self._go_on_leaving(rules)
        expired = self.sessions.expired(self.state, now_ms)
        if expired:
            return self._fence(rules, expired[0])
        if self._look_around_ms is None:
            self._look_around_ms = now_ms + self._interval_ms
        elif now_ms >= self._look_around_ms:
            return self._look_around(rules, now_ms)
        return self._tokens.sweep(self.state, now)

    @property
    def _interval_ms(self) -> int:
        return self.config.leader_imbalance_check_interval_seconds * 1000

    def _look_around(self, rules: Rules, now_ms: int) -> list[Any]:
        self._look_around_ms = now_ms + self._interval_ms
        if len(self.state.brokers) < 2:
            return []
        records = elections.elect_uncleanly(self.state, rules)
        if not records and self.config.auto_leader_rebalance_enable:
            records = elections.balance_leaders(self.state, rules)
            if len(records) >= elections.BALANCED_AT_ONCE_MAX:
                self._look_around_ms = now_ms
        return records

    # ---- producer ids

    def _allocate_producer_ids(self, command: asked.AllocateProducerIds) -> tuple[list[Any], ProducerIdBlock]:
        brokers.registered(self.state, command.node_id, command.broker_epoch)
        first = self.state.next_producer_id
        record = stored.ProducerIdsRecord(
            broker_id=command.node_id,
            broker_epoch=command.broker_epoch,
            next_producer_id=first + PRODUCER_ID_BLOCK,
        )
        return [record], ProducerIdBlock(first, PRODUCER_ID_BLOCK)


def _whole(values: list[Stored], wall_ms: int) -> list[Stored]:
    """Put records that do not fit into one batch into a metadata transaction. They take effect together when the
    transaction ends."""
    size_bytes = 0
    for value in values:
        size_bytes += len(value.serialized(stored.frame_record))
    if size_bytes <= WHOLE_BYTES:
        return values
    begin = Stored(None, None, wall_ms, message=stored.BeginTransactionRecord(name="controller"))
    return [begin, *values, Stored(None, None, wall_ms, message=stored.EndTransactionRecord())]
