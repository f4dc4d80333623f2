"""Metrics of learners and readers outside Ray, as Prometheus scrapes them."""

from __future__ import annotations

import pickle
import time

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from redis_state_sync import SettingsError, Version, instruments
from redis_state_sync import prometheus as module
from redis_state_sync.events import Failed, Polled
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.prometheus import PrometheusMetrics
from tests.unit.effort import effort
from tests.unit.states import WAIT, Reader, publishing, state

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def scraped(registry: CollectorRegistry) -> Samples:
    """Name of a time series -> its labels -> value."""
    found: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = (
                    sample.value
                )
    return found


def labels(role: str, **more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"state_namespace": "n", "role": role, **more}.items()))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_a_learner_and_a_reader(registry: CollectorRegistry) -> None:
    """What is published, fetched and applied shows, with the labels of who did it."""
    store, began = MemoryStore(), time.time()
    learner = PrometheusMetrics("n", "learner", registry=registry)
    metrics = PrometheusMetrics("n", "reader", registry=registry)
    reader = Reader(store, observers=[metrics])
    with publishing(store, observers=[learner]) as publisher:
        version = publisher.publish(state(1)).wait(WAIT)
        assert reader.refresh() is not None
        assert reader.refresh() is None
        publisher.flush(WAIT)
    metrics.flush()
    found = scraped(registry)
    prefix = instruments.PREFIX
    assert found[f"{prefix}generation"] == {labels("learner"): version.generation}
    assert found[f"{prefix}published_version_number"] == {labels("learner"): 1}
    assert found[f"{prefix}claims_total"] == {labels("learner"): 1}
    assert found[f"{prefix}publish_seconds_count"] == {labels("learner"): 1}
    assert found[f"{prefix}sent_bytes_total"][labels("learner")] > 0
    assert found[f"{prefix}applied_version_number"] == {labels("reader"): 1}
    assert found[f"{prefix}applied_generation"] == {labels("reader"): version.generation}
    assert found[f"{prefix}polls_total"] == {labels("reader"): 2}
    assert found[f"{prefix}poll_seconds_count"] == {labels("reader"): 2}
    assert found[f"{prefix}apply_seconds_count"] == {labels("reader"): 1}
    assert found[f"{prefix}lag_versions"] == {labels("reader"): 0}
    assert found[f"{prefix}store_up"] == {labels("learner"): 1, labels("reader"): 1}
    for name in ("applied_timestamp", "applied_published_timestamp"):
        assert began - 1 < found[f"{prefix}{name}_seconds"][labels("reader")] < time.time() + 1
    le = labels("reader", le="+Inf")
    assert found[f"{prefix}poll_seconds_bucket"][le] == 2


def test_every_name_is_exported(registry: CollectorRegistry) -> None:
    """All metrics of the table are registered under their names, with their help, and no other."""
    PrometheusMetrics("n", "r", registry=registry)
    families = {
        family.name: family
        for family in text_string_to_metric_families(generate_latest(registry).decode())
    }
    table = instruments.of("learner", "reader", "both")
    assert families.keys() == {each.name.removesuffix("_total") for each in table}
    for each in table:
        family = families[each.name.removesuffix("_total")]
        assert family.type == each.kind
        assert family.documentation == each.help


def test_collectors_are_shared(registry: CollectorRegistry) -> None:
    """Two readers of a process have series of their own in one registry, by namespace and role."""
    for namespace, role in (("a", "x"), ("a", "y"), ("b", "x")):
        metrics = PrometheusMetrics(namespace, role, registry=registry)
        metrics(Polled(None, 0.1, count=3))
        metrics.flush()
    found = scraped(registry)
    for name in ("polls_total", "poll_seconds_count"):
        assert sorted(found[f"{instruments.PREFIX}{name}"].values()) == [3, 3, 3]
    # And of the same namespace and role they count together.
    again = PrometheusMetrics("a", "x", registry=registry)
    again(Polled(None, 0.1))
    again.flush()
    assert sorted(scraped(registry)[f"{instruments.PREFIX}polls_total"].values()) == [3, 3, 4]


def test_failures_have_their_labels(registry: CollectorRegistry) -> None:
    """A failure counts under its operation and category."""
    metrics = PrometheusMetrics("n", "r", registry=registry)
    for _ in range(2):
        metrics(Failed("poll", "timeout", "a secret message"))
    found = scraped(registry)[f"{instruments.PREFIX}failures_total"]
    assert found == {labels("r", operation="poll", category="timeout"): 2}
    assert b"secret" not in generate_latest(registry)


def test_the_default_registry() -> None:
    """Without a registry it is the process's own, which `start_http_server` serves."""
    PrometheusMetrics("n", "of the default registry")(Failed("poll", "timeout", "x"))
    text = generate_latest(prometheus_client.REGISTRY).decode()
    assert 'role="of the default registry"' in text


def test_it_travels() -> None:
    """Pickled with a subscriber, it counts where it arrives, from there on."""
    metrics = PrometheusMetrics("n", "travels", registry=CollectorRegistry())
    metrics(Polled(Version(1, 1), 0.1))
    other = pickle.loads(pickle.dumps(metrics))
    assert isinstance(other, PrometheusMetrics)
    other(Polled(None, 0.1))
    other.flush()
    found = scraped(prometheus_client.REGISTRY)[f"{instruments.PREFIX}polls_total"]
    assert found[labels("travels")] == 1


@pytest.mark.parametrize(("namespace", "role"), [("", "r"), ("n", ""), ("n", 3), (None, "r")])
def test_wrong_arguments(namespace: str, role: str) -> None:
    """A namespace that is none and an empty role are refused at once."""
    with pytest.raises(SettingsError):
        PrometheusMetrics(namespace, role, registry=CollectorRegistry())


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, the error names the command that installs it."""
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'redis-state-sync\[prometheus\]'"):
        PrometheusMetrics("n", "r")


@pytest.mark.parametrize(
    ("event", "most"),
    # A poll is about 500 times the effort of reading a clock, and one that asks nobody 60 times.
    [(Polled(None, 3e-5), 100), (Polled(None, 0.0, unasked=1), 15)],
)
def test_a_poll_costs_little(registry: CollectorRegistry, event: Polled, most: int) -> None:
    """What metrics add to a poll in vain is a small part of what it takes without them."""
    metrics = PrometheusMetrics("n", "r", registry=registry)
    assert effort(lambda: metrics(event)) < most
