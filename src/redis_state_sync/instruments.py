"""Every metric there is. Exporters make theirs from this table, and docs and alerts go by it.

Names follow Prometheus: base units, and ``_total`` for counters. Ray puts ``ray_`` before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "redis_state_sync_"
COMMON_LABELS = ("state_namespace", "role")
"""What every metric of a learner or reader is labelled with. (``namespace`` is Kubernetes' own.)"""

Kind = Literal["counter", "gauge", "histogram", "info"]
Unit = Literal["seconds", "bytes", "versions", ""]
Source = Literal["learner", "reader", "both", "exporter"]

# A poll takes some tens of microseconds, and is given up after 50 ms by default.
_POLL_BUCKETS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 1.0)
_TRANSFER_BUCKETS = (1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric.

    Args:
        name: As Prometheus has it.
        kind: Its type there; an info is a gauge of 1 whose labels tell something.
        unit: Of its value; empty: a count or a number.
        source: Who has it: a learner, a reader, both, or the command `exporter`.
        help: What it is.
        labels: Beside those that all of its source have.
        buckets: Upper bounds, of a histogram.
    """

    name: str
    kind: Kind
    unit: Unit
    source: Source
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its time series."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)

    @property
    def all_labels(self) -> tuple[str, ...]:
        """All labels that it has."""
        if self.source == "exporter":
            return self.labels
        return COMMON_LABELS + self.labels


def _made(
    source: Source,
    kind: Kind,
    name: str,
    help: str,
    *labels: str,
    buckets: tuple[float, ...] = (),
) -> Instrument:
    words = name.split("_")
    units: tuple[Unit, ...] = ("seconds", "bytes", "versions")
    unit: Unit = next((unit for unit in units if unit in words), "")
    return Instrument(PREFIX + name, kind, unit, source, help, labels, buckets)


POLLS = _made("reader", "counter", "polls_total", "How often a reader looked for a newer version.")
POLL_SECONDS = _made(
    "reader",
    "histogram",
    "poll_seconds",
    "Seconds of a poll that went to the store. Those within a sample() count with their mean.",
    buckets=_POLL_BUCKETS,
)
FETCH_SECONDS = _made(
    "reader", "histogram", "fetch_seconds", "Seconds of a fetch.", buckets=_TRANSFER_BUCKETS
)
FETCHED_BYTES = _made(
    "reader", "counter", "fetched_bytes_total", "Bytes of blobs that came from the store."
)
APPLY_SECONDS = _made(
    "reader",
    "histogram",
    "apply_seconds",
    "Seconds of putting a version into effect.",
    buckets=_TRANSFER_BUCKETS,
)
SKIPPED_VERSIONS = _made(
    "reader",
    "counter",
    "skipped_versions_total",
    "Versions never fetched, because a newer one was there.",
)
APPLIED_GENERATION = _made(
    "reader", "gauge", "applied_generation", "Generation of the version that was applied last."
)
APPLIED_NUMBER = _made(
    "reader", "gauge", "applied_version_number", "Number of the version that was applied last."
)
APPLIED_AT = _made(
    "reader", "gauge", "applied_timestamp_seconds", "When a version was applied last (Unix time)."
)
APPLIED_PUBLISHED_AT = _made(
    "reader",
    "gauge",
    "applied_published_timestamp_seconds",
    "When the version that was applied last was published (Unix time, by its learner's clock).",
)
LAG_VERSIONS = _made(
    "reader",
    "gauge",
    "lag_versions",
    "Versions between what is applied and the newest that a poll has shown.",
)
STALE = _made(
    "reader", "counter", "stale_total", "How often a refresh began beyond a limit of staleness."
)
STALE_WAIT_SECONDS = _made(
    "reader", "counter", "stale_wait_seconds_total", "Seconds waited beyond a limit of staleness."
)
FAILURES = _made(
    "both",
    "counter",
    "failures_total",
    "What failed, by operation and category.",
    "operation",
    "category",
)
STORE_UP = _made(
    "both", "gauge", "store_up", "1 if the store did what it was asked last, 0 if it failed."
)
PUBLISH_SECONDS = _made(
    "learner",
    "histogram",
    "publish_seconds",
    "Seconds of a publish, from its start until the version is announced.",
    buckets=_TRANSFER_BUCKETS,
)
LOOK_SECONDS = _made(
    "learner",
    "histogram",
    "look_seconds",
    "Seconds of a look after what is stored, which a learner takes twice a second.",
    buckets=_POLL_BUCKETS,
)
SENT_BYTES = _made("learner", "counter", "sent_bytes_total", "Bytes of blobs sent to the store.")
SAVED_BYTES = _made(
    "learner", "counter", "saved_bytes_total", "Bytes of blobs not sent: the store has them."
)
DROPPED_VERSIONS = _made(
    "learner",
    "counter",
    "dropped_versions_total",
    "Versions replaced by a newer one before they were sent.",
)
GENERATION = _made("learner", "gauge", "generation", "The generation that the learner claimed.")
PUBLISHED_NUMBER = _made(
    "learner", "gauge", "published_version_number", "Number of the version published last."
)
PUBLISHED_AT = _made(
    "learner", "gauge", "published_timestamp_seconds", "When a version was stored (Unix time)."
)
CLAIMS = _made(
    "learner", "counter", "claims_total", "How often the learner took the namespace over."
)
FENCED = _made(
    "learner", "gauge", "fenced", "1 if another learner took over and this one was refused."
)
PUSHES = _made(
    "learner",
    "counter",
    "pushes_total",
    "Syncs that went RLlib's own way while the store was down.",
)

_NS = "state_namespace"
EXPORTER_STORE_UP = _made(
    "exporter", "gauge", "exporter_store_up", "1 if the store answered the last look, else 0."
)
EXPORTER_LOOK_SECONDS = _made(
    "exporter", "gauge", "exporter_look_seconds", "Seconds that the last look took."
)
EXPORTER_LOOK_AT = _made(
    "exporter",
    "gauge",
    "exporter_look_timestamp_seconds",
    "When the last look that succeeded ended (Unix time).",
)
EXPORTER_ERRORS = _made(
    "exporter", "counter", "exporter_errors_total", "Looks that failed, by category.", "category"
)
NAMESPACE_LEARNER_UP = _made(
    "exporter",
    "gauge",
    "namespace_learner_up",
    "1 if a learner looks after the namespace, else 0; absent while that is not known.",
    _NS,
)
NAMESPACE_GENERATION = _made(
    "exporter", "gauge", "namespace_generation", "The newest learner's generation.", _NS
)
NAMESPACE_NUMBER = _made(
    "exporter", "gauge", "namespace_version_number", "Number of the newest version.", _NS
)
NAMESPACE_AGE = _made(
    "exporter",
    "gauge",
    "namespace_version_age_seconds",
    "Seconds since the newest version was published, by its learner's clock and the store's.",
    _NS,
)
NAMESPACE_BYTES = _made(
    "exporter", "gauge", "namespace_state_bytes", "Bytes of the newest version's blobs.", _NS
)
NAMESPACE_VERSIONS = _made(
    "exporter", "gauge", "namespace_versions", "How many versions are stored.", _NS
)
NAMESPACE_PINNED = _made(
    "exporter", "gauge", "namespace_pinned_versions", "How many versions are pinned.", _NS
)
NAMESPACE_UNREADABLE = _made(
    "exporter",
    "gauge",
    "namespace_unreadable_versions",
    "How many versions have a record that is damaged, or not signed as it must be.",
    _NS,
)
NAMESPACE_READERS = _made(
    "exporter", "gauge", "namespace_readers", "How many readers left a note lately.", _NS
)
NAMESPACE_READERS_BEHIND = _made(
    "exporter",
    "gauge",
    "namespace_readers_behind",
    "How many of them fetched an older version than the newest one.",
    _NS,
)
NAMESPACE_LAG_VERSIONS = _made(
    "exporter",
    "gauge",
    "namespace_reader_lag_versions",
    "Versions that the reader furthest behind is behind.",
    _NS,
)
NAMESPACE_LAG_SECONDS = _made(
    "exporter",
    "gauge",
    "namespace_reader_lag_seconds",
    "Seconds since the newest version was there that the reader furthest behind has not fetched.",
    _NS,
)
NAMESPACE_WRITER = _made(
    "exporter",
    "info",
    "namespace_writer_info",
    "Who published the newest version, or took over since.",
    _NS,
    "writer",
    "host",
    "pid",
)

INSTRUMENTS: tuple[Instrument, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Instrument)
)
"""All of them."""


def of(*sources: Source) -> tuple[Instrument, ...]:
    """Those that one of these sources has."""
    return tuple(each for each in INSTRUMENTS if each.source in sources)
