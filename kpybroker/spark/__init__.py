"""PySpark on a Kafka broker (`pip install kpybroker[spark]`): `session(bootstrap)` has the connector that fits.

`checkpoint` guards a stream's checkpoint against other topics, `explained` says in one line why a job failed, and
`python -m kpybroker.spark` prints the arguments that bring the same connector to spark-submit.
"""

from kpybroker.spark.checkpoints import checkpoint
from kpybroker.spark.connector import JARS_VARIABLE
from kpybroker.spark.explaining import explained
from kpybroker.spark.local_session import QUICK_JVM, session

__all__ = ["JARS_VARIABLE", "QUICK_JVM", "checkpoint", "explained", "session"]
