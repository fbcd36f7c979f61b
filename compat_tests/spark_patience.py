"""How long Spark's clients try in a test, where minutes are usual."""

QUICK = {"kafka.default.api.timeout.ms": "15000", "kafka.request.timeout.ms": "15000", "fetchOffset.numRetries": "1"}
