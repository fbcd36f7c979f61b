"""`kpybroker storage format` and `info`, with the output of kafka-storage of Apache Kafka 4.3.1."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kpybroker.cli.scram_options import scram_records
from kpybroker.client.client import CommandFailed
from kpybroker.config import BrokerConfig, parse_config
from kpybroker.config.advertised import with_hosts
from kpybroker.controller.features import OF_THE_QUORUM, supported_features
from kpybroker.errors import ConfigError, Damage
from kpybroker.raft.log.identity import FINALIZED_AT_FORMAT, wanted_format
from kpybroker.storage.dirs.directory import open_directories, read_properties
from kpybroker.storage.dirs.formatting import META_PROPERTIES, Format
from kpybroker.world import World
from kpybroker.world.real import real_world

RELEASES = ("4.3-IV0", "4.3")
METADATA_VERSION = "metadata.version"
INITIAL, CLUSTER = "kpybroker.initial.controllers", "kpybroker.cluster.id"


class FormatOptions(NamedTuple):
    """The options of `format`."""

    cluster_id: str
    standalone: bool = False
    none: bool = False
    initial: str | None = None
    release: str | None = None
    features: tuple[str, ...] = ()
    ignores_formatted: bool = False
    scram: tuple[str, ...] = ()


def format_directories(properties: Mapping[str, str], source: str, options: FormatOptions) -> Iterator[str]:
    """Format the empty directories; yields the lines to print.

    Raises CommandFailed, or ConfigError for invalid settings. In both cases nothing was formatted.
    """
    world = real_world()
    config = with_hosts(_configured(properties, source, options), world.network.host_name)
    wanted = wanted_format(config)._replace(
        features=_levels(options, config),
        credentials=scram_records(options.scram),
    )
    paths = list(dict.fromkeys((config.metadata_log_dir, *config.log_dirs)))
    formatted = [path for path in paths if world.disk.exists(f"{path}/{META_PROPERTIES}")]
    if formatted and not options.ignores_formatted:
        raise CommandFailed(
            f"log directory {formatted[0]} is already formatted; --ignore-formatted skips it and formats the others"
        )
    try:
        opened = open_directories(world, paths, config.node_id, wanted)
    except ConfigError as refusal:
        raise CommandFailed(str(refusal)) from refusal
    for directory in opened:
        world.disk.close(directory.lock)
    if len(formatted) == len(paths):
        yield "All of the log directories are already formatted."
    for path in paths:
        if path not in formatted:
            kind = _kind(config, wanted) if path == config.metadata_log_dir else "data directory"
            yield f"Formatting {kind} {path} with metadata.version {RELEASES[0]}."


def _kind(config: BrokerConfig, wanted: Format) -> str:
    if wanted.voter is not None or config.node_id in {node_id for node_id, _, _ in wanted.voters}:
        return "dynamic metadata voter directory"
    return "dynamic metadata directory" if wanted.voters else "metadata directory"


def _configured(properties: Mapping[str, str], source: str, options: FormatOptions) -> BrokerConfig:
    """The node's settings, with the initial voters that the options name."""
    if options.standalone + options.none + (options.initial is not None) > 1:
        raise CommandFailed("--standalone, --no-initial-controllers and --initial-controllers cannot be used together")
    settings = {**properties, CLUSTER: options.cluster_id}
    initial = "standalone" if options.standalone else "none" if options.none else options.initial
    config = parse_config(settings, source)
    is_controller = "controller" in config.process_roles
    if config.controller_quorum_voters:
        if options.standalone or options.initial is not None:
            raise CommandFailed(
                "controller.quorum.voters and --standalone or --initial-controllers both name the voters; remove the "
                "setting and set controller.quorum.bootstrap.servers if the quorum is to change its voters"
            )
        return config
    if is_controller and initial is None and INITIAL not in properties:
        raise CommandFailed(
            "controller.quorum.voters is not set on this controller; name the initial voters with --standalone, "
            "--initial-controllers or --no-initial-controllers"
        )
    if options.standalone and not is_controller:
        raise CommandFailed("--standalone is for controllers, but process.roles has no controller")
    return config if initial is None else parse_config({**settings, INITIAL: initial}, source)


def _levels(options: FormatOptions, config: BrokerConfig) -> dict[str, int]:
    """The initial feature levels of a new cluster."""
    if options.release is not None and options.release not in RELEASES:
        raise CommandFailed(f"--release-version {options.release}: only {RELEASES[0]} is supported")
    is_dynamic = not config.controller_quorum_voters
    known = supported_features(config)
    levels = dict(FINALIZED_AT_FORMAT)
    for text in options.features:
        name, equals, level = text.partition("=")
        if not equals or not level.isdecimal():
            raise CommandFailed(f"--feature {text}: write NAME=LEVEL, such as group.version=1")
        if name not in known:
            raise CommandFailed(f"--feature {text}: there is no such feature; known are {', '.join(sorted(known))}")
        low, high = known[name]
        if not low <= int(level) <= high:
            raise CommandFailed(f"--feature {text}: {name} is supported {_span(low, high)}")
        if name == OF_THE_QUORUM:
            if int(level) != is_dynamic:
                raise CommandFailed(
                    f"--feature {text}: the level is 0 with controller.quorum.voters, else 1; omit the option"
                )
            continue
        levels[name] = int(level)
    return {name: level for name, level in levels.items() if level}


def _span(low: int, high: int) -> str:
    return f"at level {low} only" if low == high else f"from level {low} to {high}"


def describe(properties: Mapping[str, str], source: str) -> tuple[list[str], list[str]]:
    """The output of kafka-storage info: all lines, and those lines that report problems."""
    config = parse_config(properties, source)
    world = real_world()
    found: list[str] = []
    problems: list[str] = []
    metas: list[dict[str, str]] = []
    for path in sorted({config.metadata_log_dir, *config.log_dirs}):
        if not os.path.isdir(path):
            problems.append(f"{path} {'is not a directory' if os.path.exists(path) else 'does not exist'}")
            continue
        found.append(path)
        try:
            metas.append(_meta_of(world, path))
        except FileNotFoundError:
            problems.append(f"{path} is not formatted.")
        except (OSError, Damage) as error:
            problems.append(f"Error loading {path}/{META_PROPERTIES}: {error}")
    for name, text in (("cluster.id", "cluster IDs"), ("node.id", "node IDs")):
        if len({meta.get(name) for meta in metas}) > 1:
            problems.append(f"Mismatched {text} between storage directories.")
    lines = _listed(found, "Found log director", ("y:", "ies:"))
    if metas:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(metas[0].items()))
        lines += [f"Found metadata: {{{shown}}}", ""]
    return lines + _listed(problems, "Found problem", (":", "s:")), problems


def _listed(rows: list[str], title: str, endings: tuple[str, str]) -> list[str]:
    return [title + endings[len(rows) > 1], *(f"  {row}" for row in rows), ""] if rows else []


def _meta_of(world: World, path: str) -> dict[str, str]:
    """The content of a directory's meta.properties. Raises FileNotFoundError, OSError, Damage."""
    meta = read_properties(world, f"{path}/{META_PROPERTIES}")
    if meta.get("version") != "1":
        raise Damage(f"Unknown meta.properties version number {meta.get('version')}")
    return meta
