"""What Ray really exports of our metrics, as Prometheus would scrape it."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig

from redis_state_sync import Version, events, instruments
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib import with_redis_state
from redis_state_sync.rllib.ray_metrics import RayMetrics
from redis_state_sync.testing import skip_or_fail
from tests.unit.effort import effort

WAIT = 120.0
PREFIX = f"ray_{instruments.PREFIX}"
# One event of each kind, so that every metric has a value.
EVERYTHING = (
    events.Claimed(1),
    events.Published(Version(1, 1), 1000, 100, 0.02),
    events.Dropped(3),
    events.Pushed(Version(1, 1)),
    events.Looked(0.001),
    events.Polled(Version(1, 2), 0.0007, count=5),
    events.Fetched(Version(1, 1), 500, 2, 0.02),
    events.Applied(Version(1, 1), 0.02, 1_000_000),
    events.Failed("fetch", "integrity", "x"),
    events.Stale(None, 1.5),
)
Labels = frozenset[tuple[str, str]]
Samples = dict[str, dict[Labels, float]]


@pytest.fixture(scope="module")
def scrape() -> Iterator[Callable[[], Samples]]:
    """A Ray that reports each second, and its metrics by name, labels and value: ours alone."""
    try:
        import opentelemetry.exporter.prometheus  # noqa: F401
        from prometheus_client.parser import text_string_to_metric_families
        from ray.dashboard import optional_deps  # noqa: F401
    except ImportError:
        skip_or_fail("needs what Ray exports metrics with: pip install 'ray[default]'")
    ray.init(
        include_dashboard=False,
        num_cpus=4,
        object_store_memory=300_000_000,
        logging_level="warning",
        log_to_driver=False,
        _system_config={"metrics_report_interval_ms": 1000},
    )
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

    def get() -> Samples:
        found: Samples = {}
        with urllib.request.urlopen(url, timeout=WAIT) as reply:
            text = reply.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(PREFIX):
                    labels = frozenset(sample.labels.items())
                    found.setdefault(sample.name, {})[labels] = sample.value
        return found

    yield get
    ray.shutdown()


def until(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@ray.remote(num_cpus=0)
class Process:
    """A process that tells of events."""

    def __init__(self, role: str, *, may_be_idle: bool = True) -> None:
        self._metrics = RayMetrics("n", role, may_be_idle=may_be_idle)

    def tell(self, *told: events.Event) -> None:
        for event in told:
            self._metrics(event)
        self._metrics.flush()

    def effort(self, event: events.Event) -> float:
        """Of taking note of one event."""
        return effort(lambda: self._metrics(event))


def of_role(samples: Samples, name: str, role: str) -> list[float]:
    return [v for labels, v in samples.get(PREFIX + name, {}).items() if ("role", role) in labels]


def test_every_name_is_exported(scrape: Callable[[], Samples]) -> None:
    """Ray exports each metric of the table under its name with ``ray_`` before it, and no other."""
    process = Process.remote("everything")
    ray.get(process.tell.remote(*EVERYTHING))
    until(lambda: of_role(scrape(), "lag_versions", "everything"), "it arrives")
    samples = scrape()
    table = instruments.of("learner", "reader", "both")
    assert set(samples) == {f"ray_{name}" for each in table for name in each.series}
    for each in table:
        for name in each.series:
            for labels in samples[f"ray_{name}"]:
                names = {label for label, _ in labels}
                le = {"le"} if name.endswith("_bucket") else set()
                assert {*each.all_labels, *le, "SessionName", "WorkerId"} <= names, name

    def value(name: str) -> float:
        (found,) = of_role(samples, name, "everything")
        return found

    assert value("polls_total") == value("poll_seconds_count") == 5
    assert value("sent_bytes_total") == 1000
    assert value("dropped_versions_total") == 3
    assert value("stale_wait_seconds_total") == 1.5
    assert value("lag_versions") == 1
    assert value("applied_published_timestamp_seconds") == 1000
    assert value("failures_total") == 1
    buckets = {
        dict(labels)["le"]: count
        for labels, count in samples[f"{PREFIX}poll_seconds_bucket"].items()
        if ("role", "everything") in labels
    }
    bounds = {float(le) for le in buckets} - {float("inf")}
    assert bounds == set(instruments.POLL_SECONDS.buckets)
    assert {le: count for le, count in buckets.items() if float(le) <= 0.001} == {
        **dict.fromkeys([le for le in buckets if float(le) < 0.001], 0),
        **dict.fromkeys([le for le in buckets if float(le) == 0.001], 5),
    }


def test_gauges_of_an_idle_reader_stay(scrape: Callable[[], Samples]) -> None:
    """Ray shows what a process acts with as long as the process lives, however idle it is."""
    idle, ended = Process.remote("idle"), Process.remote("ended")
    applied = events.Applied(Version(7, 3), 0.1, 1)
    ray.get([idle.tell.remote(applied), ended.tell.remote(applied)])
    for role in ("idle", "ended"):
        until(lambda role=role: of_role(scrape(), "applied_version_number", role) == [3], "there")
    ray.kill(ended)
    until(lambda: not of_role(scrape(), "applied_version_number", "ended"), "it goes away")
    # So by now that of the other would have gone away, too.
    assert of_role(scrape(), "applied_version_number", "idle") == [3]
    assert of_role(scrape(), "applied_generation", "idle") == [7]


def test_training(scrape: Callable[[], Samples], server: EmbeddedServer) -> None:
    """A training run's learner and EnvRunners show what they did, with nothing to be set."""
    config = (
        APPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, rollout_fragment_length=50)
        .learners(num_learners=0)
        .reporting(min_time_s_per_iteration=1)
    )
    began = time.time()
    algo = with_redis_state(config, server.url, namespace="metrics").build_algo()
    try:
        for _ in range(3):
            result = algo.train()
        own = result["redis_state"]

        def arrived() -> bool:
            found = scrape()
            published = of_role(found, "published_version_number", "learner")
            applied = of_role(found, "applied_version_number", "env_runner")
            return bool(published and len(applied) == 2 and min(applied) > 1)

        until(lambda: algo.train() and arrived(), "numbers of the learner and both EnvRunners")
        samples = scrape()
    finally:
        algo.stop()

    def learner(name: str) -> float:
        (found,) = of_role(samples, name, "learner")
        return found

    def runners(name: str) -> list[float]:
        found = of_role(samples, name, "env_runner")
        assert len(found) == 2, name
        return found

    assert learner("generation") == own["generation"]
    assert set(runners("applied_generation")) == {own["generation"]}
    assert learner("store_up") == 1
    assert learner("fenced") == 0
    assert learner("claims_total") == 1
    assert 1 < learner("publish_seconds_count") <= learner("published_version_number")
    assert learner("sent_bytes_total") > 10_000
    assert learner("look_seconds_count") > 0
    assert runners("store_up") == [1, 1]
    assert all(count > 1 for count in runners("fetch_seconds_count"))
    assert all(count > 1 for count in runners("apply_seconds_count"))
    assert all(polls >= 3 for polls in runners("polls_total"))
    assert all(size > 0 for size in runners("fetched_bytes_total"))  # The node has the rest.
    for name in ("applied_timestamp_seconds", "applied_published_timestamp_seconds"):
        assert all(began - 1 < moment < time.time() + 1 for moment in runners(name))
    namespaces = {
        dict(labels)["state_namespace"]
        for labels in samples[f"{PREFIX}polls_total"]
        if ("role", "env_runner") in labels
    }
    assert namespaces == {"metrics"}
    series = sum(len(of_role(samples, n.removeprefix(PREFIX), "env_runner")) for n in samples)
    assert series / 2 < 80  # What docs/monitoring.md says an EnvRunner makes of them.


def test_pushes_are_told(scrape: Callable[[], Samples]) -> None:
    """Each sync that goes Ray's own way while the store is down is told to who keeps metrics."""
    heard: list[events.Event] = []
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    )
    with EmbeddedServer() as own:
        algo = with_redis_state(config, own.url, namespace="pushes").build_algo()
        try:
            sync = algo.redis_state_sync
            assert [type(observer) for observer in sync._observers] == [RayMetrics]
            sync._observers = (heard.append,)
            algo.train()
            assert heard == []
            own.kill()
            algo.train()
            assert len(heard) == sync.num_pushes > 0
            assert all(isinstance(event, events.Pushed) for event in heard)
        finally:
            algo.stop()


def test_noting_a_poll_costs_little(scrape: Callable[[], Samples]) -> None:
    """In a process that reports, noting a poll takes a small part of what the poll itself does."""
    process = Process.remote("cost")
    # A poll is about 500 times the effort of reading a clock, and one that asks nobody 60 times.
    assert ray.get(process.effort.remote(events.Polled(None, 3e-5))) < 150
    assert ray.get(process.effort.remote(events.Polled(None, 0.0, unasked=1))) < 25
