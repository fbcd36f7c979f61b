"""Tests that the files in deploy/ are valid according to the schemas of Compose and Kubernetes, and consistent: names
resolve, and settings exist."""

from __future__ import annotations

import copy
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from compose_spec import ComposeSpecification, Service

from kpybroker.cli.environment import read_environment, setting_name
from kpybroker.config import BrokerConfig, parse_config, parse_setting
from kpybroker.config.broker_keys import BROKER_KEYS
from kpybroker.config.properties import check_names, parse_properties
from kpybroker.server.metrics.endpoints import PATHS

DEPLOY = Path(__file__).parent.parent / "deploy"
MANIFESTS = [
    manifest
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    if file.name != "kustomization.yaml"
    for manifest in yaml.safe_load_all(file.read_text())
]
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
ALONE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose-one.yaml").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
NAMESPACE = "streams"
DOMAIN = "svc.cluster.local"
KUBERNETES = "1.28"
"""The oldest version of Kubernetes that the manifests support."""


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in MANIFESTS if manifest["kind"] == kind]


def config_of(arguments: list[str]) -> BrokerConfig:
    """The config that `kpybroker serve --set=...` builds from these arguments."""
    assert arguments[0] == "serve"
    assert all(argument.startswith("--set=") for argument in arguments[1:]), arguments
    return parse_config(dict(parse_setting(argument.removeprefix("--set=")) for argument in arguments[1:]))


def image_environment() -> dict[str, str]:
    """The environment that the image sets."""
    return dict(re.findall(r"(KAFKA_\w+)=(\S+)", DOCKERFILE))


def config_in(service: dict[str, Any]) -> BrokerConfig:
    """The config that the image's command builds from a service's environment."""
    environment = {name: str(value) for name, value in service["environment"].items()}
    return parse_config(read_environment({**image_environment(), **environment}))


def check_is_one_cluster(configs: list[BrokerConfig]) -> None:
    """Check that all nodes name the same voters, and that each node is a voter under its own name."""
    assert len({config.controller_quorum_voters for config in configs}) == 1
    assert sorted(config.node_id for config in configs) == sorted(
        v.node_id for v in configs[0].controller_quorum_voters
    )
    for config in configs:
        assert config.process_roles == ("broker", "controller")
        assert (config.default_replication_factor, config.log_settings().min_insync_replicas) == (3, 2)
        assert config.http_host == "0.0.0.0", "probes and scrapes come from elsewhere"


# ---- Kubernetes


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")
def test_manifests_are_valid(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_schema_detects_mistakes() -> None:
    (budget,) = of_kind("PodDisruptionBudget")
    wrong = {**budget, "spec": {**budget["spec"], "maxUnavailabel": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def pods() -> list[dict[str, str]]:
    """The environment of each pod of the StatefulSet, with the values of the downward API."""
    (stateful,) = of_kind("StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    found = []
    for index in range(stateful["spec"]["replicas"]):
        facts = {
            "metadata.name": f"{stateful['metadata']['name']}-{index}",
            "metadata.namespace": NAMESPACE,
            "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
        }
        found.append({row["name"]: facts[row["valueFrom"]["fieldRef"]["fieldPath"]] for row in container["env"]})
    return found


def expanded(argument: str, environment: dict[str, str]) -> str:
    """The argument with $(NAME) replaced, as the kubelet does."""
    return re.sub(r"\$\((\w+)\)", lambda variable: environment[variable[1]], argument)


def test_nodes_listen_at_the_addresses_of_the_headless_service() -> None:
    """The advertised address of a pod and the addresses of the voters are the DNS names of the pods in the service."""
    (stateful,) = of_kind("StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    environments = pods()
    configs = [
        config_of([expanded(argument, environment) for argument in container["args"]]) for environment in environments
    ]
    check_is_one_cluster(configs)
    service = stateful["spec"]["serviceName"]
    for env, config in zip(environments, configs, strict=True):
        name = f"{env['POD_NAME']}.{service}.{NAMESPACE}.{DOMAIN}"
        assert str(config.node_id) == env["NODE_ID"]
        assert [(each.host, each.port) for each in config.advertised_listeners] == [(name, 9092)]
        (voter,) = [voter for voter in config.controller_quorum_voters if voter.node_id == config.node_id]
        assert (voter.host, voter.port) == (name, config.controller_listeners[0].port)
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert all(any(path.startswith(mount) for mount in mounts) for path in configs[0].log_dirs)


def test_services_and_budget_select_the_pods() -> None:
    (stateful,) = of_kind("StatefulSet")
    template = stateful["spec"]["template"]
    labels = template["metadata"]["labels"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    services = {service["metadata"]["name"]: service["spec"] for service in of_kind("Service")}
    headless = services[stateful["spec"]["serviceName"]]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"], "nodes look for each other before they are ready"
    for service in services.values():
        assert service["selector"].items() <= labels.items()
        assert all(ports[port["targetPort"]] == port["port"] for port in service["ports"])
    (budget,) = of_kind("PodDisruptionBudget")
    for selector in (budget["spec"]["selector"], stateful["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert budget["spec"]["maxUnavailable"] == 1


def test_probes_request_served_paths() -> None:
    (stateful,) = of_kind("StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    config = config_of([expanded(argument, pods()[0]) for argument in container["args"]])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    wanted = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    for probe, path in wanted.items():
        asked = container[probe]["httpGet"]
        assert (asked["path"], ports[asked["port"]]) == (path, config.http_port)
        assert path in PATHS
    annotations = stateful["spec"]["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) == config.http_port


def in_the_runbook(language: str) -> list[str]:
    """The blocks of the runbook in this language."""
    page = (DEPLOY.parent / "docs" / "runbook.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def patched(manifest: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """The manifest with the `add` operations of a JSON patch (RFC 6902) applied."""
    found = copy.deepcopy(manifest)
    for step in patch:
        assert step["op"] == "add", "this test knows no other one"
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        at: Any = found
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if isinstance(at, list):
            assert last == "-"
            at.append(step["value"])
        else:
            assert last not in at
            at[last] = step["value"]
    return found


def test_the_patch_of_the_runbook_gives_tls_and_a_token_to_the_manifest() -> None:
    scrape, patch = (yaml.safe_load(block) for block in in_the_runbook("yaml"))
    stateful = patched(of_kind("StatefulSet")[0], patch)
    kubernetes_validate.validate(stateful, KUBERNETES, strict=True)
    spec = stateful["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    config = config_of([expanded(argument, pods()[0]) for argument in container["args"]])
    (volume,) = spec["volumes"]
    assert volume["secret"]["defaultMode"] & 0o007 == 0, "a file that everybody may read is refused"
    (mounted,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == volume["name"]]
    assert config.http_token_file is not None
    store = config.static[f"listener.name.{str(config.http_tls_listener).lower()}.ssl.keystore.location"]
    assert {Path(config.http_token_file).parent, Path(store).parent} == {Path(mounted)}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["scheme"] == "HTTPS"
        assert asked["path"] not in config.http_token_paths, "a kubelet has no token"
    (job,) = scrape["scrape_configs"]
    assert job["metrics_path"] in config.http_token_paths
    assert (job["scheme"], job["authorization"]["type"]) == ("https", "Bearer")
    (settings,) = in_the_runbook("properties")
    written = parse_properties(settings, "the runbook")
    check_names(written, "the runbook")
    assert {name for name in written if name.startswith("kpybroker.http.t")} == {
        name for name in config.static if name.startswith("kpybroker.http.t")
    }


# ---- Compose


def unknown_to_compose(file: dict[str, Any]) -> set[str]:
    """Keys that the Compose specification does not have. Raises ValueError for values of a wrong type."""
    ComposeSpecification.model_validate(file)
    unknown = {key for key in file if not key.startswith("x-")} - _keys(ComposeSpecification)
    for service in file["services"].values():
        unknown |= set(service) - _keys(Service)
    return unknown


def _keys(model: Any) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_the_compose_files_are_valid() -> None:
    assert unknown_to_compose(COMPOSE) == unknown_to_compose(ALONE) == set()
    one = COMPOSE["services"]["kpybroker-1"]
    assert unknown_to_compose({**COMPOSE, "services": {"a": {**one, "restrat": "no"}}}) == {"restrat"}
    with pytest.raises(ValueError, match="ports"):
        unknown_to_compose({**COMPOSE, "services": {"a": {**one, "ports": 9092}}})


def test_the_compose_services_are_one_cluster() -> None:
    services = COMPOSE["services"]
    configs = {name: config_in(service) for name, service in services.items()}
    check_is_one_cluster(list(configs.values()))
    published = []
    for name, config in configs.items():
        service = services[name]
        assert service["hostname"] == name
        (voter,) = [voter for voter in config.controller_quorum_voters if voter.node_id == config.node_id]
        assert (voter.host, voter.port) == (name, config.controller_listeners[0].port)
        ports = dict(text.split(":") for text in service["ports"])
        published += list(ports)
        inside, outside = config.advertised_listeners
        assert (inside.host, inside.name) == (name, config.inter_broker_listener_name)
        assert outside.host == "localhost"
        listening = {endpoint.name: endpoint.port for endpoint in config.listeners}
        assert ports[str(outside.port)] == str(listening[outside.name])
        assert str(config.http_port) in ports.values()
        (volume,) = service["volumes"]
        assert volume == f"{name}:{config.log_dirs[0]}"
        assert name in COMPOSE["volumes"]
    assert len(set(published)) == len(published)


def test_the_single_compose_service_is_reachable_from_the_host_and_from_containers() -> None:
    (name,) = ALONE["services"]
    service = ALONE["services"][name]
    config = config_in(service)
    (voter,) = config.controller_quorum_voters
    assert (voter.node_id, voter.host, voter.port) == (config.node_id, name, config.controller_listeners[0].port)
    listening = {endpoint.name: (endpoint.host, endpoint.port) for endpoint in config.listeners}
    outside, inside = config.advertised_listeners
    assert (outside.host, inside.host) == ("localhost", name)
    ports = dict(text.split(":") for text in service["ports"])
    for one in (outside, inside):
        assert listening[one.name] == ("", one.port), "on all addresses of the container"
    assert ports[str(outside.port)] == str(outside.port)
    assert str(inside.port) not in ports, "what is told to containers is for them alone"
    assert service["volumes"] == [f"kafka:{config.log_dirs[0]}"]


# ---- the page about it


PAGE = (DEPLOY.parent / "docs" / "containers.md").read_text()


def test_the_page_names_existing_files_and_settings() -> None:
    for file in re.findall(r"deploy/[\w./-]+", PAGE):
        assert (DEPLOY.parent / file).exists(), file
    pairs = re.findall(r"`(KAFKA_\w+)` is `([\w.]+)`", PAGE)
    assert len(pairs) == 2
    for variable, name in pairs:
        assert setting_name(variable) == name
        assert name in BROKER_KEYS


def test_the_page_explains_the_listeners_that_the_compose_file_has() -> None:
    (service,) = ALONE["services"].values()
    explained = set(re.findall(r"`(\w+://\w+:\d+)`", PAGE))
    assert explained == set(service["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(","))
    (lines,) = re.findall(r"^(1\. .*\n(?:\d+\. .*\n)+)", PAGE, re.MULTILINE)
    assert len(lines.splitlines()) == 10


# ---- the image


def test_the_image_starts_a_broker() -> None:
    """The files that the image copies exist, and kpybroker accepts its command."""
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((DEPLOY.parent / name).exists() for name in line.split())
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
    (command,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert (yaml.safe_load(entry), yaml.safe_load(command)) == (["kpybroker"], ["serve", "--from-env"])
    config = parse_config(read_environment(image_environment()))
    exposed = {int(port) for port in re.findall(r"\d+", re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE)[0])}
    assert exposed == {config.listeners[0].port, config.controller_listeners[0].port, config.http_port}
    assert config.log_dirs == (re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)[0],)
    assert re.search(r"^USER (?!0|root)", DOCKERFILE, re.MULTILINE)


def test_the_image_has_a_health_check() -> None:
    (command,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    python, flag, module, path = yaml.safe_load(command)
    assert (python, flag) == ("python", "-m")
    assert find_spec(module) is not None
    assert path in PATHS


def test_the_build_context_has_exactly_the_copied_files() -> None:
    first, *rest = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert first == "*"
    let_in = {line.removeprefix("!") for line in rest if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert let_in == {name for line in copied for name in line.split()}
