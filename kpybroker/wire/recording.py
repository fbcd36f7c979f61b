"""Words that the recorder of a broker and the readers of recordings share."""

KIT_CLIENT_ID = "kpybroker-testing"
"""The client id of the test kit itself, whose requests are not recorded."""
CLOSED = "the connection was closed"
"""How a request ended, if its connection was closed before the response."""
NOT_SENT = "no response is sent"
"""How a Produce request with acks=0 ends, or one whose response a fault has lost."""
