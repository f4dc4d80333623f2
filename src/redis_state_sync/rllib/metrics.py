"""Our numbers in RLlib's results, by RLlib's own names and loggers."""

from __future__ import annotations

from typing import Any

from redis_state_sync.events import Applied, Event, Failed, Fetched, Polled
from redis_state_sync.publisher import StatePublisher

REDIS_STATE = "redis_state"


class EnvRunnerMetrics:
    """An observer that logs into an EnvRunner's `MetricsLogger`.

    The numbers appear in ``result["env_runners"]["redis_state"]``: `poll_timer`, `fetch_timer`,
    `apply_timer` (seconds, mean), `num_polls`, `num_fetches`, `num_bytes_fetched`,
    `num_versions_skipped` (all `_lifetime`), `num_failures_lifetime` by category, and the version
    applied: `generation`, `version_number_min` and `_max` over the EnvRunners.
    """

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __call__(self, event: Event, /) -> None:
        """Logs one event."""
        match event:
            case Polled(seconds=seconds, count=count):
                self._mean("poll_timer", seconds)
                self._count("num_polls_lifetime", count)
            case Fetched(bytes_fetched=size, skipped=skipped, seconds=seconds):
                self._mean("fetch_timer", seconds)
                self._count("num_fetches_lifetime", 1)
                self._count("num_bytes_fetched_lifetime", size)
                self._count("num_versions_skipped_lifetime", skipped)
            case Applied(version=version, seconds=seconds):
                self._mean("apply_timer", seconds)
                self._last("generation", version.generation, "max")
                self._last("version_number_min", version.number, "min")
                self._last("version_number_max", version.number, "max")
            case Failed(category=category):
                self._count("num_failures_lifetime", 1, category)

    def _mean(self, name: str, value: float) -> None:
        self._logger.log_value((REDIS_STATE, name), value)

    def _count(self, name: str, value: int, *more: str) -> None:
        self._logger.log_value((REDIS_STATE, name, *more), value, reduce="lifetime_sum")

    def _last(self, name: str, value: int, reduce: str) -> None:
        self._logger.log_value((REDIS_STATE, name), value, reduce=reduce, window=1)


def learner_results(publisher: StatePublisher, pushes: int) -> dict[str, Any]:
    """What ``result["redis_state"]`` holds.

    Returns:
        `publish_timer` (seconds of the last one), `num_publishes_lifetime`,
        `num_bytes_sent_lifetime`, `num_bytes_saved_lifetime` (unchanged, so not sent),
        `num_versions_dropped_lifetime` (replaced before they were sent), `num_pushes_lifetime`
        (syncs that went Ray's way while the store was down), `num_failures_lifetime` by category,
        `last_version`, `generation`, `namespace`, `store_is_up`.
    """
    stats = publisher.stats
    return {
        "publish_timer": stats.last_seconds,
        "num_publishes_lifetime": stats.publishes,
        "num_bytes_sent_lifetime": stats.bytes_sent,
        "num_bytes_saved_lifetime": stats.bytes_saved,
        "num_versions_dropped_lifetime": stats.dropped,
        "num_pushes_lifetime": pushes,
        "num_failures_lifetime": dict(stats.failures),
        "last_version": str(publisher.last_version) if publisher.last_version else None,
        "generation": publisher.generation,
        "namespace": publisher.keys.namespace,
        "store_is_up": publisher.healthy,
    }
