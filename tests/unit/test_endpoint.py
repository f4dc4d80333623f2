"""Store URLs: every scheme, and no secret in any message."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import traceback
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync import SettingsError
from redis_state_sync.endpoint import SCHEMES, Endpoint, parse_url

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", Endpoint("redis", (("h", 6379),))),
        ("redis://", Endpoint("redis", (("localhost", 6379),))),
        ("redis://:6380", Endpoint("redis", (("localhost", 6380),))),
        (" redis://h\n", Endpoint("redis", (("h", 6379),))),
        ("redis://h:1/3", Endpoint("redis", (("h", 1),), db=3)),
        ("redis://h?db=3", Endpoint("redis", (("h", 6379),), db=3)),
        ("REDIS://h", Endpoint("redis", (("h", 6379),))),
        ("valkey://h/2", Endpoint("valkey", (("h", 6379),), db=2)),
        ("redis://[::1]:7/1", Endpoint("redis", (("::1", 7),), db=1)),
        ("redis://[fe80::1]", Endpoint("redis", (("fe80::1", 6379),))),
        ("redis://me@h", Endpoint("redis", (("h", 6379),), username="me")),
        ("redis://me:pw@h", Endpoint("redis", (("h", 6379),), username="me", password="pw")),
        ("redis://:pw@h", Endpoint("redis", (("h", 6379),), password="pw")),
        ("redis://h?username=me&password=pw",
         Endpoint("redis", (("h", 6379),), username="me", password="pw")),
        ("redis://:a%40b%2Fc%23d%25e%3Af%3Fg@h", Endpoint("redis", (("h", 6379),),
         password="a@b/c#d%e:f?g")),
        ("redis://h?protocol=3", Endpoint("redis", (("h", 6379),), options={"protocol": "3"})),
        ("rediss://h?ssl_ca_certs=%2Fca.pem&ssl_cert_reqs=none",
         Endpoint("rediss", (("h", 6379),),
                  options={"ssl_ca_certs": "/ca.pem", "ssl_cert_reqs": "none"})),
        ("unix:///run/v.sock", Endpoint("unix", path="/run/v.sock")),
        ("unix://me:pw@/run/v%20x.sock?db=4",
         Endpoint("unix", path="/run/v x.sock", db=4, username="me", password="pw")),
        ("redis+sentinel://h1:1,h2/svc/5",
         Endpoint("redis+sentinel", (("h1", 1), ("h2", 26379)), service="svc", db=5)),
        ("rediss+sentinel://[::1],h2/svc",
         Endpoint("rediss+sentinel", (("::1", 26379), ("h2", 26379)), service="svc")),
        ("redis+cluster://h1:7000,h2/", Endpoint("redis+cluster", (("h1", 7000), ("h2", 6379)))),
        ("redis+cluster://me:pw@h/0",
         Endpoint("redis+cluster", (("h", 6379),), username="me", password="pw")),
        ("redis+cluster://", Endpoint("redis+cluster", (("localhost", 6379),))),
        ("rediss+cluster://[::1]:7,[fe80::1]?protocol=3&ssl_ca_certs=x&db=0",
         Endpoint("rediss+cluster", (("::1", 7), ("fe80::1", 6379)),
                  options={"protocol": "3", "ssl_ca_certs": "x"})),
        ("memory://", Endpoint("memory", path="default")),
        ("memory://a/b", Endpoint("memory", path="a/b")),
        ("embedded://", Endpoint("embedded")),
        ("embedded://10.0.0.5:6390", Endpoint("embedded", (("10.0.0.5", 6390),))),
    ],
)  # fmt: skip
def test_parses(url: str, expected: Endpoint) -> None:
    """Every scheme, IPv6, percent-encoding and both places for credentials are read: C77, C80."""
    assert parse_url(url) == expected


def test_valkeys_is_encrypted() -> None:
    """The schemes with an s, and only these, are encrypted."""
    assert {s for s in SCHEMES if parse_url(f"{s}://h:1/x" if "sentinel" in s else
            "unix:///s" if s == "unix" else f"{s}://h:1").tls} == {
        "rediss", "valkeys", "rediss+sentinel", "rediss+cluster"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"redis://u:{SECRET}@h:0", "port"),
        (f"redis://u:{SECRET}@h:65536", "port"),
        (f"redis://u:{SECRET}@h:x", "port"),
        (f"redis://u:{SECRET}@h:-1", "port"),
        (f"redis://u:{SECRET}@[::1", "brackets"),
        (f"redis://u:{SECRET}@[zz]:1", "brackets"),
        (f"redis://u:{SECRET}/0", "port"),
        (f"redis://u:a#{SECRET}@h", "%23"),
        (f"redis://u:a@{SECRET}@h", "%40"),
        (f"redis://u:a/{SECRET}@h", "percent-encode"),
        (f"redis://u:1/{SECRET}@h", "%2F"),
        (f"redis+sentinel://u:6379/{SECRET}@h/0", "%2F"),
        (f"redis://u:a?{SECRET}@h/0", "percent-encode"),
        (f"redis://u:a?{SECRET}=1@h/0", "percent-encode"),
        (f"redis://u:{SECRET}@h?nope=1", "unknown option 'nope'"),
        (f"redis://u:{SECRET}@h?ssl_ca_certs=x", "rediss"),
        (f"redis://u:{SECRET}@h?protocol=4", "2 or 3"),
        (f"rediss://u:{SECRET}@h?ssl_cert_reqs=maybe", "required, optional or none"),
        (f"rediss://u:{SECRET}@h?ssl_check_hostname=1", "true or false"),
        (f"rediss://u:{SECRET}@h?ssl_cert_reqs=none&ssl_check_hostname=true", "proves nothing"),
        (f"redis://u:{SECRET}@h/x", "number"),
        (f"redis://u:{SECRET}@h/-1", "number"),
        (f"redis://u:{SECRET}@h/1/2", "too many"),
        (f"redis://u:{SECRET}@h?db=1x", "number"),
        (f"redis://u:{SECRET}@h1,h2", "several hosts.*sentinel"),
        (f"redis://u:{SECRET}@h1:1,h2:2", "several hosts.*sentinel"),
        (f"redis://u:{SECRET}@h\\x", "parsed"),
        (f"redis+sentinel://u:{SECRET}@h1", "service's name"),
        (f"redis+cluster://u:{SECRET}@h/1", "is for database 0 only: leave the 1 out"),
        (f"rediss+cluster://u:{SECRET}@h1,h2?db=3", "is for database 0 only: leave the 3 out"),
        (f"redis+cluster://u:{SECRET}@h/x", "number"),
        (f"redis+cluster://u:{SECRET}@h/0/0", "too many"),
        (f"redis+cluster://u:{SECRET}@h1,h2:x", "port"),
        (f"redis+cluster://u:{SECRET}@h1,h2,", "comma without a host"),
        (f"redis+sentinel://u:{SECRET}@h1,,h2/svc", "comma without a host"),
        (f"redis+cluster://u:{SECRET}@h?ssl_ca_certs=x", "rediss"),
        (f"redis+cluster://u:a/{SECRET}@h", "%2F"),
        (f"unix://u:{SECRET}@relative", "absolute"),
        (f"memory://u:{SECRET}@x", "no user"),
        (f"memory://x?password={SECRET}", "no user"),
        (f"embedded://u:{SECRET}@h", "port"),
        (f"embedded://u:{SECRET}@h:1/0", "takes nothing"),
        (f"http://u:{SECRET}@h", "unknown scheme"),
        (f"u:{SECRET}@h:6379", "unknown scheme"),
        (f"{SECRET}@h", "unknown scheme"),
        (f"redis:/u:{SECRET}@h", "unknown scheme"),
        (f"u:{SECRET}@h://x", "unknown scheme"),
        ("", "unknown scheme"),
    ],
)
def test_refuses_without_the_secret(url: str, says: str) -> None:
    """A wrong URL says what to do and shows neither password nor the rest of it: C33, C80, C94."""
    with pytest.raises(SettingsError, match=says) as caught:
        parse_url(url)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    # What printers of local variables show of our own frames; the first one is this test's.
    assert caught.value.__traceback__ is not None
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(caught.value.__traceback__)][1:]
    assert frames
    assert SECRET not in repr(frames)


@pytest.mark.parametrize("url", [None, 5, b"redis://h"])
def test_refuses_other_types(url: object) -> None:
    """A URL is a str."""
    with pytest.raises(SettingsError, match="must be a str"):
        parse_url(url)  # type: ignore[arg-type]


@given(st.sampled_from(SCHEMES), st.text(max_size=30))
def test_any_text_parses_or_is_refused(scheme: str, rest: str) -> None:
    """Whatever stands behind a scheme gives an endpoint or a SettingsError."""
    try:
        endpoint = parse_url(f"{scheme}://{rest}")
    except SettingsError:
        return
    assert endpoint.scheme == scheme


@given(st.sampled_from(SCHEMES), st.text("abc:/?#[]@!$&'()*+,;=%. \\", max_size=12),
       st.text("abc:/?#[]@,%.0", max_size=12))  # fmt: skip
def test_no_raw_password_reaches_a_message(scheme: str, before: str, after: str) -> None:
    """However a raw password breaks the parsing, no message, repr or description shows it: C94."""
    url = f"{scheme}://user:{before}{SECRET}@{after}"
    try:
        endpoint = parse_url(url)
    except SettingsError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert SECRET not in refusal
    if refusal:
        return
    if endpoint.password is not None and SECRET in endpoint.password:
        assert SECRET not in repr(endpoint)
        assert SECRET not in endpoint.describe()


@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, lambda e: pickle.loads(dumped(e))])
def test_a_password_does_not_travel(travel: Callable[[Endpoint], Endpoint]) -> None:
    """A copy is the same place without the password."""
    endpoint = parse_url(f"rediss://me:{SECRET}@h:1/2?ssl_cert_reqs=none")
    assert travel(endpoint) == dataclasses.replace(endpoint, password=None)


def dumped(endpoint: Endpoint) -> bytes:
    data = pickle.dumps(endpoint)
    assert SECRET.encode() not in data
    return data


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://me:{SECRET}@h", "redis://me@h:6379/0"),
        (f"rediss://:{SECRET}@[::1]:1/2?ssl_cert_reqs=none", "rediss://[::1]:1/2"),
        (f"unix://:{SECRET}@/run/s", "unix:///run/s"),
        (f"redis+sentinel://:{SECRET}@a,b:1/svc", "redis+sentinel://a:26379,b:1/svc/0"),
        (f"redis+cluster://me:{SECRET}@a,b:1", "redis+cluster://me@a:6379,b:1"),
        (f"rediss+cluster://:{SECRET}@[::1]?protocol=3", "rediss+cluster://[::1]:6379"),
        ("memory://x", "memory://x"),
        (f"embedded://:{SECRET}@h:5", "embedded://h:5"),
    ],
)
def test_describe(url: str, shown: str) -> None:
    """What people see names the server and holds no password: C93."""
    endpoint = parse_url(url)
    assert endpoint.describe() == shown
    assert SECRET not in repr(endpoint)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis+cluster://me:pw@h1,h2?protocol=3", "redis://me:pw@n:7000?protocol=3"),
        ("rediss+cluster://h?ssl_ca_certs=x", "rediss://n:7000?ssl_ca_certs=x"),
    ],
)
def test_a_node_of_a_cluster(url: str, expected: str) -> None:
    """A node is reached as the cluster is: same user, password, protocol and TLS: C79."""
    assert parse_url(url).at(("n", 7000)) == parse_url(expected)
