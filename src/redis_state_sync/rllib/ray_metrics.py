"""Metrics in Ray's own, which it exports for Prometheus: of the learner and its EnvRunners."""

from __future__ import annotations

import functools
from typing import Any

from ray.util import metrics as ray_metrics

from redis_state_sync.instruments import COMMON_LABELS, Instrument
from redis_state_sync.recorder import Recorder


class RayMetrics(Recorder):
    """An observer that keeps metrics with Ray, under their names with ``ray_`` before them.

    Ray adds labels that say which process it is: `WorkerId`, `NodeAddress`, `SessionName`. Without
    `ray[default]` it exports nothing, and noting costs as little.

    Args:
        namespace: Of the learner or reader; a label.
        role: ``"learner"``, ``"env_runner"`` or ``"eval_env_runner"``; a label.
    """

    def __init__(self, namespace: str, role: str) -> None:
        super().__init__(_Sink(dict(zip(COMMON_LABELS, (namespace, role), strict=True))))
        self._labels = namespace, role

    def __reduce__(self) -> tuple[type[RayMetrics], tuple[str, str]]:
        return RayMetrics, self._labels


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
