"""Store URLs: parsed once, checked, and never shown with a secret."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis_state_sync.errors import SettingsError

SCHEMES = (
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "memory",
    "embedded",
)
_TLS = {"rediss", "valkeys", "rediss+sentinel", "rediss+cluster"}
_ONE_HOST = {"redis", "rediss", "valkey", "valkeys"}
_SENTINEL = {"redis+sentinel", "rediss+sentinel"}
_CLUSTER = {"redis+cluster", "rediss+cluster"}
_TLS_OPTIONS = {
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
}
_OPTIONS = {"protocol", "db"} | _TLS_OPTIONS
REMEDY = (
    "give the password by REDIS_STATE_SYNC_PASSWORD_FILE, by the environment variable named by "
    "password_env (default REDIS_STATE_SYNC_PASSWORD), by the whole URL in REDIS_STATE_SYNC_URL, "
    "or by a credential provider"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a store is. `password` is the only secret, and is in no repr.

    Args:
        scheme: One of `SCHEMES`.
        hosts: ``(host, port)`` pairs: one, or one for each sentinel or start node of a cluster.
        path: Socket file of ``unix``; name of a ``memory`` store.
        service: Name of the primary that the sentinels watch.
        db: Database number.
        username: ACL user, or None.
        options: ``protocol`` and ``ssl_*`` settings, as text.
    """

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        # The password stays behind: where a copy arrives, the environment there has it.
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Endpoint, tuple({**values, "password": None}.values())

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.scheme in _TLS

    @property
    def sentinel(self) -> bool:
        """Whether `hosts` are sentinels, to be asked for the primary."""
        return self.scheme in _SENTINEL

    @property
    def cluster(self) -> bool:
        """Whether `hosts` are some nodes of a cluster, which know the others."""
        return self.scheme in _CLUSTER

    def at(self, node: tuple[str, int]) -> Endpoint:
        """One node of this cluster, with the same user, password and options."""
        return replace(self, scheme="rediss" if self.tls else "redis", hosts=(node,))

    def describe(self) -> str:
        """The URL without password and options, for messages and logs."""
        if self.scheme in ("unix", "memory"):
            return f"{self.scheme}://{self.path}"
        user = f"{self.username}@" if self.username else ""
        hosts = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.hosts)
        if self.scheme == "embedded" or self.cluster:
            return f"{self.scheme}://{user}{hosts}"
        tail = f"/{self.service}/{self.db}" if self.sentinel else f"/{self.db}"
        return f"{self.scheme}://{user}{hosts}{tail}"


def parse_url(url: str) -> Endpoint:
    """Reads a store URL.

    Raises:
        SettingsError: If it is not one. The message never holds the URL's credentials.
    """
    try:
        return _read(url)
    except SettingsError as error:
        refused = error.with_traceback(None)
    del url  # Printers that show local variables would show the password.
    raise refused


def _read(url: Any) -> Endpoint:
    if not isinstance(url, str):
        raise SettingsError(f"the store URL must be a str, not a {type(url).__name__}")
    url = url.strip()  # From a file or a YAML block there is often a line break behind it.
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in SCHEMES:
        # What stands before '://' is shown only if it is a bare word: it could be a secret.
        shown = repr(scheme) if separator and re.fullmatch(r"[a-z0-9+.-]{1,20}", scheme) else "none"
        raise SettingsError(
            f"the store URL has an unknown scheme ({shown}); use one of "
            + ", ".join(f"{name}://" for name in SCHEMES)
        )
    try:
        parts = urlsplit(url)
        return _parse(scheme, parts)
    except SettingsError:
        raise
    except ValueError:
        # The exception's own text may quote the part that holds the password.
        raise SettingsError(
            f"the {scheme}:// store URL can not be parsed (the URL is not shown, it may hold a "
            "password): percent-encode special characters in user and password, put an IPv6 "
            "address in brackets, and use a port from 1 to 65535"
        ) from None


def _parse(scheme: str, parts: SplitResult) -> Endpoint:
    if parts.fragment:
        raise SettingsError(
            f"the {scheme}:// store URL holds a '#': percent-encode it as %23 "
            "(the URL is not shown, it may hold a password)"
        )
    if "@" in parts.query or ("@" in parts.path and scheme not in ("unix", "memory")):
        # What follows a '/' or '?' in a password looks like a path or options: show none of it.
        raise SettingsError(
            f"the {scheme}:// store URL has an '@' behind its host: percent-encode '/' and '?' in "
            "user or password as %2F and %3F (the URL is not shown, it may hold a password)"
        )
    if "," in parts.netloc.rpartition("@")[2] and scheme in _ONE_HOST:
        raise SettingsError(
            f"the {scheme}:// store URL names several hosts: that is for sentinels, as in "
            "redis+sentinel://h1:26379,h2:26379/mymaster/0"
        )
    options, secrets = _options(scheme, parts.query)
    userinfo, at, hostpart = parts.netloc.rpartition("@")
    if "@" in userinfo or "/" in userinfo:
        raise SettingsError(
            f"the {scheme}:// store URL has an '@' or '/' in user or password: percent-encode it "
            "as %40 or %2F (the URL is not shown, it may hold a password)"
        )
    username, _, password = userinfo.partition(":")
    user = unquote(username) or secrets.get("username") or None
    secret = unquote(password) or secrets.get("password") or None
    if scheme == "memory":
        if at or secrets:
            raise SettingsError("memory:// takes a name, as in memory://my-test, and no user")
        return Endpoint(scheme, path=(parts.netloc + unquote(parts.path)).strip("/") or "default")
    if scheme == "unix":
        path = hostpart + unquote(parts.path)
        if not path.startswith("/"):
            raise SettingsError("unix:// takes an absolute path, as in unix:///run/valkey.sock")
        db = _db(options.pop("db", "0"))
        return Endpoint(scheme, path=path, db=db, username=user, password=secret, options=options)
    path_parts = [unquote(p) for p in parts.path.split("/") if p]
    if scheme == "embedded":
        if path_parts or options:
            raise SettingsError("embedded:// takes nothing, or HOST:PORT to be reachable by others")
        address = _host(hostpart, 0) if hostpart else None
        if address and not address[1]:
            raise SettingsError(
                "embedded:// with a host also needs a port, as in embedded://10.0.0.5:6390"
            )
        hosts = (address,) if address else ()
        return Endpoint(scheme, hosts=hosts, username=user, password=secret)
    service = ""
    if scheme in _SENTINEL:
        if not path_parts:
            raise SettingsError(
                f"{scheme}:// needs the service's name: {scheme}://h1:26379,h2:26379/mymaster/0"
            )
        service = path_parts.pop(0)
    if len(path_parts) > 1:
        raise SettingsError(f"the {scheme}:// store URL has too many parts after the host")
    db = _db(path_parts[0] if path_parts else options.pop("db", "0"))
    options.pop("db", None)
    if db and scheme in _CLUSTER:
        raise SettingsError(
            f"{scheme}:// is for database 0 only: leave the {db} out of the store URL"
        )
    port = 26379 if scheme in _SENTINEL else 6379
    names = hostpart.split(",") if scheme in _SENTINEL | _CLUSTER else [hostpart]
    if len(names) > 1 and not all(names):
        raise SettingsError(f"the {scheme}:// store URL has a comma without a host beside it")
    all_hosts = tuple(_host(name, port) for name in names)
    return Endpoint(
        scheme, all_hosts, service=service, db=db, username=user, password=secret, options=options
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    split = urlsplit(f"//{text}")
    host, port = split.hostname, split.port  # .port raises ValueError when out of range
    if host and text.startswith("["):
        ipaddress.IPv6Address(host)  # A ValueError of Python's own from 3.11 on.
    if not text.rpartition(":")[0]:
        host = host or "localhost"  # As redis-py reads redis:// and redis://:6380.
    if not host or re.search(r"[\s,\\]", host) or port == 0:
        raise ValueError("not a host")
    return host, default_port if port is None else port


def _db(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 1 << 16:
        raise SettingsError("the database in the store URL must be a number, as in redis://host/0")
    return int(text)


def _options(scheme: str, query: str) -> tuple[dict[str, str], dict[str, str]]:
    options: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in ("password", "username"):
            secrets[name] = value
        elif name in _OPTIONS:
            options[name] = value
        else:
            raise SettingsError(
                f"the {scheme}:// store URL has an unknown option {name[:40]!r}; "
                f"known are {', '.join(sorted(_OPTIONS))}"
            )
    tls_only = sorted(_TLS_OPTIONS & options.keys())
    if tls_only and scheme not in _TLS:
        raise SettingsError(
            f"{tls_only[0]} needs an encrypted scheme: {', '.join(sorted(_TLS))} (not {scheme})"
        )
    if options.get("protocol", "2") not in ("2", "3"):
        raise SettingsError("protocol in the store URL must be 2 or 3")
    if options.get("ssl_cert_reqs", "required") not in ("required", "optional", "none"):
        raise SettingsError("ssl_cert_reqs in the store URL must be required, optional or none")
    if options.get("ssl_check_hostname", "true").lower() not in ("true", "false"):
        raise SettingsError("ssl_check_hostname in the store URL must be true or false")
    checked = options.get("ssl_check_hostname", "false").lower() == "true"
    if checked and options.get("ssl_cert_reqs") == "none":
        # redis-py would leave the check out without a word.
        raise SettingsError(
            "ssl_check_hostname=true can not go with ssl_cert_reqs=none in the store URL: the name "
            "in a certificate that is not verified proves nothing"
        )
    return options, secrets
