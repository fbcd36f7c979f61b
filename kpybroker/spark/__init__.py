"""PySpark with Kafka (`pip install kpybroker[spark]`): `session(bootstrap)` has the matching connector.

`Cluster` has what the clients of a job need for TLS and a login, `checkpoint` guards a stream's checkpoint against use
with other topics, `explained` gives the cause of a failed job in one line, and `python -m kpybroker.spark` prints
arguments for spark-submit that add the same connector.
"""

from kpybroker.spark.checkpoints import checkpoint
from kpybroker.spark.cluster import Cluster
from kpybroker.spark.connector import JARS_VARIABLE
from kpybroker.spark.explaining import explained
from kpybroker.spark.local_session import QUICK_JVM, session

__all__ = ["JARS_VARIABLE", "QUICK_JVM", "Cluster", "checkpoint", "explained", "session"]
