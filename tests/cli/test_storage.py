"""`kpybroker storage format`, `info` and `random-uuid`: directories are the same as those of kafka-storage."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kpybroker.cli.scram_options import CREDENTIALS_MAX, scram_records
from kpybroker.client.client import CommandFailed
from kpybroker.config import parse_config
from kpybroker.metadata.scram import record_of
from kpybroker.raft.log.snapshots import Snapshots
from kpybroker.security.scram import ScramMechanism, credential_of
from kpybroker.storage.dirs.directory import decode_id, read_properties
from kpybroker.storage.dirs.formatting import METADATA_DIRECTORY, read_bootstrap
from kpybroker.wire.stored import metadata as stored
from kpybroker.world.real import RealWorld
from tests.cli.shell import Answer, Shell

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
OTHER = "ynxhJI1CSWuYbQP9280hWA"
DIRECTORY_ID = "JEXY6aqzQY-32P5TStzaFg"
DYNAMIC = "controller.quorum.bootstrap.servers=127.0.0.1:9093\n"
STATIC = "controller.quorum.voters=1@127.0.0.1:9093\n"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell without prompts: no command asks for confirmation."""
    return Shell("127.0.0.1:1", monkeypatch)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Path]:
    """A server.properties with directories of these names."""

    def write(more: str = DYNAMIC, names: tuple[str, ...] = ("data",)) -> Path:
        path = tmp_path / "server.properties"
        path.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={','.join(str(tmp_path / name) for name in names)}\n{more}"
        )
        return path

    return write


def formatted(shell: Shell, config: Path, *options: str, cluster: str = CLUSTER) -> Answer:
    return shell("storage", "format", "-t", cluster, "-c", str(config), *options)


def levels(world: RealWorld, path: Path) -> dict[str, int]:
    records = read_bootstrap(world, str(path)) or []
    return {each.name: each.feature_level for each in records if isinstance(each, stored.FeatureLevelRecord)}


@pytest.fixture
def world() -> RealWorld:
    return RealWorld(seed=1)


def test_a_standalone_controller(shell: Shell, settings: Callable[..., Path], tmp_path: Path, world: RealWorld) -> None:
    answer = formatted(shell, settings(), "--standalone")
    data = tmp_path / "data"
    assert (answer.code, answer.out) == (
        0,
        f"Formatting dynamic metadata voter directory {data} with metadata.version 4.3-IV0.\n",
    )
    meta = read_properties(world, f"{data}/meta.properties")
    assert (meta["node.id"], meta["cluster.id"], meta["version"]) == ("1", CLUSTER, "1")
    assert levels(world, data) == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "transaction.version": 2,
    }
    assert (data / METADATA_DIRECTORY / "00000000000000000000-0000000000.checkpoint").exists()


def test_static_voters_need_no_option_and_no_first_checkpoint(
    shell: Shell, settings: Callable[..., Path], tmp_path: Path
) -> None:
    answer = formatted(shell, settings(STATIC))
    assert answer.out == f"Formatting metadata directory {tmp_path}/data with metadata.version 4.3-IV0.\n"
    assert not (tmp_path / "data" / METADATA_DIRECTORY).exists()


def test_initial_voters_get_the_given_directory_ids(
    shell: Shell, settings: Callable[..., Path], tmp_path: Path, world: RealWorld
) -> None:
    voters = f"1@127.0.0.1:9093:{DIRECTORY_ID},2@127.0.0.1:9095:MvDxzVmcRsaTz33bUuRU6A"
    assert formatted(shell, settings(), "-I", voters).code == 0
    assert read_properties(world, f"{tmp_path}/data/meta.properties")["directory.id"] == DIRECTORY_ID
    first = Snapshots(world, _config(settings), f"{tmp_path}/data/{METADATA_DIRECTORY}").load_newest()
    assert first is not None
    (voters_record,) = [message for kind, message in first.control if kind == 6]
    assert [voter.voter_id for voter in voters_record.voters] == [1, 2]


def _config(settings: Callable[..., Path]) -> object:
    from kpybroker.config.property_files import read_properties as read

    return parse_config(read(settings()), "test")


def test_no_initial_controllers(shell: Shell, settings: Callable[..., Path], tmp_path: Path) -> None:
    answer = formatted(shell, settings(), "-N")
    assert answer.out == f"Formatting metadata directory {tmp_path}/data with metadata.version 4.3-IV0.\n"
    assert not (tmp_path / "data" / METADATA_DIRECTORY).exists()


def test_a_formatted_directory_is_not_formatted_again(
    shell: Shell, settings: Callable[..., Path], tmp_path: Path
) -> None:
    config = settings()
    assert formatted(shell, config, "-s").code == 0
    before = contents(tmp_path)
    again = formatted(shell, config, "-s")
    assert (again.code, again.out) == (1, "")
    assert "already formatted; --ignore-formatted" in again.err
    ignored = formatted(shell, config, "-s", "-g")
    assert (ignored.code, ignored.out) == (0, "All of the log directories are already formatted.\n")
    stranger = formatted(shell, config, "-s", "-g", cluster=OTHER)
    assert stranger.code == 1
    assert f"belongs to cluster {CLUSTER}" in stranger.err
    assert contents(tmp_path) == before


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_ignore_formatted_formats_the_others(shell: Shell, settings: Callable[..., Path], tmp_path: Path) -> None:
    assert formatted(shell, settings(), "-s").code == 0
    answer = formatted(shell, settings(names=("data", "second")), "-s", "-g")
    assert answer.out == f"Formatting data directory {tmp_path}/second with metadata.version 4.3-IV0.\n"
    assert not (tmp_path / "second" / METADATA_DIRECTORY).exists()
    told = shell("storage", "info", "-c", str(settings(names=("data", "second"))))
    assert told.code == 0
    assert told.out.startswith(f"Found log directories:\n  {tmp_path}/data\n  {tmp_path}/second\n\nFound metadata: {{")


@pytest.mark.parametrize(
    ("more", "options", "said"),
    [
        (DYNAMIC, (), "--standalone, --initial-controllers or --no-initial-controllers"),
        (DYNAMIC, ("-s", "-N"), "cannot be used together"),
        (STATIC, ("-s",), "both name the voters"),
        (STATIC, ("-f", "kraft.version=1"), "the level is 0 with controller.quorum.voters"),
        (DYNAMIC, ("-s", "-f", "streams.version=1"), "streams.version is supported at level 0 only"),
        (DYNAMIC, ("-s", "-f", "group.version=7"), "supported from level 0 to 1"),
        (DYNAMIC, ("-s", "-f", "nosuch.version=0"), "there is no such feature"),
        (DYNAMIC, ("-s", "-f", "group.version"), "write NAME=LEVEL"),
        (DYNAMIC, ("-s", "-r", "4.0-IV0"), "only 4.3-IV0 is supported"),
        ("process.roles=broker\nlisteners=PLAINTEXT://:9092\n" + DYNAMIC, ("-s",), "process.roles has no controller"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_created(
    more: str, options: tuple[str, ...], said: str, shell: Shell, settings: Callable[..., Path], tmp_path: Path
) -> None:
    answer = formatted(shell, settings(more), *options)
    assert (answer.code, answer.out) == (1, "")
    assert said in answer.err
    assert not (tmp_path / "data").exists()


def test_features_may_start_at_a_lower_level(
    shell: Shell, settings: Callable[..., Path], tmp_path: Path, world: RealWorld
) -> None:
    assert formatted(shell, settings(), "-s", "-f", "group.version=0", "-f", "share.version=0", "-r", "4.3").code == 0
    assert levels(world, tmp_path / "data") == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "transaction.version": 2,
    }


def test_info_names_problems(shell: Shell, settings: Callable[..., Path], tmp_path: Path) -> None:
    assert formatted(shell, settings(names=("data", "second")), "-s").code == 0
    config = settings(names=("data", "second", "third"))
    (tmp_path / "third").mkdir()
    meta = tmp_path / "second" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=7"))
    answer = shell("storage", "info", "-c", str(config))
    assert answer.code == 1
    assert answer.out.endswith(
        f"Found problems:\n  {tmp_path}/third is not formatted.\n  Mismatched node IDs between storage directories.\n\n"
    )
    meta.write_text(meta.read_text().replace("version=1", "version=5"))
    assert "Unknown meta.properties version number 5" in shell("storage", "info", "-c", str(config)).out
    assert "does not exist" in shell("storage", "info", "-c", str(settings(names=("elsewhere",)))).out


def test_a_random_uuid_is_valid(shell: Shell) -> None:
    first, second = shell("storage", "random-uuid").out, shell("storage", "random-uuid").out
    assert first != second
    assert len(decode_id(first.strip())) == 16


def credentials(world: RealWorld, path: Path) -> dict[tuple[str, int], stored.UserScramCredentialRecord]:
    records = read_bootstrap(world, str(path)) or []
    return {(each.name, each.mechanism): each for each in records if isinstance(each, stored.UserScramCredentialRecord)}


def test_a_cluster_begins_with_users(
    shell: Shell, settings: Callable[..., Path], tmp_path: Path, world: RealWorld
) -> None:
    salt = base64.b64encode(b"salt").decode()
    salted = hashlib.pbkdf2_hmac("sha512", b"hush", b"salt", 5000)
    for_ann = f"SCRAM-SHA-512=[name=ann,saltedpassword={base64.b64encode(salted).decode()},salt={salt},iterations=5000]"
    options = ("--add-scram", for_ann, "-S", f'SCRAM-SHA-256=[name="ann",password="hush",salt="{salt}"]')
    answer = formatted(shell, settings(), "--standalone", *options, "-S", "SCRAM-SHA-256=[name=bob,password=x]")
    assert answer.code == 0
    assert "hush" not in answer.out + answer.err
    found = credentials(world, tmp_path / "data")
    assert set(found) == {("ann", 1), ("ann", 2), ("bob", 1)}
    expected = credential_of(ScramMechanism.SCRAM_SHA_512, b"salt", salted, 5000)
    assert found["ann", 2] == record_of("ann", 2, expected)
    expected = credential_of(
        ScramMechanism.SCRAM_SHA_256, b"salt", hashlib.pbkdf2_hmac("sha256", b"hush", b"salt", 4096), 4096
    )
    assert found["ann", 1] == record_of("ann", 1, expected)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("hush", "cannot read the option"),
        ("SCRAM-SHA-1=[name=a,password=hush]", "there is no mechanism SCRAM-SHA-1"),
        ("SCRAM-SHA-256=[password=hush]", "the name is missing"),
        ("SCRAM-SHA-256=[name=a]", "either password or saltedpassword"),
        ("SCRAM-SHA-256=[name=a,password=hush,saltedpassword=hush]", "either password or saltedpassword"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=hush]", "needs the salt"),
        ("SCRAM-SHA-256=[name=a,password=hush,salt=?]", "salt is not base64"),
        ("SCRAM-SHA-256=[name=a,password=hush,iterations=4095]", "from 4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=hush,iterations=16385]", "from 4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=hush,iterations=1e4]", "from 4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=hush,pass=hush]", "a field is not one of"),
        ("SCRAM-SHA-256=[name=a,name=b,password=hush]", "given twice"),
    ],
)
def test_a_credential_that_cannot_be_read_formats_nothing(
    shell: Shell, settings: Callable[..., Path], tmp_path: Path, option: str, said: str
) -> None:
    answer = formatted(shell, settings(), "--standalone", "--add-scram", option)
    assert answer.code != 0
    assert said in answer.err
    assert "hush" not in answer.err
    assert not (tmp_path / "data" / "meta.properties").exists()


def test_a_user_has_each_mechanism_once(shell: Shell, settings: Callable[..., Path]) -> None:
    twice = ("--add-scram", "SCRAM-SHA-256=[name=a,password=hush]") * 2
    assert "user a has the same mechanism twice" in formatted(shell, settings(), "--standalone", *twice).err


def test_credentials_are_limited() -> None:
    salted = "saltedpassword=c2FsdA==,salt=c2FsdA=="
    options = [f"SCRAM-SHA-256=[name=u{number},{salted}]" for number in range(CREDENTIALS_MAX + 1)]
    assert len(scram_records(options[1:])) == CREDENTIALS_MAX
    with pytest.raises(CommandFailed, match=f"at most {CREDENTIALS_MAX}"):
        scram_records(options)
