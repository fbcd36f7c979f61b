"""PySpark with Kafka (`pip install kpybroker[spark]`): `session(bootstrap)` creates a session with the right connector.

`Cluster` has the settings that the clients of a job need for TLS and a login. `checkpoint` prevents a stream's
checkpoint from being used with other topics. `explained` gives the cause of a failed job in one line. The command
`python -m kpybroker.spark` prints arguments for spark-submit that add the same connector.
"""

from kpybroker.spark.checkpoints import checkpoint
from kpybroker.spark.cluster import Cluster
from kpybroker.spark.connector import JARS_VARIABLE
from kpybroker.spark.explaining import explained
from kpybroker.spark.local_session import QUICK_JVM, session

__all__ = ["JARS_VARIABLE", "QUICK_JVM", "Cluster", "checkpoint", "explained", "session"]
