"""What went wrong in a Spark job, in one line: Spark itself says it in a Java stack trace of a hundred."""

import re

GONE = (
    "what the query was to read next is not in the topic: it was deleted, or the checkpoint is of another topic or "
    "cluster. Take a new checkpoint, or failOnDataLoss=false to go on with what is left"
)
CAUSES = {
    r"UnknownTopicOrPartition": "a topic to read is not there: make it first, e.g. `kpybroker topics create NAME`",
    r"failOnDataLoss|OffsetOutOfRange|KAFKA_DATA_LOSS": GONE,
    r"No offset matched": "no record is as young as the starting timestamp: take an earlier one, or "
    "startingOffsetsByTimestampStrategy=latest",
    r"DATA_SOURCE_NOT_FOUND|Failed to find data source: kafka": "this Spark has no Kafka connector: make "
    "the session with kpybroker.spark.session",
    r"TopicAuthorizationException|SaslAuthenticationException": "the broker refuses this user",
    r"kafka\S*TimeoutException|Failed to construct kafka consumer": "the broker does not answer any more",
}
EXCEPTION = re.compile(r"(?:Caused by: )?(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)): (.+)")


def explained(error: BaseException) -> str:
    """One line: cause and way out where we know it, then the last exception that Spark or Kafka named."""
    text = str(error)
    named = EXCEPTION.findall(text)
    said = f"{named[-1][0]}: {named[-1][1]}" if named else (text.splitlines() or [type(error).__name__])[0]
    known = next((told for pattern, told in CAUSES.items() if re.search(pattern, text)), None)
    return f"{known} ({said})" if known else said
