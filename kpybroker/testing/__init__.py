"""pytest fixtures with real brokers, for tests of applications that use Kafka."""
