"""All key names. The braces put a namespace into one Redis Cluster hash slot."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from redis_state_sync.errors import SettingsError

PREFIX = "rss"
# The field by which a reader asks for a blob to be sent again. No reader's name begins so.
RESEND = "!resend"
MAX_NAMESPACE_LENGTH = 200
# No braces (hash tag), no glob characters (ACL and SCAN patterns), no white space or control
# characters: a namespace can neither leave its prefix nor match another one.
_NAMESPACE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/@=+,-]{0,199})\Z")
_OWN_KEY = re.compile(rf"{PREFIX}:\{{([^{{}}]+)\}}:(?:versions|pins)\Z")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._:/@=+,-]+")


def check_namespace(namespace: object) -> str:
    """Returns `namespace` if it is one.

    Raises:
        SettingsError: If it is not a str of 1 to 200 characters of
            ``A-Z a-z 0-9 . _ : / @ = + , -`` that starts with a letter or digit.
    """
    if not isinstance(namespace, str) or not _NAMESPACE.match(namespace):
        raise SettingsError(
            f"namespace {str(namespace)[:80]!r} is not valid: use 1 to {MAX_NAMESPACE_LENGTH} "
            "letters, digits or . _ : / @ = + , - and begin with a letter or digit"
        )
    return namespace


def namespaces_of(keys: Iterable[str]) -> list[str]:
    """The namespaces of which some of these keys hold versions or pins, sorted."""
    found = {match[1] for match in map(_OWN_KEY.match, keys) if match}
    return sorted(name for name in found if _NAMESPACE.match(name))


def as_namespace(text: str) -> str:
    """Turns any text (an experiment or trial name) into a valid namespace, always the same one.

    A valid one stays as it is. Of any other, what is not allowed is replaced and the end is kept if
    it is too long; a digest of the whole text follows, so that different texts do not meet.
    """
    if _NAMESPACE.match(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    kept = _FORBIDDEN.sub("_", text)[-(MAX_NAMESPACE_LENGTH - len(digest) - 1) :]
    return f"{kept.lstrip('._:/@=+,-') or 'unnamed'}-{digest}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one namespace.

    Args:
        namespace: One shared state: one learner writes it, anyone may read it.

    Raises:
        SettingsError: If `namespace` is not valid, see `check_namespace`.
    """

    namespace: str

    def __post_init__(self) -> None:
        check_namespace(self.namespace)

    @property
    def versions(self) -> str:
        """Stream: entry id = version, one field = the manifest."""
        return f"{PREFIX}:{{{self.namespace}}}:versions"

    @property
    def pins(self) -> str:
        """Hash: pin name -> version. Never expires."""
        return f"{PREFIX}:{{{self.namespace}}}:pins"

    @property
    def pinned(self) -> str:
        """Hash: pinned version -> its record, which outlives the stream. Never expires."""
        return f"{PREFIX}:{{{self.namespace}}}:pinned"

    @property
    def dropping(self) -> str:
        """String: the versions that a learner is about to drop, for a few seconds."""
        return f"{PREFIX}:{{{self.namespace}}}:dropping"

    @property
    def readers(self) -> str:
        """Hash: reader -> last fetched version and time; `RESEND` -> digest of a blob."""
        return f"{PREFIX}:{{{self.namespace}}}:readers"

    def owned(self, keys: Iterable[str]) -> list[str]:
        """Those of some keys that are of this namespace, in the order in which to remove them.

        First what leads readers and learners to blobs, then the blobs.
        """
        first = [self.versions, self.pins, self.pinned, self.readers, self.dropping]
        there = {*keys}
        blobs = sorted(key for key in there if key.startswith(self.blob("")))
        return [key for key in first if key in there] + blobs

    def blob(self, digest: str) -> str:
        """String: the immutable bytes that have this digest."""
        return f"{PREFIX}:{{{self.namespace}}}:blob:{digest}"
