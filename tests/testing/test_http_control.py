"""`kpybroker dev --control`: tests in any language control brokers over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openapi_spec_validator
import pytest
from confluent_kafka import KafkaException, Producer

from kpybroker.cli.arguments import EXCLUSIVE
from kpybroker.server.requests.recorder import TAPES_MAX
from kpybroker.testing import Broker
from kpybroker.testing.http_calls import FAULTS_MAX, ROUTES, Control
from kpybroker.testing.http_control import BODY_BYTES_MAX, CONNECTIONS_MAX, ControlServer
from kpybroker.testing.http_routes import HttpError

WAIT_S = 30
Call = Callable[..., tuple[int, Any]]


def caller(url: str) -> Call:
    """A function that sends a request, and returns the status and the JSON of the response."""

    def call(method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_S)
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        connection.request(method, path, content, dict(headers or {}))
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, json.loads(text) if response.getheader("Content-Type") == "application/json" else text

    return call


@pytest.fixture(scope="module")
def server() -> Iterator[ControlServer]:
    with Broker(in_thread=True) as broker, ControlServer(Control(broker), 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


@pytest.fixture
def call(server: ControlServer) -> Iterator[Call]:
    """Without the faults, recordings and snapshots of the test before."""
    call = caller(server.url)
    yield call
    assert call("DELETE", "/faults") == (200, {})
    for recording in list(server.control.recordings):
        assert call("DELETE", f"/recordings/{recording}") == (200, {})


def test_the_description_is_valid_and_complete() -> None:
    told = ROUTES.openapi()
    openapi_spec_validator.validate(told)
    names = [each["operationId"] for path in told["paths"].values() for each in path.values()]
    assert sorted(names) == sorted({route.call.__name__ for route in ROUTES})
    fields = told["paths"]["/faults"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert fields["required"] == ["api"]
    assert fields["properties"]["probability"] == {"type": "number"}
    page = ROUTES.page()
    assert all(f"<td>{route.method}</td><td><code>{route.path}</code></td>" in page for route in ROUTES)


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "reason"),
    [
        ("GET", "/broker", b"", 404, "no path '/broker'; did you mean /brokers?"),
        ("GET", "/brokers/", b"", 404, "no path"),
        ("POST", "/brokers", b"", 405, "takes GET, not POST"),
        ("POST", "/brokers/one/stop", b"", 400, "node='one' is not an integer"),
        ("POST", "/topics", b"{", 400, "not JSON"),
        ("POST", "/topics", b"[" * 100_000, 400, "not JSON"),
        ("POST", "/topics", b"[]", 400, "must be a JSON object"),
        ("POST", "/topics", b'{"partition": 3}', 400, "did you mean partitions?"),
        ("POST", "/topics", b'{"partitions": "3"}', 400, "partitions='3' is not an integer or null"),
        ("POST", "/topics", b'{"partitions": true}', 400, "partitions=True is not an integer or null"),
        ("POST", "/topics", b'{"config": []}', 400, "is not an object or null"),
        ("POST", "/topics/t/records", b"{}", 400, "needs values"),
        ("POST", "/topics/t/records", b'{"values": ["1"], "timestamp_ms": 1e99}', 400, "is not an integer"),
        ("POST", "/topics/t/records", b'{"values": "paid"}', 400, "is not a list"),
        ("POST", "/topics/t/records", b'{"values": [7]}', 400, r"values\[0\]=7 is not a string"),
        ("POST", "/topics/t/delete-records", b'{"before": {"x": 1}}', 400, "before='x' is not an integer"),
        ("GET", "/topics/t/records?committed_only=1", b"", 400, "not true or false"),
        ("GET", "/groups/g/topics/t?timeout_s=soon", b"", 400, "not a number"),
    ],
)
def test_wrong_requests_are_refused_with_the_reason(
    method: str, target: str, body: bytes, status: int, reason: str
) -> None:
    with pytest.raises(HttpError, match=reason) as refused:
        ROUTES.find(method, target, body)
    assert refused.value.status == status


def test_arguments_have_the_declared_types() -> None:
    target = "/topics/a%2Fb/records?count=2&timeout_s=1.5&committed_only=true"
    assert ROUTES.find("GET", target, b"")[1] == {
        "topic": "a/b",
        "count": 2,
        "timeout_s": 1.5,
        "committed_only": True,
    }
    body = b'{"before": {"0": 7}}'
    assert ROUTES.find("POST", "/topics/t/delete-records", body)[1] == {"topic": "t", "before": {0: 7}}
    body = b'{"api": "Fetch", "node": null, "delay_s": 1, "probability": 0.5}'
    assert ROUTES.find("POST", "/faults", body)[1] == {
        "api": "Fetch",
        "node": None,
        "delay_s": 1,
        "probability": 0.5,
    }


def produced(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    errors: list[Any] = []
    producer.produce(topic, b"paid", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    if errors[0] is not None:
        raise KafkaException(errors[0])


@pytest.mark.slow
def test_a_client_sees_a_fault_until_it_is_healed(call: Call) -> None:
    _, told = call("GET", "/brokers")
    _, made = call("POST", "/topics", {"prefix": "orders", "partitions": 1})
    topic = made["topic"]
    status, fault = call("POST", "/faults", {"api": "Produce", "error": "TOPIC_AUTHORIZATION_FAILED", "topic": topic})
    assert (status, fault["hits"]) == (200, 0)
    with pytest.raises(KafkaException):
        produced(told["bootstrap"], topic)
    assert call("GET", f"/faults/{fault['id']}?count=1")[1]["hits"] == 1
    status, refused = call("GET", f"/faults/{fault['id']}?count=2&timeout_s=0.05")
    assert (status, refused["error"]) == (409, "the fault was hit 1 times within 0.05 s, not 2")
    assert call("DELETE", f"/faults/{fault['id']}") == (200, {"hits": 1})
    produced(told["bootstrap"], topic)
    assert [each["value"] for each in call("GET", f"/topics/{topic}/records?count=1")[1]["records"]] == ["paid"]
    assert call("GET", f"/faults/{fault['id']}")[0] == 404


@pytest.mark.slow
def test_data_survives_a_kill_and_expires_with_the_clock(call: Call) -> None:
    topic = call("POST", "/topics", {"partitions": 1, "config": {"retention.ms": 86_400_000}})[1]["topic"]
    body = {"values": ["1", "2"], "key": "7", "headers": {"a": "b"}}
    assert call("POST", f"/topics/{topic}/records", body) == (200, {})
    assert call("POST", "/brokers/1/kill") == (200, {})
    assert call("GET", "/brokers")[1]["brokers"][0]["running"] is False
    assert call("POST", "/clock/advance", {"by": "1d"})[0] == 409
    assert call("POST", "/brokers/1/start") == (200, {})
    (first, _) = call("GET", f"/topics/{topic}/records")[1]["records"]
    assert (first["key"], first["value"], first["headers"]) == ("7", "1", [{"key": "a", "value": "b"}])
    assert call("POST", "/clock/advance", {"by": "2d"})[1]["ahead_ms"] >= 2 * 86_400_000
    assert call("GET", f"/topics/{topic}/records")[1] == {"records": []}


@pytest.mark.slow
def test_recorded_requests_have_their_fields(call: Call) -> None:
    bootstrap = call("GET", "/brokers")[1]["bootstrap"]
    recording = call("POST", "/recordings")[1]["id"]
    topic = call("POST", "/topics", {"partitions": 1})[1]["topic"]
    produced(bootstrap, topic)
    told = call("GET", f"/recordings/{recording}/requests?api=Produce&topic={topic}")[1]
    (request,) = told["requests"]
    assert (request["fields"]["acks"], request["errors"], request["topics"]) == (-1, [], [topic])
    assert "Produce" in told["table"]
    status, refused = call("GET", f"/recordings/{recording}/requests?api=Produc")
    assert (status, "Produce" in refused["error"]) == (400, True)


@pytest.mark.slow
def test_every_route_answers_even_without_arguments(call: Call) -> None:
    """An answer is JSON with a status for the client's side; no call may break."""
    for route in ROUTES:
        status, told = call(route.method, route.path.replace("{name}", "slow_disk").replace("{", "").replace("}", ""))
        assert status in (200, 400, 404, 409), route
        assert (status == 200) is ("error" not in told), route
        path = route.path.replace("{name}", "fine").replace("{node}", "7").replace("{partition}", "0")
        status, told = call(route.method, path.replace("{", "").replace("}", ""), {})
        assert status in (200, 400, 404, 409), route
        assert call("GET", "/brokers")[0] == 200


@pytest.mark.slow
def test_what_is_kept_has_limits(call: Call) -> None:
    for _ in range(FAULTS_MAX):
        assert call("POST", "/faults", {"api": "Fetch", "delay_s": 0.1})[0] == 200
    status, told = call("POST", "/faults", {"api": "Fetch", "delay_s": 0.1})
    assert (status, "heal some" in told["error"]) == (409, True)
    assert len(call("GET", "/faults")[1]["faults"]) == FAULTS_MAX
    statuses = [call("POST", "/recordings")[0] for _ in range(TAPES_MAX + 1)]
    assert statuses == [200] * TAPES_MAX + [400]
    assert call("POST", "/topics", b" " * BODY_BYTES_MAX)[0] == 200
    assert call("GET", "/topics/t/records?count=1&timeout_s=1e9")[0] == 400


@pytest.mark.slow
def test_a_body_that_is_too_large_or_has_no_length_is_refused(call: Call) -> None:
    assert call("POST", "/topics", None, {"Content-Length": str(BODY_BYTES_MAX + 1)})[0] == 413
    assert call("POST", "/topics", None, {"Content-Length": "9" * 5000})[0] == 400
    assert call("POST", "/topics", None, {"Content-Length": "-1"})[0] == 400
    assert call("POST", "/topics", None, {"Transfer-Encoding": "chunked"})[0] == 411


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers", [{"Host": "rebound.example"}, {"Origin": "https://elsewhere.example"}, {"Origin": "null"}]
)
def test_pages_of_other_sites_are_refused(call: Call, headers: dict[str, str]) -> None:
    status, told = call("POST", "/reset", {}, headers)
    assert (status, "localhost" in told["error"]) == (403, True)


@pytest.mark.slow
def test_more_connections_than_the_limit_are_closed(server: ControlServer, call: Call) -> None:
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    held = [socket.create_connection(address, WAIT_S) for _ in range(CONNECTIONS_MAX)]
    with socket.create_connection(address, WAIT_S) as one_more:
        assert one_more.recv(1) == b""
    for each in held:
        each.close()
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            assert call("GET", "/brokers")[0] == 200
            break
        except (OSError, http.client.HTTPException):  # the server has yet to notice that they are closed
            assert time.monotonic() < deadline


def started(ready_file: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """The program, and the content of its ready line."""
    command = [sys.executable, "-P", "-m", "kpybroker", "dev", "--control", "--port", "0", "--control-port", "0"]
    process = subprocess.Popen(
        [*command, "--ready-file", str(ready_file), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    facts = dict(part.partition("=")[::2] for part in process.stdout.readline().split()[2:])
    assert json.loads(ready_file.read_text()) == facts
    return process, facts


def is_served(bootstrap: str) -> bool:
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    try:
        socket.create_connection((host, int(port)), WAIT_S).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_survives_the_program(tmp_path: Path, end: signal.Signals) -> None:
    process, facts = started(tmp_path / "ready", "--set", "num.partitions=3")
    call = caller(facts["control"])
    topic = call("POST", "/topics")[1]["topic"]
    assert call("POST", f"/topics/{topic}/records", {"values": ["1"], "partition": 2}) == (200, {})
    os.kill(process.pid, end)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (-9 if end is signal.SIGKILL else 0, "", "")
    deadline = time.monotonic() + WAIT_S
    while is_served(facts["bootstrap"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (tmp_path / "ready").exists() is (end is signal.SIGKILL)


@pytest.mark.slow
def test_three_brokers_are_controlled_one_by_one(tmp_path: Path) -> None:
    process, facts = started(tmp_path / "ready", "--brokers", "3")
    with process:
        call = caller(facts["control"])
        assert len(facts["bootstrap"].split(",")) == 3
        lost = call("POST", "/lose-controller")[1]
        assert [each["running"] for each in call("GET", "/brokers")[1]["brokers"]].count(False) == 1
        assert call("GET", "/controller")[1]["node"] != lost["node"]
        assert call("DELETE", f"/faults/{lost['id']}") == (200, {})
        assert all(each["running"] for each in call("GET", "/brokers")[1]["brokers"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", EXCLUSIVE["control"])
def test_options_that_contradict_are_refused(name: str, tmp_path: Path) -> None:
    option = "--" + name.replace("_", "-")
    value = {"data_dir": [str(tmp_path)], "http_port": ["9999"]}.get(name, [])
    command = [sys.executable, "-m", "kpybroker", "dev", "--control", option, *value]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"--control and {option} cannot be used together" in ended.stderr


@pytest.mark.slow
def test_a_port_in_use_and_a_wrong_setting_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, reason in (
            (["--port", "0", "--control-port", port], "choose another --control-port"),
            (["--port", port, "--control-port", "0"], "choose another"),
            (["--port", "0", "--control-port", "0", "--set", "num.partitons=3"], "did you mean num.partitions"),
        ):
            command = [sys.executable, "-m", "kpybroker", "dev", "--control", *options]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
            assert (ended.returncode, ended.stdout) == (2, "")
            assert reason in ended.stderr
            assert ended.stderr.count("\n") == 1
