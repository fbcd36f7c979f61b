"""The clients under test, and the scenarios that each client runs: all combinations, or a pairwise selection."""

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest

from compat_tests.client_aiokafka import Aiokafka
from compat_tests.client_confluent import Confluent
from compat_tests.client_kafka_python import KafkaPython
from compat_tests.vocabulary import Client

CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), Aiokafka())
FULL = ("confluent-kafka",)


def pairwise(choices: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """A small set of rows that contains every pair of values of two different choices. The greedy search is
    deterministic."""
    if len(choices) < 2:
        return list(product(*choices))
    rows = list(product(*(range(len(choice)) for choice in choices)))
    columns = list(combinations(range(len(choices)), 2))

    def pairs(row: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
        return {(a, b, row[a], row[b]) for a, b in columns}

    missing = set().union(*(pairs(row) for row in rows))
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        chosen.append(tuple(choice[at] for choice, at in zip(choices, best, strict=True)))
    return chosen


def _rows(choices: Sequence[Sequence[Any]]) -> Iterator[Any]:
    for client in CLIENTS:
        for row in product(*choices) if client.name in FULL else pairwise(choices):
            yield pytest.param(client, *row, id="-".join([client.name, *map(str, row)]))


def each_client(**choices: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise a test by `client` and the named choices: all combinations for clients in FULL, pairwise for the
    others."""
    return pytest.mark.parametrize(("client", *choices), list(_rows(list(choices.values()))))
