"""`spark-submit $(python -m kpybroker.spark) job.py`: prints arguments that add the connector for the installed
PySpark."""

import sys

from kpybroker.errors import ConfigError
from kpybroker.spark.connector import connector
from kpybroker.spark.prerequisites import spark_version

ARGUMENTS = {"spark.jars": "--jars", "spark.jars.packages": "--packages", "spark.jars.excludes": "--exclude-packages"}

if __name__ == "__main__":
    try:
        print(*(f"{ARGUMENTS[setting]} {value}" for setting, value in connector(spark_version()).items()))
    except ConfigError as error:
        sys.exit(str(error))
