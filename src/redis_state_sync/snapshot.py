"""What a reader gets: one version, whole, decoded when looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from redis_state_sync.codec import Buffer, decode
from redis_state_sync.components import is_weights
from redis_state_sync.errors import ApplyError, CodecError
from redis_state_sync.manifest import Manifest
from redis_state_sync.version import Version
from redis_state_sync.wire import aligned_empty

# Up to here a copy costs less than it is worth to think about.
_SMALL = 1 << 20


class Mapped(Protocol):
    """Encoded bytes that lie in memory shared with other processes."""

    def map(self) -> memoryview:
        """A fresh private mapping of all the bytes, shape ``(n,)``, writable.

        What is written to it reaches nobody, and it stays as it is until the last that refers to
        it is gone, whatever becomes of this object.

        Raises:
            OSError: If this process may not map any more.
        """


Encoded = bytes | bytearray | Buffer | Mapped


class Snapshot(Mapping[str, Any]):
    """A mapping: component name -> its decoded tree.

    A component is decoded anew each time it is looked up, so its arrays are the caller's own.

    Args:
        version: Which version this is.
        manifest: Its manifest.
        blobs: Component name -> encoded bytes, or where to map them.
        changed: Names of the components that differ from what the reader applied last.
    """

    def __init__(
        self,
        version: Version,
        manifest: Manifest,
        blobs: Mapping[str, Encoded],
        changed: frozenset[str],
    ) -> None:
        self.version = version
        self.manifest = manifest
        self.changed = changed
        self._blobs = blobs
        self._ready: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_blobs": {name: self._bytes(name) for name in self}, "_ready": {}}

    def _bytes(self, component: str) -> bytes:
        blob: Any = self._blobs[component]
        return bytes(blob.map() if self.is_private(component) else blob)

    @property
    def weights_seq_no(self) -> int | None:
        """RLlib's counter of gradient updates at the time of publishing."""
        return self.manifest.weights_seq_no

    def decode_ahead(self, components: Iterable[str]) -> None:
        """Decodes weights now, for the first that looks them up.

        Large ones that are not shared with other processes are left out: a view of them costs
        nothing, and a copy of them memory. So is what can not be decoded: the look-up says why.

        Args:
            components: Names of the version's components; of them, those with weights.
        """
        for name in components:
            blob: Any = self._blobs[name]
            if is_weights(name) and (self.is_private(name) or len(blob) < _SMALL):
                with contextlib.suppress(CodecError, ApplyError):
                    self._ready[name] = self[name]

    def __getitem__(self, component: str) -> Any:
        """Decodes one component.

        Raises:
            KeyError: If the version has no such component.
            DecodeError: If its bytes are not well-formed.
            ApplyError: If this process has no memory, address space or descriptor left for it.
        """
        return self._decoded(component, copy=not self.is_private(component))

    def view(self, component: str) -> Any:
        """Decodes one component without copying its arrays where that can be, to look at them.

        They are read-only unless the component `is_private`. Raises as a look-up does.
        """
        return self._decoded(component, copy=False)

    def is_private(self, component: str) -> bool:
        """Whether each view of a component has memory of its own, to keep and to write to.

        Raises:
            KeyError: If the version has no such component.
        """
        return hasattr(self._blobs[component], "map")

    def _decoded(self, component: str, *, copy: bool) -> Any:
        if component in self._ready:
            return self._ready.pop(component)
        blob: Any = self._blobs[component]
        data: Any
        try:
            if self.is_private(component):
                data = blob.map()
            elif copy:
                data = aligned_empty(len(blob))
                data.data[:] = blob  # All arrays at once, for a tenth of the time.
            else:
                data = memoryview(blob).toreadonly()
            return decode(data, guard_packed=not is_weights(component), copy=False)
        except (OSError, MemoryError) as error:
            raise ApplyError(
                f"this process has no room for {component!r} of version {self.version}: {error}. "
                "Raise its limit of open files (ulimit -n) or of memory (ulimit -v); with "
                "node_cache_bytes=0 fewer files are open"
            ) from error

    def __contains__(self, component: object) -> bool:
        return component in self._blobs  # Mapping's own would decode it.

    def __iter__(self) -> Iterator[str]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)

    def __repr__(self) -> str:
        return f"Snapshot({self.version}, {len(self)} components)"
