"""Metrics in Ray's own, which it exports for Prometheus: of the learner and its EnvRunners."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

from ray.util import metrics as ray_metrics

from redis_state_sync import background
from redis_state_sync.events import Event
from redis_state_sync.instruments import COMMON_LABELS, Instrument
from redis_state_sync.recorder import Recorder

# Ray hands a gauge on once each time that it is set, and shows it for twice the time between two of
# its reports, which is a second at least (Ray 2.60).
_RENEW_EVERY_S = 1.0


class RayMetrics(Recorder):
    """An observer that keeps metrics with Ray, under their names with ``ray_`` before them.

    Ray adds labels that say which process it is: `WorkerId`, `NodeAddress`, `SessionName`. Without
    `ray[default]` it exports nothing, and noting costs as little.

    Args:
        namespace: Of the learner or reader; a label.
        role: ``"learner"``, ``"env_runner"`` or ``"eval_env_runner"``, the latter two with
            ``"follower_"`` before them in a follower; a label.
        may_be_idle: Whether there may be no events for more than a second: a thread then has Ray
            go on showing what there is. (A learner looks after the store all the time.)
    """

    def __init__(self, namespace: str, role: str, *, may_be_idle: bool = False) -> None:
        super().__init__(_Sink(dict(zip(COMMON_LABELS, (namespace, role), strict=True))))
        self._labels = namespace, role
        self._may_be_idle = may_be_idle
        self._renew_at = 0.0
        self._closed = False
        if may_be_idle:
            try:
                background.start(
                    self,
                    threading.Condition(),
                    due=RayMetrics._due,
                    work=RayMetrics._work,
                    ended=_nothing,
                    name="redis-state-sync-metrics",
                )
            except RuntimeError:
                pass  # No further thread: gauges of an idle reader vanish for a while.

    def __reduce__(self) -> Any:
        again = functools.partial(RayMetrics, may_be_idle=self._may_be_idle)
        return again, self._labels

    def __call__(self, event: Event, /) -> None:
        """Takes note of one event."""
        super().__call__(event)
        if time.monotonic() >= self._renew_at:
            self._work()

    def close(self) -> None:
        """Ends the thread, if there is one. It ends, too, when nobody holds this any more."""
        self._closed = True

    def _due(self) -> background.Due | None:
        if self._closed:
            return None
        return background.Due(self._renew_at - time.monotonic(), waits=False)

    def _work(self) -> None:
        self._renew_at = time.monotonic() + _RENEW_EVERY_S
        self.renew()


def _nothing() -> None:
    pass


@functools.cache
def _metric(instrument: Instrument) -> Any:
    """Ray's metric; one for each process, whoever asks."""
    name, text, labels = instrument.name, instrument.help, instrument.all_labels
    if instrument.kind == "histogram":
        return ray_metrics.Histogram(name, text, list(instrument.buckets), labels)
    if instrument.kind == "counter":
        return ray_metrics.Counter(name, text, labels)
    return ray_metrics.Gauge(name, text, labels)


class _Sink:
    def __init__(self, common: dict[str, str]) -> None:
        self._common = common

    def add(self, instrument: Instrument, value: float, **labels: str) -> None:
        _metric(instrument).inc(value, {**self._common, **labels})

    def set(self, instrument: Instrument, value: float) -> None:
        _metric(instrument).set(value, self._common)

    def observe(self, instrument: Instrument, seconds: float, count: int) -> None:
        metric = _metric(instrument)
        for _ in range(count):
            metric.observe(seconds, self._common)
