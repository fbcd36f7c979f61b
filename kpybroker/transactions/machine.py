"""The transactions of one partition of `__transaction_state`: a Machine (`machine/contract.py`).

The hard state is one Transaction for each transactional id. The soft state is `last_epoch`, the decided transactions
whose markers are already being sent, and the times at which transactions are checked for timeouts. A new coordinator
starts without any soft state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kpybroker.config.component import setting
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Moment, Outcome, Stored, Tick
from kpybroker.machine.rounds import Round
from kpybroker.transactions import records
from kpybroker.transactions.commands import (
    AddPartitions,
    AwaitEndings,
    Complete,
    Describe,
    End,
    InitProducerId,
    ListAll,
    ProducerIdWanted,
    Verify,
)
from kpybroker.transactions.transaction import (
    AT_REST,
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    V2,
    Transaction,
    TransactionState,
)

WRITTEN_A_TICK = 100
"""The most records of one step of a round."""
OVERTAKEN_MS = 100
"""An EndTxn without records is refused with CONCURRENT_TRANSACTIONS if it arrives within this time after the previous
one.

The Java client's sender first checks whether records are waiting, and then decides which request to send, without a
lock around both. So its EndTxn may overtake the transaction's only records. Apache Kafka is usually still executing the
previous EndTxn, and returns the same error.
"""


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The broker's settings for transactions, in milliseconds."""

    transaction_max_timeout_ms: int = setting("transaction.max.timeout.ms")
    transactional_id_expiration_ms: int = setting("transactional.id.expiration.ms")
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms"
    )
    max_transactional_ids: int = 1_000_000
    """The most transactional ids in one partition of `__transaction_state`."""


class TransactionMachine:
    """Transactions by transactional id. `level` returns the finalized `transaction.version`."""

    def __init__(self, settings: TransactionSettings, level: Callable[[], int]) -> None:
        self.settings = settings
        self.transactions: dict[str, Transaction] = {}
        """Hard state."""
        self._level = level
        self._loaded: Moment | None = None
        """Set by the first decision. None while the log is replayed."""
        self._now_ms = 0
        """The steady time of the latest decision."""
        self._ongoing: dict[str, int | None] = {}
        """The time at which each open transaction began, by the steady clock; None if it began before the replay."""
        self.rested: dict[str, int] = {}
        """The transactions that ended last, with the time by the steady clock: at least those of the last
        OVERTAKEN_MS."""
        self._unsent: dict[str, None] = {}
        """Decided transactions whose markers are not being sent yet."""
        self._sender: Any = None
        self._timeouts = Round[str](settings.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        self._expiry = Round[str](settings.transaction_remove_expired_transaction_cleanup_interval_ms)
        self._decisions: dict[type, Callable[[Any, Any, Moment], Outcome]] = {
            AddPartitions: self._add,
            AwaitEndings: self._await_endings,
            Complete: self._complete,
            Describe: self._describe,
            End: self._end,
            InitProducerId: self._init,
            ListAll: self._list,
            Tick: self._tick,
            Verify: self._verify,
        }

    # ---- Machine

    def decide(self, ticket: Any, command: Any, now: Moment) -> Outcome:
        """Decide one command. Returns the records to write, and the results to return once they have committed."""
        if self._loaded is None:
            self._loaded = now
        self._now_ms = now.steady_ms
        outcome = self._decisions[type(command)](ticket, command, now)
        if self._sender is not None and any(_decides(record) for record in outcome.records):
            outcome.answers.append((self._sender, []))
            self._sender = None
        return outcome

    def apply(self, record: Stored) -> None:
        """Apply one record to the state. Raises Damage if the record cannot be read, because a transaction would be
        lost."""
        transactional_id = records.read_id(record)
        if transactional_id is None:
            return
        since_ms = self._ongoing.pop(transactional_id, None if self._loaded is None else self._now_ms)
        self._unsent.pop(transactional_id, None)
        transaction = records.read(transactional_id, record)
        if transaction is None or transaction.state is TransactionState.DEAD:
            self.transactions.pop(transactional_id, None)
            return
        self.transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._ongoing[transactional_id] = since_ms
        elif transaction.is_ending:
            self._unsent[transactional_id] = None
        elif self._loaded is not None:
            self._rests(transactional_id)

    def _rests(self, transactional_id: str) -> None:
        rested = self.rested
        rested.pop(transactional_id, None)
        rested[transactional_id] = self._now_ms
        while self._now_ms - rested[first := next(iter(rested))] >= OVERTAKEN_MS:
            del rested[first]

    def deadline_ms(self) -> int | None:
        """The time of the next round, or of the next step of a round. After a replay, it is due at once."""
        if self._timeouts.at_ms is None or self._expiry.at_ms is None:
            return 0
        return min(self._timeouts.at_ms, self._expiry.at_ms)

    # ---- a producer begins

    def _init(self, ticket: Any, command: InitProducerId, now: Moment) -> Outcome:
        if not 0 < command.timeout_ms <= self.settings.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        known = self.transactions.get(command.transactional_id)
        if known is None:
            if command.new_producer_id is None:
                return _answer(ticket, ProducerIdWanted())
            if len(self.transactions) >= self.settings.max_transactional_ids:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the limit of transactional ids is reached")
            known = Transaction(
                command.transactional_id,
                command.new_producer_id,
                NO_EPOCH,
                command.timeout_ms,
                last_update_ms=now.wall_ms,
            )
        if known.is_ending:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        expected = command.expected
        if expected is not None and not known.may_continue(*expected):
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if known.state is TransactionState.ONGOING:
            refusal = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the previous transaction is being aborted")
            return _answer(ticket, refusal, self._record(known.fenced(self._level(), now.wall_ms)))
        expected_epoch = None if expected is None else expected[1]
        if known.needs_id_after(expected_epoch):
            if command.new_producer_id is None:
                return _answer(ticket, ProducerIdWanted())
            begun: Transaction | None = known.renamed(
                command.new_producer_id, command.timeout_ms, expected is not None, now.wall_ms
            )
        else:
            begun = known.begun(command.timeout_ms, expected_epoch, now.wall_ms)
        if begun is None:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        return _answer(ticket, (begun.producer_id, begun.producer_epoch), self._record(begun))

    # ---- a transaction runs

    def _known(self, transactional_id: str) -> Transaction:
        known = self.transactions.get(transactional_id)
        if known is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return known

    def _running(self, command: AddPartitions | Verify) -> Transaction:
        """The transaction of a producer that owns the transactional id. First checks whether the transaction is ending,
        because the producer id may be changing."""
        known = self._known(command.transactional_id)
        if known.is_ending:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.producer_id != command.producer_id or known.is_used_up:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if known.producer_epoch != command.producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        return known

    def _add(self, ticket: Any, command: AddPartitions, now: Moment) -> Outcome:
        known = self._running(command)
        if known.state is TransactionState.ONGOING and known.partitions.issuperset(command.partitions):
            return _answer(ticket, None)
        extended = known.extended(command.partitions, command.client_version, now.wall_ms)
        return _answer(ticket, None, self._record(extended))

    def _verify(self, ticket: Any, command: Verify, _now: Moment) -> Outcome:
        known = self._running(command)
        return _answer(ticket, [place for place in command.partitions if place not in known.partitions])

    # ---- a transaction ends

    def _end(self, ticket: Any, command: End, now: Moment) -> Outcome:
        known = self._known(command.transactional_id)
        is_v2 = command.client_version >= V2
        if is_v2 and known.is_ending:  # checked first, because the producer id may be changing
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        repeats = is_v2 and not known.is_used_up and _is_repeated(known, command)
        if (known.producer_id != command.producer_id and not repeats) or (known.is_used_up and not known.is_ending):
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if known.producer_epoch != command.producer_epoch and not repeats:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if known.is_ending:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if repeats or (not is_v2 and known.state in AT_REST):
            if known.state is TransactionState.EMPTY or known.commits != command.commit:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE)
            return _answer(ticket, known.following)
        if command.commit and known.state is not TransactionState.ONGOING:
            if is_v2 and known.state in AT_REST and self._has_just_ended(known, now):
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "its records have not arrived yet")
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        next_producer_id = NO_PRODUCER_ID
        if is_v2 and known.is_exhausted:
            if command.new_producer_id is None:
                return _answer(ticket, ProducerIdWanted())
            next_producer_id = command.new_producer_id
        ended = known.ended(
            commit=command.commit,
            client_version=command.client_version,
            next_producer_id=next_producer_id,
            now_ms=now.wall_ms,
        )
        return _answer(ticket, ended.following, self._record(ended))

    def _await_endings(self, ticket: Any, _: AwaitEndings, _now: Moment) -> Outcome:
        if not self._unsent:
            self._sender = ticket
            return Outcome()
        endings = [self.transactions[each] for each in self._unsent]
        self._unsent.clear()
        return _answer(ticket, endings)

    def _complete(self, ticket: Any, command: Complete, now: Moment) -> Outcome:
        if self.transactions.get(command.ending.transactional_id) != command.ending:
            return _answer(ticket, None)
        return _answer(ticket, None, self._record(command.ending.completed(now.wall_ms)))

    # ---- descriptions

    def _describe(self, ticket: Any, command: Describe, _now: Moment) -> Outcome:
        known = self.transactions.get(command.transactional_id)
        if known is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return _answer(ticket, known)

    def _list(self, ticket: Any, command: ListAll, now: Moment) -> Outcome:
        found = [
            each
            for each in self.transactions.values()
            if (not command.states or each.state in command.states)
            and (not command.producer_ids or each.producer_id in command.producer_ids)
            and (command.running_ms < 0 or now.wall_ms - each.start_ms > command.running_ms)
        ]
        return _answer(ticket, found)

    # ---- time

    def _tick(self, ticket: Any, _: Tick, now: Moment) -> Outcome:
        outcome = _answer(ticket, None)
        for each in self._timeouts.step(self._ongoing, now.steady_ms):
            known = self.transactions.get(each)
            if known is not None and known.state is TransactionState.ONGOING and self._is_late(known, now):
                outcome.records.append(self._record(known.fenced(self._level(), now.wall_ms)))
            if len(outcome.records) >= WRITTEN_A_TICK:
                return outcome
        oldest_ms = now.wall_ms - self.settings.transactional_id_expiration_ms
        for each in self._expiry.step(self.transactions, now.steady_ms):
            known = self.transactions.get(each)
            if known is not None and known.state in AT_REST and known.last_update_ms <= oldest_ms:
                outcome.records.append(records.tombstone(each, now.wall_ms))
            if len(outcome.records) >= WRITTEN_A_TICK:
                return outcome
        return outcome

    def _is_late(self, known: Transaction, now: Moment) -> bool:
        since_ms = self._ongoing.get(known.transactional_id)
        if since_ms is None:
            assert self._loaded is not None, "nothing times out before the first decision"
            lasted_ms = min(max(self._loaded.wall_ms - known.start_ms, 0), known.timeout_ms)
            since_ms = self._loaded.steady_ms - lasted_ms
        return since_ms + known.timeout_ms < now.steady_ms

    def _has_just_ended(self, known: Transaction, now: Moment) -> bool:
        """Whether the previous transaction has just ended, or ended at an unknown time before the replay."""
        assert self._loaded is not None, "this is a decision"
        return now.steady_ms - self.rested.get(known.transactional_id, self._loaded.steady_ms) < OVERTAKEN_MS

    def _record(self, transaction: Transaction) -> Stored:
        return records.record_of(transaction, self._level())


def _answer(ticket: Any, answer: Any, *written: Stored) -> Outcome:
    return Outcome(list(written), [(ticket, answer)])


def _decides(record: Stored) -> bool:
    return isinstance(record.message, Transaction) and record.message.is_ending


def _is_repeated(known: Transaction, command: End) -> bool:
    """Whether this EndTxn v5 has already been executed: the transaction has the next epoch, perhaps with a new producer
    id."""
    if known.state not in AT_REST or known.state is TransactionState.EMPTY:
        return False
    if known.producer_id == command.producer_id:
        return known.producer_epoch == command.producer_epoch + 1
    was_last = command.producer_epoch == LAST_EPOCH and known.producer_epoch == 0
    return was_last and known.previous_producer_id == command.producer_id
