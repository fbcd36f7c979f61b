"""A few rounds of kill -9; `python -m compat_tests.kill_rounds` runs hundreds."""

from compat_tests.conftest import start_target
from compat_tests.kill_rounds import DELETING_SOON, play

ROUNDS = 8
SEED = 20


def test_a_broker_killed_again_and_again_loses_nothing(target_name: str) -> None:
    broker = start_target(target_name, DELETING_SOON)
    try:
        rounds = play(broker, ROUNDS, SEED)
        assert rounds.torn
        assert rounds.ledger.records > 1000
    finally:
        broker.kill9()
    broker.remove()
