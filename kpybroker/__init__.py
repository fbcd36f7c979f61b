"""kpybroker: a Kafka broker in Python."""

from kpybroker.compiled_build import choose

__version__ = "0.1.0"
BUILD = choose()
"""The build that runs: "compiled", or "interpreted", in some cases with the reason."""
