"""Explains the failure of a Spark job in one line, where Spark prints a Java stack trace of a hundred."""

import re

GONE = (
    "the next offsets of the query are not in the topic: they were deleted, or the checkpoint is for another topic or "
    "cluster. Use a new checkpoint, or failOnDataLoss=false to continue with the remaining records"
)
CAUSES = {
    r"UnknownTopicOrPartition": "a topic to read does not exist: create it first, e.g. `kpybroker topics create NAME`",
    r"failOnDataLoss|OffsetOutOfRange|KAFKA_DATA_LOSS": GONE,
    r"No offset matched": "no record is as new as the starting timestamp: use an earlier one, or "
    "startingOffsetsByTimestampStrategy=latest",
    r"DATA_SOURCE_NOT_FOUND|Failed to find data source: kafka": "this Spark has no Kafka connector: create "
    "the session with kpybroker.spark.session",
    r"TopicAuthorizationException|SaslAuthenticationException": "the broker refuses this user",
    r"kafka\S*TimeoutException|Failed to construct kafka consumer": "the broker no longer answers",
}
EXCEPTION = re.compile(r"(?:Caused by: )?(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)): (.+)")


def explained(error: BaseException) -> str:
    """One line: the cause and what to do about it, if known, then the last exception of Spark or Kafka."""
    text = str(error)
    named = EXCEPTION.findall(text)
    last = f"{named[-1][0]}: {named[-1][1]}" if named else (text.splitlines() or [type(error).__name__])[0]
    known = next((cause for pattern, cause in CAUSES.items() if re.search(pattern, text)), None)
    return f"{known} ({last})" if known else last
