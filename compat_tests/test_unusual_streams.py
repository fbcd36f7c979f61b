"""Tests of compressed streams that no client writes: streams that Java's consumer does not read to the end are refused.

These tests have a separate file, late in the alphabet: Kafka's DumpLogSegments reads some of these logs only as far as
Kafka's consumer needs, and `test_dump_log` checks the logs of all earlier tests.
"""

import pytest

from compat_tests import codec_forms
from compat_tests.conftest import MakeTopic
from compat_tests.crafted import Crafted
from compat_tests.test_crafted_batches import INVALID, UNKNOWN, put
from kpybroker.wire.records.compression import Codec
from oracle.asking import Conversation


@pytest.mark.parametrize("codec", codec_forms.FORMS)
def test_the_forms_of_a_codec(
    codec: Codec, conversation: Conversation, make_topic: MakeTopic, target_name: str
) -> None:
    """Streams that Java's consumer cannot read are refused, and streams that it can read are accepted; kpybroker checks
    them completely."""
    topic = make_topic()
    for what, packed in codec_forms.FORMS[codec]().items():
        code = put(conversation, topic, Crafted(b"").batch(codec, packed=packed))
        if what in codec_forms.READ_NO_FURTHER[codec]:
            assert code in ((0,) if target_name == "kafka" else (INVALID, UNKNOWN)), what
        elif what in codec_forms.INVALID.get(codec, ()):
            assert code == INVALID, what
        else:
            assert code == (UNKNOWN if what in codec_forms.REFUSED[codec] else 0), what
