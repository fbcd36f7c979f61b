"""Explains the failure of a Spark job in one line, instead of Spark's Java stack trace of a hundred lines."""

import re
from collections.abc import Callable

GONE = (
    "the next offsets of the query are not in the topic: they were deleted, or the checkpoint is for another topic or "
    "cluster. Use a new checkpoint, or failOnDataLoss=false to continue with the remaining records"
)
REFUSED_TOPICS = re.compile(r"Not authorized to access topics: \[(.+?)\]")
REFUSED_GROUP = re.compile(r"Not authorized to access group: (\S+)")
WRITES = "kafka010.KafkaWriter"
"""Occurs in the stack trace if a batch was being written to Kafka."""
OFFSETS = "Current Available Offsets: "
"""Precedes the positions of a stream in its sources: JSON with the names of the topics."""


def _lacks_topic(text: str) -> str:
    """The text for a missing right on a topic. Spark's error names the topic but not the operation."""
    found = REFUSED_TOPICS.search(text)
    if found is None:
        return "the user may not see a topic to read: it needs the ACL READ on it"
    of_stream = text.partition(OFFSETS)[2].partition("\n")[0]
    is_read = any(f'"{topic}":' in of_stream for topic in found[1].split(", "))
    right = "WRITE" if WRITES in text or (of_stream.strip("{}") and not is_read) else "READ"
    return f"the user may not {right.lower()} {found[1]}: it needs the ACL {right} on that topic"


def _lacks_group(text: str) -> str:
    found = REFUSED_GROUP.search(text)
    of = f" {found[1]}" if found else ""
    return f"the user may not use the group{of}: it needs the ACL READ on it, or on its prefix"


CAUSES: dict[str, str | Callable[[str], str]] = {
    r"UnknownTopicOrPartition": "a topic to read does not exist: create it first, e.g. `kpybroker topics create NAME`",
    r"failOnDataLoss|OffsetOutOfRange|KAFKA_DATA_LOSS": GONE,
    r"No offset matched": "no record is as new as the starting timestamp: use an earlier one, or "
    "startingOffsetsByTimestampStrategy=latest",
    r"DATA_SOURCE_NOT_FOUND|Failed to find data source: kafka": "this Spark has no Kafka connector: create "
    "the session with kpybroker.spark.session",
    r"TopicAuthorizationException": _lacks_topic,
    r"TOPIC_AUTHORIZATION_FAILED": "the user lacks a right on a topic: the ACL READ to read it, WRITE to write to it, "
    "CREATE to create it",
    r"GroupAuthorizationException|GROUP_AUTHORIZATION_FAILED": _lacks_group,
    r"ClusterAuthorizationException|CLUSTER_AUTHORIZATION_FAILED": "the user may write to no topic: it needs the ACL "
    "WRITE on the topic to write to",
    r"TransactionalIdAuthorization|TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "the user may not use the transactional id: "
    "it needs the ACL WRITE on it, or on its prefix",
    r"SaslAuthenticationException": "the broker does not let this user in: the user or the password is wrong "
    "(sasl.jaas.config)",
    r"UnsupportedSaslMechanismException": "the listener has other mechanisms than sasl.mechanism",
    r"PKIX path|SunCertPathBuilder": "the broker's certificate is not trusted: name that of its authority in "
    "ssl.truststore.location",
    r"No subject alternative|No name matching": "the broker's certificate is not for this host: use a name that it has",
    r"Received fatal alert: \w*certificate": "the broker wants a certificate of the client: name a key and its "
    "certificate in ssl.keystore.location",
    r"SslAuthenticationException|SSLHandshakeException": "the TLS handshake failed: the broker's certificate must be "
    "of an authority in ssl.truststore.location and name the host",
    r"kafka\S*TimeoutException|Failed to construct kafka consumer": "the broker no longer answers, or its listener has "
    "another security.protocol than the job",
}
EXCEPTION = re.compile(r"(?:Caused by: )?(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)): (.+)")
REFUSAL = re.compile(r'KafkaError\{code=(\w+),val=-?\d+,str="(.*?)"\}')
"""An error of confluent-kafka."""


def explained(error: BaseException) -> str:
    """One line with the cause and a remedy, if they are known, and the last exception of Spark or Kafka."""
    text = str(error)
    known = next((cause for pattern, cause in CAUSES.items() if re.search(pattern, text)), None)
    said = known(text) if callable(known) else known
    return f"{said} ({_last(error, text)})" if said else _last(error, text)


def _last(error: BaseException, text: str) -> str:
    refusals = REFUSAL.findall(text)
    named = refusals or EXCEPTION.findall(text)
    return ": ".join(named[-1]) if named else (text.splitlines() or [type(error).__name__])[0]
