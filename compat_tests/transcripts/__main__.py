"""Records transcripts on Apache Kafka: `python -m compat_tests.transcripts topics configs`; without names, all of
them."""

import sys

from compat_tests.conftest import start_target
from compat_tests.transcripts import HERE, SETTINGS, record

for name in sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.txt")):
    broker = start_target("kafka", SETTINGS)
    record(name, broker)
    broker.kill9()
    broker.remove()
    print(f"recorded {name}")
