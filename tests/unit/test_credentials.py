"""Credentials are read when connecting, and are in no repr."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from redis_state_sync import Settings, SettingsError, open_store
from redis_state_sync.credentials import (
    EnvironmentCredentials,
    SentinelCredentials,
    load_provider,
)
from redis_state_sync.endpoint import parse_url
from redis_state_sync.errors import StoreAuthError, StoreError
from redis_state_sync.publisher import StatePublisher
from redis_state_sync.testing import EmbeddedServer, FakeStateServer

SECRET = "hunter2"
ENV = "REDIS_STATE_SYNC_PASSWORD"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USERNAME", "PASSWORD", "PASSWORD_FILE"):
        for of in ("", "SENTINEL_"):
            monkeypatch.delenv(f"REDIS_STATE_SYNC_{of}{name}", raising=False)
    monkeypatch.delenv("REDIS_STATE_SYNC_URL", raising=False)


def credentials(url: str = "redis://h") -> EnvironmentCredentials:
    return EnvironmentCredentials(parse_url(url), ENV)


def test_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file comes before the variable, the variable before the URL."""
    url = "redis://me:from-url@h"
    assert credentials(url).get_credentials() == ("me", "from-url")
    monkeypatch.setenv(ENV, "from-env")
    assert credentials(url).get_credentials() == ("me", "from-env")
    file = tmp_path / "password"
    file.write_text("from-file\n")
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", str(file))
    assert credentials(url).get_credentials() == ("me", "from-file")


def test_rotation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A changed password file is read anew for each connection."""
    file = tmp_path / "password"
    file.write_text("old")
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", str(file))
    provider = credentials()
    assert provider.get_credentials() == ("old",)
    file.write_text("new")
    assert provider.get_credentials() == ("new",)


def test_user_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """REDIS_STATE_SYNC_USERNAME is the user if the URL has none."""
    monkeypatch.setenv("REDIS_STATE_SYNC_USERNAME", "runner")
    monkeypatch.setenv(ENV, "pw")
    assert credentials().get_credentials() == ("runner", "pw")
    assert credentials("redis://me@h").get_credentials() == ("me", "pw")


def test_sentinels_have_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """User and password of sentinels come from their own variables or file, and no others: C94."""
    monkeypatch.setenv(ENV, "of-the-data")
    monkeypatch.setenv("REDIS_STATE_SYNC_USERNAME", "of-the-data")
    assert not SentinelCredentials().available()
    monkeypatch.setenv("REDIS_STATE_SYNC_SENTINEL_PASSWORD", SECRET)
    assert SentinelCredentials().get_credentials() == (SECRET,)
    monkeypatch.setenv("REDIS_STATE_SYNC_SENTINEL_USERNAME", "app")
    (tmp_path / "f").write_text("from-file\n")
    monkeypatch.setenv("REDIS_STATE_SYNC_SENTINEL_PASSWORD_FILE", str(tmp_path / "f"))
    assert SentinelCredentials().get_credentials() == ("app", "from-file")
    assert repr(SentinelCredentials()) == "SentinelCredentials(<redacted>)"


def test_nothing_to_authenticate_with() -> None:
    """Without user and password nothing is sent; a user alone is an error that names the remedy."""
    assert not credentials().available()
    assert credentials("redis://me@h").available()
    with pytest.raises(SettingsError, match="REDIS_STATE_SYNC_PASSWORD_FILE"):
        credentials("redis://me@h").get_credentials()


def test_a_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password file that can not be read is named."""
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", "nowhere/file")
    with pytest.raises(SettingsError, match=r"nowhere/file.*FileNotFoundError"):
        credentials().get_credentials()


def test_a_file_from_an_editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A byte order mark and line ends are no part of a password; all other characters are."""
    file = tmp_path / "password"
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", str(file))
    file.write_bytes(b"\xef\xbb\xbf" + " p\u00e4\u20ac".encode() + b"\r\n")
    assert credentials().get_credentials() == (" p\u00e4\u20ac",)


@pytest.mark.parametrize("content", ["", "\n", "\r\n"])
def test_an_empty_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str) -> None:
    """A password file without a password is named, and nothing else is tried in its place."""
    file = tmp_path / "password"
    file.write_text(content)
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", str(file))
    monkeypatch.setenv(ENV, "other")
    with pytest.raises(SettingsError, match=r"password'.*which is empty"):
        credentials().get_credentials()


def test_a_store_finds_its_password_where_it_arrives(
    guarded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickled store holds no password; the URL in the environment there gives it back."""
    with guarded_server as server:
        monkeypatch.setenv("REDIS_STATE_SYNC_URL", server.url.replace("//", f"//:{SECRET}@", 1))
        pickled = pickle.dumps(open_store())
        assert SECRET.encode() not in pickled
        pickle.loads(pickled).time_ms(timeout=5)
        other = server.url.replace("//", "//:wrong@", 1) + "?db=1"
        for elsewhere in (other, "no URL"):  # Not the same place: its password is not sent.
            monkeypatch.setenv("REDIS_STATE_SYNC_URL", elsewhere)
            with pytest.raises(StoreAuthError, match="Authentication required"):
                pickle.loads(pickled).time_ms(timeout=5)


def test_repr_is_redacted() -> None:
    """The repr of what holds credentials shows none: C93."""
    assert SECRET not in repr(credentials(f"redis://:{SECRET}@h"))


class Provider:
    def get_credentials(self) -> tuple[str, str]:
        return "me", SECRET


PROVIDER = Provider()


def make_provider() -> Provider:
    return Provider()


@pytest.mark.parametrize("name", ["PROVIDER", "Provider", "make_provider"])
def test_load_provider(name: str) -> None:
    """A provider is named by an object, a class or a function of a module."""
    assert load_provider(f"{__name__}:{name}").get_credentials() == ("me", SECRET)


@pytest.mark.parametrize("reference", ["no.such.module:x", "os:nope", "os:getcwd"])
def test_load_provider_refuses(reference: str) -> None:
    """A reference to something else is refused by its name."""
    with pytest.raises(SettingsError, match=reference):
        load_provider(reference)


@pytest.fixture
def guarded_server(tmp_path: Path, redis_state_server: EmbeddedServer) -> EmbeddedServer:
    """A server that asks for a password (the plain one only proves that there is a binary)."""
    redis_state_server.kill()
    return EmbeddedServer(socket_path=tmp_path / "s", password=SECRET)


def test_passwords_reach_the_server(
    guarded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right password connects; a wrong and a missing one are StoreAuthErrors: C94."""
    with guarded_server as server:
        monkeypatch.setenv(ENV, SECRET)
        open_store(server.url).time_ms(timeout=5)
        monkeypatch.setenv(ENV, "wrong")
        with pytest.raises(StoreAuthError):
            open_store(server.url).time_ms(timeout=5)
        monkeypatch.delenv(ENV)
        with pytest.raises(StoreAuthError):
            open_store(server.url).time_ms(timeout=5)
        provider = f"{__name__}:PasswordOnly"
        open_store(server.url, credential_provider=provider).time_ms(timeout=5)


class PasswordOnly:
    def get_credentials(self) -> tuple[str]:
        return (SECRET,)


@pytest.mark.parametrize("protocol", [2, 3])
def test_no_secret_in_logs_reprs_and_errors(
    redis_state_fake_server: FakeStateServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    protocol: int,
) -> None:
    """At DEBUG, with success, refusal and a dead port, no text holds the password: C93, C94."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("fakeredis").setLevel(logging.INFO)  # it logs the wire, and is the server
    monkeypatch.setenv(ENV, SECRET)
    texts: list[str] = []
    closed = "redis://me@127.0.0.1:1/0"
    for url in (redis_state_fake_server.url, closed):
        monkeypatch.setenv("REDIS_STATE_SYNC_URL", url.replace("//", "//me:" + SECRET + "@", 1)
                           if "@" not in url else url)  # fmt: skip
        store = open_store(protocol_url(url, protocol))
        for each in (store, open_store()):
            texts += [repr(each), each.describe()]
            try:
                StatePublisher(each, "n", connect_timeout_s=2).close()
            except StoreError as error:
                chain: BaseException | None = error
                while chain is not None:
                    texts += [str(chain), repr(chain)]
                    chain = None if chain.__suppress_context__ else chain.__context__
    texts += [repr(Settings(url="redis://h")), repr(pickle.dumps(open_store("redis://h")))]
    assert len(texts) > 10
    for text in [*texts, caplog.text]:
        assert SECRET not in text


def protocol_url(url: str, protocol: int) -> str:
    return f"{url}?protocol={protocol}"
