"""Compressed streams as no client writes them: what Java's consumer does not read to its end is refused.

Of its own, and late in the alphabet: Kafka's DumpLogSegments reads some of these logs no further than Kafka's consumer
would need it to, and `test_dump_log` looks at all that the tests before it have left.
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
    """What Java's consumer cannot read is refused, and what it reads is taken; kpybroker looks at all of it."""
    topic = make_topic()
    for what, packed in codec_forms.FORMS[codec]().items():
        code = put(conversation, topic, Crafted(b"").batch(codec, packed=packed))
        if what in codec_forms.READ_NO_FURTHER[codec]:
            assert code in ((0,) if target_name == "kafka" else (INVALID, UNKNOWN)), what
        elif what in codec_forms.INVALID.get(codec, ()):
            assert code == INVALID, what
        else:
            assert code == (UNKNOWN if what in codec_forms.REFUSED[codec] else 0), what
