"""Tests that the manifests in deploy/kubernetes-secure are valid, and that three nodes run with their settings and with
the files that a kubelet mounts."""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jsonpatch
import kubernetes_validate
import pytest
import yaml
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from cryptography import x509

from kpybroker.config import parse_config, parse_properties, parse_setting
from oracle.target import steady_port
from tests.certificates import LOCAL, Signed, name_of, sign
from tests.test_deploy import DEPLOY, KUBERNETES, MANIFESTS, expanded

SECURE = DEPLOY / "kubernetes-secure"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((SECURE / "kustomization.yaml").read_text())
NAMESPACE = KUSTOMIZATION["namespace"]
CERTIFICATES = [
    each for each in yaml.safe_load_all((SECURE / "certificates.yaml").read_text()) if each["kind"] == "Certificate"
]
ETC = "/etc/kpybroker"
LISTENERS = ("CLIENTS", "BROKERS", "CONTROLLER")
WAIT_S = 60
PODS = (0, 1, 2)


def patched(kind: str, name: str) -> dict[str, Any]:
    """A manifest of ../kubernetes with the changes of the kustomization."""
    (found,) = (each for each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name))
    for patch in KUSTOMIZATION["patches"]:
        if (patch["target"]["kind"], patch["target"]["name"]) == (kind, name):
            found = jsonpatch.apply_patch(found, yaml.safe_load((SECURE / patch["path"]).read_text()))
    return found


STATEFUL = patched("StatefulSet", "kpybroker")
(CONTAINER,) = STATEFUL["spec"]["template"]["spec"]["containers"]
HEADLESS = patched("Service", "kpybroker-headless")


def environment(pod: int) -> dict[str, str]:
    """The environment variables of a pod, with the values of the downward API."""
    facts = {"POD_NAME": f"kpybroker-{pod}", "NAMESPACE": NAMESPACE, "NODE_ID": str(pod)}
    return {row["name"]: facts[row["name"]] for row in CONTAINER["env"] if "valueFrom" in row}


def settings(pod: int) -> dict[str, str]:
    """The settings with which a pod is started: the properties of the ConfigMap, overridden by the pod's own
    arguments."""
    command, config, *rest = (expanded(argument, environment(pod)) for argument in CONTAINER["args"])
    assert (command, config) == ("serve", f"--config={ETC}/settings/server.properties")
    own = dict(parse_setting(argument.removeprefix("--set=")) for argument in rest)
    return {**parse_properties((SECURE / "server.properties").read_text(), "server.properties"), **own}


def covers(pattern: str, host: str) -> bool:
    """Whether a name in a certificate is for a host: `*` stands for one label."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[^.]+"), host) is not None


def test_the_patched_manifests_are_valid() -> None:
    for manifest in (STATEFUL, HEADLESS):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert all(ports[port["targetPort"]] == port["port"] for port in HEADLESS["spec"]["ports"])
    assert set(KUSTOMIZATION["configMapGenerator"][0]["files"]) == {"server.properties", "admin.properties"}


def test_certificates_are_for_the_names_that_nodes_have() -> None:
    (nodes,) = (each for each in CERTIFICATES if not each["spec"].get("isCA"))
    names = nodes["spec"]["dnsNames"]
    for pod in PODS:
        config = parse_config(settings(pod))
        hosts = [each.host for each in (*config.advertised_listeners, *config.controller_quorum_voters)]
        assert all(any(covers(name, host) for name in names) for host in hosts), hosts
        assert f"User:CN={nodes['spec']['commonName']}" in settings(pod)["super.users"].split(";")
    admin = parse_properties((SECURE / "admin.properties").read_text(), "admin.properties")
    assert admin["bootstrap.servers"] == f"{HEADLESS['metadata']['name']}:9094"
    assert HEADLESS["metadata"]["name"] in names
    assert {"server auth", "client auth"} <= set(nodes["spec"]["usages"])


def test_files_are_mounted_where_settings_look_for_them() -> None:
    volumes = {each["name"]: each for each in STATEFUL["spec"]["template"]["spec"]["volumes"]}
    mounts = {each["mountPath"]: volumes.get(each["name"]) for each in CONTAINER["volumeMounts"]}
    (nodes,) = (each for each in CERTIFICATES if not each["spec"].get("isCA"))
    assert mounts[f"{ETC}/tls"] == {
        "name": "tls",
        "secret": {"secretName": nodes["spec"]["secretName"], "defaultMode": 0o440},
    }
    assert mounts[f"{ETC}/settings"] is not None
    assert {"type": "CombinedPEM"} in nodes["spec"]["additionalOutputFormats"]
    (variable,) = (row["value"] for row in CONTAINER["env"] if row["name"] == "KPYBROKER_COMMAND_CONFIG")
    assert variable == f"{ETC}/settings/admin.properties"
    for file in ("server.properties", "admin.properties"):
        found = parse_properties((SECURE / file).read_text(), file)
        assert found["ssl.keystore.location"] == f"{ETC}/tls/tls-combined.pem"
        assert found["ssl.truststore.location"] == f"{ETC}/tls/ca.crt"
        assert not any("password" in value for value in found.values())


class Mounted:
    """The folder of a Secret: the files are links into `..data`, which is itself a link that a kubelet replaces
    atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._times = 0

    def write(self, files: dict[str, str]) -> None:
        """Mount these files."""
        self._times += 1
        stamped = self.folder / f"..{self._times}"
        stamped.mkdir()
        for name, text in files.items():
            (stamped / name).write_text(text)
            (stamped / name).chmod(0o440)
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(Path("..data", name))
        new = self.folder / "..data_tmp"
        new.symlink_to(stamped.name)
        new.replace(self.folder / "..data")


def secret(authority: Signed, *, days: int) -> dict[str, str]:
    """The files of a Secret as cert-manager writes them, for nodes that are all on this machine."""
    name = x509.Name([each for each in name_of("kpybroker") if each.oid == x509.NameOID.COMMON_NAME])
    signed = sign("kpybroker", authority, name=name, hosts=LOCAL, days=days)
    return {"ca.crt": authority.chain_pem, "tls-combined.pem": signed.key_pem() + signed.chain_pem}


@contextmanager
def nodes(folder: Path) -> Iterator[dict[str, list[int]]]:
    """The ports, by listener, of three nodes with the settings of the manifests, but with local hosts, ports and
    folders."""
    ports = {name: [steady_port() for _ in PODS] for name in LISTENERS}
    voters = ",".join(f"{pod}@127.0.0.1:{ports['CONTROLLER'][pod]}" for pod in PODS)
    with ExitStack() as stack:
        for pod in PODS:
            here = {name: f"{name}://127.0.0.1:{ports[name][pod]}" for name in LISTENERS}
            given = settings(pod) | {
                "listeners": ",".join(here.values()),
                "advertised.listeners": f"{here['CLIENTS']},{here['BROKERS']}",
                "controller.quorum.voters": voters,
                "log.dirs": str(folder / f"data-{pod}"),
                "ssl.keystore.location": str(folder / "tls" / "tls-combined.pem"),
                "ssl.truststore.location": str(folder / "tls" / "ca.crt"),
                "kpybroker.http.port": "0",
                "kpybroker.http.host": "127.0.0.1",
            }
            file = folder / f"{pod}.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
            command = [sys.executable, "-m", "kpybroker", "serve", "--config", str(file)]
            log = stack.enter_context((folder / f"{pod}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGTERM)
        yield ports


def expires(port: int, authority: Path) -> str:
    """The expiry time of the certificate that a listener presents."""
    context = ssl.create_default_context(cafile=authority)
    pem = ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(authority), timeout=WAIT_S)
    assert context.verify_mode == ssl.CERT_REQUIRED
    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc.isoformat()


@pytest.mark.slow
def test_three_nodes_run_with_these_settings(tmp_path: Path) -> None:
    authority, mounted = sign("authority"), Mounted(tmp_path / "tls")
    mounted.write(secret(authority, days=10))
    with nodes(tmp_path) as ports:
        admin = parse_properties((SECURE / "admin.properties").read_text(), "admin.properties") | {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports["BROKERS"]),
            "ssl.keystore.location": str(tmp_path / "tls" / "tls-combined.pem"),
            "ssl.truststore.location": str(tmp_path / "tls" / "ca.crt"),
        }
        (tmp_path / "admin.properties").write_text("".join(f"{name}={value}\n" for name, value in admin.items()))

        def command(*words: str, given: str = "") -> None:
            config = ("--command-config", str(tmp_path / "admin.properties"))
            run = [sys.executable, "-m", "kpybroker", *config, *words]
            done = subprocess.run(run, input=given, capture_output=True, text=True, timeout=2 * WAIT_S)
            assert done.returncode == 0, done.stderr

        command("wait", "--brokers", "3", "--timeout", str(WAIT_S))
        command("users", "add", "ann", given="of ann")
        command("acls", "allow", "ann", "produce", "--topic", "orders")
        ann = {
            "bootstrap.servers": f"localhost:{ports['CLIENTS'][0]}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(tmp_path / "tls" / "ca.crt"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "ann",
            "sasl.password": "of ann",
            "log_level": 0,
        }
        failed: list[Any] = []
        producer = Producer(ann)
        producer.produce("orders", b"1", on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(WAIT_S) == 0
        assert failed == []
        with pytest.raises(KafkaException):
            AdminClient({**ann, "sasl.password": "guessed"}).list_topics(timeout=10)
        before = expires(ports["CLIENTS"][0], tmp_path / "tls" / "ca.crt")
        mounted.write(secret(authority, days=9))
        command("wait", "--brokers", "3", "--timeout", str(WAIT_S))
        while (shown := expires(ports["CLIENTS"][0], tmp_path / "tls" / "ca.crt")) == before:
            pass  # a node checks its files at most once a second
        assert shown < before


def test_the_kustomizations_name_every_file() -> None:
    plain = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    named = {*plain["resources"], "kustomization.yaml"}
    assert named == {each.name for each in (DEPLOY / "kubernetes").iterdir()}
    named = {*(patch["path"] for patch in KUSTOMIZATION["patches"]), *KUSTOMIZATION["configMapGenerator"][0]["files"]}
    assert named | {"certificates.yaml", "kustomization.yaml"} == {each.name for each in SECURE.iterdir()}
