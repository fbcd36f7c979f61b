"""Short timeouts for Spark's clients in tests; the defaults are minutes."""

QUICK = {"kafka.default.api.timeout.ms": "15000", "kafka.request.timeout.ms": "15000", "fetchOffset.numRetries": "1"}
