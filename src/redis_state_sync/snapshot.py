"""What a reader gets: one version, whole, decoded when looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from redis_state_sync.codec import decode
from redis_state_sync.components import is_weights
from redis_state_sync.manifest import Manifest
from redis_state_sync.version import Version


class Snapshot(Mapping[str, Any]):
    """A mapping: component name -> its decoded tree.

    A component is decoded anew each time it is looked up, so its arrays are the caller's own.

    Args:
        version: Which version this is.
        manifest: Its manifest.
        blobs: Component name -> encoded bytes.
        changed: Names of the components that differ from what the reader applied last.
    """

    def __init__(
        self,
        version: Version,
        manifest: Manifest,
        blobs: Mapping[str, bytes | bytearray],
        changed: frozenset[str],
    ) -> None:
        self.version = version
        self.manifest = manifest
        self.changed = changed
        self._blobs = blobs

    @property
    def weights_seq_no(self) -> int | None:
        """RLlib's counter of gradient updates at the time of publishing."""
        return self.manifest.weights_seq_no

    def __getitem__(self, component: str) -> Any:
        """Decodes one component.

        Raises:
            KeyError: If the version has no such component.
            DecodeError: If its bytes are not well-formed.
        """
        return decode(self._blobs[component], guard_packed=not is_weights(component))

    def __contains__(self, component: object) -> bool:
        return component in self._blobs  # Mapping's own would decode it.

    def __iter__(self) -> Iterator[str]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)

    def __repr__(self) -> str:
        return f"Snapshot({self.version}, {len(self)} components)"
