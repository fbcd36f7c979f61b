"""For the tests of those who use Kafka: a pytest fixture with a real broker behind it."""
