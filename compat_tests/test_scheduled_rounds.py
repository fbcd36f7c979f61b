"""A few rounds of kill -9 with scheduled transactions; `python -m compat_tests.scheduled_rounds` runs more."""

from compat_tests.conftest import start_target
from compat_tests.scheduled_rounds import play

ROUNDS = 4
SEED = 7


def test_scheduled_records_of_transactions_are_delivered_once(target_name: str) -> None:
    broker = start_target(target_name)
    try:
        assert play(broker, ROUNDS, SEED) > 50
    finally:
        broker.kill9()
    broker.remove()
