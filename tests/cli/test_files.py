"""`export` and `import`: a version to a file and back."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from redis_state_sync import History, Keyring, StatePublisher, Version, open_store
from redis_state_sync.codec import encode
from redis_state_sync.keyring import KEY_ENV
from redis_state_sync.manifest import Manifest
from tests.cli.conftest import WAIT, Cli, fetched, learner, published, read, state

KEY = "k" * 40

STATE: dict[str, Any] = {
    "rl_module/p": {
        "w": np.arange(6.0, dtype="f4").reshape(2, 3),
        "0": np.arange(3),
        0: np.ones(2),
    },
    "rl_module/empty": {},
    "env_to_module_connector": {
        "mean": [np.zeros((0, 4)), (np.array(5), None, True, 2**80)],
        "odd": {
            "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "big": np.arange(3, dtype=">f4"),
            "complex": np.array([1 + 2j]),
            "text": np.array(["ä"]),
            "pairs": np.zeros(2, [("a", "i4"), ("b", "f8")]),
            "scalar": np.float32(1.5),
            "bytes": b"\0\1",
            "flags": np.array([True, False]),
        },
    },
    "counters": {"steps": 7, None: 1},
}


def manifest_of(url: str, version: str | Version, namespace: str = "team/run") -> Manifest:
    with closing(History(open_store(url), namespace)) as history:
        return history.find(version)[1]


def stored(url: str) -> Version:
    with learner(url) as publisher:
        return publisher.publish(STATE, weights_seq_no=9).wait(WAIT)


def test_there_and_back(cli: Cli, url: str, tmp_path: Path) -> None:
    """An imported version has the very bytes of the exported one, wherever it is imported."""
    version, file = stored(url), tmp_path / "best.safetensors"
    found = read(cli("export", "team/run", "newest", file, "--json"))
    assert found == {
        "namespace": "team/run", "version": str(version), "file": str(file),
        "size": file.stat().st_size,
    }  # fmt: skip
    before = manifest_of(url, version)
    for namespace in ("team/other", "team/run"):
        new = read(cli("import", namespace, file, "--json"))["version"]
        after = manifest_of(url, new, namespace)
        assert after.components == before.components
        assert after.weights_seq_no == 9
        assert after.writer.id.startswith("import by ")
        assert str(fetched(url, namespace)) == new
    assert new > str(version)
    assert list(tmp_path.iterdir()) == [file]


def test_what_others_see_in_the_file(cli: Cli, url: str, tmp_path: Path) -> None:
    """Other tools find the weights by their names, and where the file came from."""
    version, file = stored(url), tmp_path / "f"
    cli("export", "team/run", version, file)
    tensors = load_file(file)
    assert {name for name in tensors if not name.startswith("redis-state-sync/")} >= {
        "rl_module/p/w", "rl_module/p/0", "env_to_module_connector/mean/0",
        "env_to_module_connector/mean/1/0", "env_to_module_connector/odd/flags",
    }  # fmt: skip
    assert (tensors["rl_module/p/w"] == STATE["rl_module/p"]["w"]).all()
    from safetensors import safe_open

    with safe_open(file, "numpy") as opened:
        about = json.loads(opened.metadata()["about"])
    assert (about["version"], about["namespace"]) == (str(version), "team/run")


def test_a_file_that_is_there(cli: Cli, url: str, tmp_path: Path) -> None:
    """A file is replaced only if that is asked for; one that can not be written is an error."""
    first, second = published(url, 1, 2)
    file = tmp_path / "f"
    cli("export", "team/run", first, file)
    before = file.read_bytes()
    assert "--overwrite" in cli("export", "team/run", second, file, code=2).stderr
    assert file.read_bytes() == before
    cli("export", "team/run", second, file, "--overwrite")
    assert file.read_bytes() != before
    cli("export", "team/run", second, tmp_path / "no" / "f", code=2)
    cli("import", "team/run", tmp_path / "missing", code=2)
    cli("export", "team/run", "5-5", tmp_path / "g", code=4)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_import_beside_a_learner(cli: Cli, url: str, tmp_path: Path) -> None:
    """As with `rollback`, a learner at work is left alone unless one asks to take over."""
    published(url, 1)
    file = tmp_path / "f"
    cli("export", "team/run", "newest", file)
    with learner(url) as publisher:
        version = publisher.publish(state(2)).wait(WAIT)
        assert "a learner is at work" in cli("import", "team/run", file, code=5).stderr
        assert read(cli("versions", "team/run", "--json"))["versions"][0]["version"] == str(version)
        cli("import", "team/run", file, "--take-over", "--pin", "back")
    found = read(cli("status", "team/run", "--json"))
    assert found["pins"] == {"back": found["newest"]["version"]}
    assert found["newest"]["version"] > str(version)
    # What was there before is there still.
    assert len(read(cli("versions", "team/run", "--json"))["versions"]) == 3


def test_signed(cli: Cli, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported is signed; without a key nothing is put on top of signed versions."""
    keyring = Keyring(lambda: KEY)
    with closing(StatePublisher(open_store(url), "team/run", keyring=keyring)) as publisher:
        publisher.publish(state(1)).wait(WAIT)
    file = tmp_path / "f"
    cli("export", "team/run", "newest", file)
    assert "SIGNING_KEY" in cli("import", "team/run", file, code=2).stderr
    monkeypatch.setenv(KEY_ENV, KEY)
    new = read(cli("import", "team/run", file, "--json"))["version"]
    with closing(History(open_store(url), "team/run", keyring=keyring)) as history:
        assert str(history.fetch("newest").version) == new


def tampered(file: Path, **changes: Any) -> None:
    tensors = load_file(file)
    from safetensors import safe_open

    with safe_open(file, "numpy") as opened:
        metadata = opened.metadata()
    for name, value in changes.items():
        if name == "about":
            metadata["about"] = value
        elif name == "format":
            metadata["redis-state-sync"] = value
        elif value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, file, metadata=metadata)


PATH = "rl_module/p/w"
TREE = "redis-state-sync/rl_module/p"


@pytest.mark.parametrize(
    "changes",
    [
        {PATH: None},
        {TREE: None},
        {TREE: np.zeros(9, np.uint8)},
        {TREE: encode({"\0array": ["x"]})},
        {"about": ""},
        {"about": "[]"},
        {"about": json.dumps({"components": ["/etc"], "weights_seq_no": None})},
        {"about": json.dumps({"components": [5], "weights_seq_no": None})},
        {"about": json.dumps({"components": ["rl_module/p"], "weights_seq_no": "x"})},
        {"format": "2"},
    ],
)
def test_files_that_are_none(cli: Cli, url: str, tmp_path: Path, changes: dict[str, Any]) -> None:
    """A file that is damaged, forged or foreign is refused, and nothing is published."""
    stored(url)
    file = tmp_path / "f"
    cli("export", "team/run", "newest", file)
    tampered(file, **changes)
    assert str(file) in cli("import", "other", file, code=6).stderr
    for data in (b"", b"garbage", file.read_bytes()[:-5]):
        file.write_bytes(data)
        cli("import", "other", file, code=6)
    assert [n["namespace"] for n in read(cli("list", "--json"))["namespaces"]] == ["team/run"]


def test_without_the_package(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where safetensors is not installed, that is what is said."""
    published(url, 1)
    monkeypatch.setattr("redis_state_sync.cli.state_file.find_spec", lambda name: None)
    for command in (("export", "team/run", "newest", "f"), ("import", "team/run", "f")):
        assert "redis-state-sync[export]" in cli(*command, code=2).stderr


def test_a_key_that_stands_for_references(cli: Cli, url: str, tmp_path: Path) -> None:
    """A state that could be taken for a reference is refused, not changed."""
    with learner(url) as publisher:
        publisher.publish({"c": {"\0array": "x"}}).wait(WAIT)
    cli("export", "team/run", "newest", tmp_path / "f", code=6)
