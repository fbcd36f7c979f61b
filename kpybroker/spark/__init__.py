"""PySpark on a Kafka broker (`pip install kpybroker[spark]`): `session(bootstrap)` has the connector that fits.

`python -m kpybroker.spark` prints the arguments that bring the same connector to spark-submit.
"""

from kpybroker.spark.connector import JARS_VARIABLE
from kpybroker.spark.local_session import QUICK_JVM, session

__all__ = ["JARS_VARIABLE", "QUICK_JVM", "session"]
