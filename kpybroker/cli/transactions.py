"""`kpybroker transactions`: list and describe transactions, and abort a transaction whose producer has ended."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kpybroker.cli import cluster_facts, options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.cli.times import when
from kpybroker.client.client import Client, CommandFailed, check
from kpybroker.client.coordinators import OF_TRANSACTIONS, coordinator
from kpybroker.errors import ErrorCode
from kpybroker.similar_names import nearest_name
from kpybroker.wire.rpc import describe_transactions, init_producer_id, list_transactions

FINISHED = ("CompleteCommit", "CompleteAbort", "Empty", "Dead")
INIT_VERSION_MAX = 5

app = typer.Typer(
    name="transactions", cls=CommandGroup, help="List, describe and abort transactions.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(metavar="ID", help="A producer's transactional.id.")]


@app.command("list")
def list_(
    open_only: Annotated[bool, options.flag("--open", "Only transactions that have not ended.")] = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """List transactional ids with the state of their last transaction."""

    async def show(client: Client) -> None:
        found = [row for row in await _all(client) if not (open_only and row.transaction_state in FINISHED)]
        rows = [(row.transactional_id, row.transaction_state, row.producer_id) for row in found]
        if as_json:
            show_json([dict(zip(("transactional_id", "state", "producer_id"), row, strict=True)) for row in rows])
        elif rows:
            show_table(("TRANSACTIONAL ID", "STATE", "PRODUCER ID"), rows)
        else:
            remark("no open transactions" if open_only else "no transactions")

    options.run(show)


async def _all(client: Client) -> list[list_transactions.TransactionState]:
    async def attempt(node: int) -> list[list_transactions.TransactionState]:
        response = await client.ask("ListTransactions", list_transactions.Request(), node=node)
        check(response.error_code)
        states: list[list_transactions.TransactionState] = response.transaction_states
        return states

    found = await cluster_facts.from_each_broker(client, attempt)
    return sorted(found, key=lambda row: row.transactional_id)


@app.command()
def describe(
    name: Name, bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False
) -> None:
    """Show the producer, the state and the partitions of a transaction."""

    async def show(client: Client) -> None:
        found = await _find(client, name)
        facts: dict[str, Any] = {
            "transactional_id": name,
            "state": found.transaction_state,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "timeout_ms": found.transaction_timeout_ms,
            "started": found.transaction_start_time_ms if found.transaction_start_time_ms >= 0 else None,
            "partitions": sorted(f"{topic.topic}-{index}" for topic in found.topics for index in topic.partitions),
        }
        if as_json:
            show_json(facts)
            return
        facts["started"] = when(found.transaction_start_time_ms)
        facts["partitions"] = ", ".join(facts["partitions"]) or "none"
        width = max(map(len, facts))
        for fact, value in facts.items():
            show_line(f"{fact.replace('_', ' '):<{width}}  {value}")

    options.run(show)


async def _find(client: Client, name: str) -> describe_transactions.TransactionState:
    """The description of a transactional id. Raises CommandFailed, KafkaError."""

    async def attempt() -> describe_transactions.TransactionState:
        node = await coordinator(client, name, OF_TRANSACTIONS)
        request = describe_transactions.Request(transactional_ids=[name])
        found: describe_transactions.TransactionState
        (found,) = (await client.ask("DescribeTransactions", request, node=node)).transaction_states
        if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            near = nearest_name(name, [row.transactional_id for row in await _all(client)])
            meant = f"did you mean {near}?" if near is not None else "`kpybroker transactions list` lists all"
            raise CommandFailed(f"there is no transactional id {name}; {meant}")
        check(found.error_code)
        return found

    return await client.patiently(attempt)


@app.command()
def abort(
    name: Name, bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False
) -> None:
    """Abort the open transaction of a producer, and fence that producer."""

    async def end(client: Client) -> None:
        before = await _find(client, name)
        is_open = before.transaction_state not in FINISHED
        if is_open:
            await _fence(client, name, before.transaction_timeout_ms)
        if as_json:
            show_json({"transactional_id": name, "aborted": is_open, "state": before.transaction_state})
        else:
            show_line(f"aborted {name}" if is_open else f"{name} has no open transaction ({before.transaction_state})")

    options.run(end)


async def _fence(client: Client, name: str, timeout_ms: int) -> None:
    """Send InitProducerId for the transactional id, so that the coordinator aborts the open transaction (KIP-98)."""

    async def attempt() -> None:
        node = await coordinator(client, name, OF_TRANSACTIONS)
        request = init_producer_id.Request(transactional_id=name, transaction_timeout_ms=timeout_ms)
        response = await client.ask("InitProducerId", request, node=node, at_most=INIT_VERSION_MAX)
        check(response.error_code, name)  # CONCURRENT_TRANSACTIONS while it is being aborted

    await client.patiently(attempt)
