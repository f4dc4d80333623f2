"""What the exporter serves: the metrics of a store, made of what was seen last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from redis_state_sync import instruments as known
from redis_state_sync.cli.looker import Look, Seen
from redis_state_sync.instruments import Instrument
from redis_state_sync.manifest import Writer


class StoreCollector:
    """A collector of `prometheus_client`.

    Args:
        latest: Returns what was seen last.
    """

    def __init__(self, latest: Callable[[], Look]) -> None:
        self._latest = latest

    def describe(self) -> list[Any]:
        """Nothing: registering asks no questions."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics. Of a store that is down there is little to tell."""
        look = self._latest()
        yield _gauge(known.EXPORTER_STORE_UP, look.up)
        yield _gauge(known.EXPORTER_LOOK_SECONDS, look.seconds)
        if look.ended is not None:
            yield _gauge(known.EXPORTER_LOOK_AT, look.ended)
        errors = known.EXPORTER_ERRORS
        counter = CounterMetricFamily(errors.name, errors.help, labels=errors.labels)
        for category, count in look.errors.items():
            counter.add_metric([category], count)
        yield counter
        families: dict[Instrument, GaugeMetricFamily] = {}
        infos = InfoMetricFamily(
            known.NAMESPACE_WRITER.name.removesuffix("_info"),
            known.NAMESPACE_WRITER.help,
            labels=known.NAMESPACE_WRITER.labels[:1],
        )
        now = time.monotonic()
        for seen in look.namespaces:
            namespace = seen.overview.namespace
            for instrument, value in _values(seen, now):
                family = families.get(instrument)
                if family is None:
                    family = GaugeMetricFamily(
                        instrument.name, instrument.help, labels=instrument.labels
                    )
                    families[instrument] = family
                family.add_metric([namespace], value)
            writer = _writer(seen)
            if writer is not None:
                told = {"writer": writer.id, "host": writer.host, "pid": str(writer.pid)}
                infos.add_metric([namespace], told)
        yield from families.values()
        yield infos


def _gauge(instrument: Instrument, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(instrument.name, instrument.help, value=float(value))


def _values(seen: Seen, now: float) -> Iterator[tuple[Instrument, float]]:
    found = seen.overview
    newest = found.newest
    if seen.learner_up is not None:
        yield known.NAMESPACE_LEARNER_UP, float(seen.learner_up)
    if found.generation is not None:
        yield known.NAMESPACE_GENERATION, found.generation
    if newest is not None:
        yield known.NAMESPACE_NUMBER, newest.version.number
        age = found.age_s(newest)
        if age is not None:
            yield known.NAMESPACE_AGE, max(0.0, age + now - seen.at)
        if newest.manifest is not None:
            yield known.NAMESPACE_BYTES, newest.manifest.size
    yield known.NAMESPACE_VERSIONS, len(found.versions)
    yield known.NAMESPACE_PINNED, len(set(found.pins.values()))
    yield known.NAMESPACE_UNREADABLE, sum(each.problem is not None for each in found.versions)
    yield known.NAMESPACE_READERS, len(seen.readers)
    top = newest.version if newest else None
    behind = [reader for reader in seen.readers if top is not None and reader.version < top]
    yield known.NAMESPACE_READERS_BEHIND, len(behind)
    # Of another learner's versions a reader has none.
    lags = [top.number if reader.lag is None else reader.lag for reader in behind if top]
    yield known.NAMESPACE_LAG_VERSIONS, max(lags, default=0)
    yield known.NAMESPACE_LAG_SECONDS, max(seen.lags_s, default=0.0)


def _writer(seen: Seen) -> Writer | None:
    found = seen.overview
    if found.claimed_by is not None:
        return found.claimed_by
    manifest = found.newest.manifest if found.newest else None
    return manifest.writer if manifest is not None else None
