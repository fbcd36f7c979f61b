"""`kpybroker requests`: a saved recording is shown and replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kpybroker.client.recorded import table_of
from kpybroker.testing import Broker, Recording
from tests.cli.shell import Shell

PATIENCE_S = 30


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with Broker() as source:
        yield source


@pytest.fixture(scope="module")
def topic(source: Broker) -> str:
    return source.topic("orders", create=True)


@pytest.fixture(scope="module")
def file(source: Broker, topic: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of two producers, one of which got an error."""
    with source.record() as recording:
        for client_id, error in (("shop", None), ("bank", "TOPIC_AUTHORIZATION_FAILED")):
            producer = Producer({"bootstrap.servers": source.bootstrap, "client.id": client_id, "log_level": 0})
            producer.produce(topic, b"paid")
            if error is not None:
                with source.fault("Produce", error=error):
                    assert producer.flush(PATIENCE_S) == 0
            assert producer.flush(PATIENCE_S) == 0
    path = tmp_path_factory.mktemp("recording") / "requests"
    recording.save(path)
    return path


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell without a broker."""
    return Shell("127.0.0.1:1", monkeypatch)


def test_requests_are_shown(file: Path, topic: str, offline: Shell) -> None:
    code, out, _ = offline("requests", "show", str(file))
    assert code == 0
    recording = Recording.load(file)
    assert [line.split() for line in out.splitlines() if line.strip()][2:] == [
        line.split() for line in table_of(list(recording)).splitlines()[1:]
    ]
    shown = offline("requests", "show", str(file), "--api", "Produce", "--topic", topic, "--json").lines
    assert [(each["client_id"], each["result"]) for each in shown] == [
        ("shop", "ok"),
        ("bank", "TOPIC_AUTHORIZATION_FAILED"),
    ]
    assert shown[0]["fields"]["topic_data"][0]["name"] == topic
    assert shown[0]["topics"] == [topic]
    (only,) = offline("requests", "show", str(file), "--client-id", "shop", "--api", "Produce", "--json").lines
    assert only == shown[0]
    (only,) = offline("requests", "show", str(file), "--error", "TOPIC_AUTHORIZATION_FAILED", "--json").lines
    assert only == shown[1]
    none = offline("requests", "show", str(file), "--group", "g")
    assert (none.code, none.out, none.err) == (0, "", "no such requests\n")


def test_what_cannot_be_shown_is_refused(file: Path, tmp_path: Path, offline: Shell) -> None:
    told = offline("requests", "show", str(file), "--api", "Produkt")
    assert (told.code, told.err) == (2, "kpybroker: Kafka has no 'Produkt' requests; did you mean Produce?\n")
    told = offline("requests", "show", str(tmp_path / "missing"))
    assert (told.code, "cannot read" in told.err) == (1, True)
    (tmp_path / "damaged").write_bytes(file.read_bytes()[:-1])
    told = offline("requests", "show", str(tmp_path / "damaged"))
    assert (told.code, "it is cut off, or too long" in told.err) == (1, True)


def test_requests_are_replayed(
    file: Path, source: Broker, topic: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second producer gets no error this time, so the command fails."""
    before = len(source.records(topic))
    code, out, err = Shell(source.bootstrap, monkeypatch)("requests", "replay", str(file))
    assert code == 1
    assert "1 requests got other errors than in the recording" in err
    assert "TOPIC_AUTHORIZATION_FAILED, now ok" in err
    assert "Produce" in out
    assert len(source.records(topic)) == before + 2
    told = shell(
        "requests", "replay", str(file), "--json"
    )  # another broker, where the client's lookup creates the topic
    rows = {row["request"]: row for row in told.json}
    assert rows["Produce"] == {"request": "Produce", "all": 2, "same": 1, "different": 1, "not_compared": 0}
