"""Metrics for Prometheus, of learners and readers outside Ray. Needs the extra `prometheus`."""

from __future__ import annotations

import threading
import weakref
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from redis_state_sync import instruments
from redis_state_sync.errors import SettingsError
from redis_state_sync.instruments import COMMON_LABELS, Instrument
from redis_state_sync.keys import check_namespace
from redis_state_sync.recorder import Recorder

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_made: weakref.WeakKeyDictionary[Any, dict[Instrument, Any]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def require_prometheus_client() -> None:
    """Raises `SettingsError` with the remedy if the package is not installed."""
    if find_spec("prometheus_client") is None:
        raise SettingsError(
            "metrics for Prometheus need the package prometheus-client: "
            "pip install 'redis-state-sync[prometheus]'"
        )


class PrometheusMetrics(Recorder):
    """An observer that keeps metrics in a registry of `prometheus_client`::

        metrics = PrometheusMetrics("my-run", "reader")
        subscriber = StateSubscriber(store, "my-run", observers=[metrics])
        prometheus_client.start_http_server(9100, "127.0.0.1")

    All those of a process share their collectors, and differ by labels. Two readers of one
    namespace need roles of their own: what a gauge shows is whatever was set last. One that is
    pickled with its subscriber goes on with the registry of the process where it arrives.

    Args:
        namespace: Of the learner or reader; a label.
        role: What it is, such as ``"learner"``, ``"reader"`` or ``"serving"``; a label.
        registry: Where the collectors are registered. Default: the process's own.

    Raises:
        SettingsError: If an argument is wrong, or `prometheus_client` is not installed.
    """

    def __init__(
        self, namespace: str, role: str, *, registry: CollectorRegistry | None = None
    ) -> None:
        require_prometheus_client()
        check_namespace(namespace)
        if not isinstance(role, str) or not role:
            raise SettingsError(f"role must be a text that is not empty, got {role!r}")
        super().__init__(_Sink(_collectors(registry), namespace, role))
        self._labels = namespace, role

    def __reduce__(self) -> tuple[type[PrometheusMetrics], tuple[str, str]]:
        return PrometheusMetrics, self._labels


def _collectors(registry: CollectorRegistry | None) -> dict[Instrument, Any]:
    from prometheus_client import REGISTRY, Counter, Gauge, Histogram

    registry = REGISTRY if registry is None else registry
    with _lock:
        found = _made.get(registry)
        if found is None:
            kinds: dict[str, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
            found = {}
            for each in instruments.of("learner", "reader", "both"):
                more = {"buckets": each.buckets} if each.buckets else {}
                found[each] = kinds[each.kind](
                    each.name, each.help, each.all_labels, registry=registry, **more
                )
            _made[registry] = found
        return found


class _Sink:
    def __init__(self, collectors: dict[Instrument, Any], namespace: str, role: str) -> None:
        self._collectors = collectors
        self._common = dict(zip(COMMON_LABELS, (namespace, role), strict=True))
        self._children: dict[Instrument, Any] = {}

    def add(self, instrument: Instrument, value: float, **labels: str) -> None:
        self._child(instrument, labels).inc(value)

    def set(self, instrument: Instrument, value: float) -> None:
        self._child(instrument).set(value)

    def observe(self, instrument: Instrument, seconds: float, count: int) -> None:
        child = self._child(instrument)
        for _ in range(count):
            child.observe(seconds)

    def _child(self, instrument: Instrument, labels: dict[str, str] | None = None) -> Any:
        if labels:
            return self._collectors[instrument].labels(**self._common, **labels)
        child = self._children.get(instrument)
        if child is None:
            child = self._collectors[instrument].labels(**self._common)
            self._children[instrument] = child
        return child
