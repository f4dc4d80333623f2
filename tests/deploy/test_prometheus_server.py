"""A real Prometheus with the deployed files: it scrapes, evaluates rules, and answers panels."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml

from redis_state_sync import StatePublisher, StateSubscriber, open_store
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.prometheus import PrometheusMetrics
from tests.deploy.server import find_tool, free_port
from tests.deploy.test_monitoring import PROMETHEUS, QUERIES, rules

WAIT = 30.0


class Prometheus:
    """The server, scraping what it is told to.

    Args:
        folder: For its configuration and data.
        targets: Job -> address.
        ray: Address of a node of Ray.
    """

    def __init__(self, folder: Path, targets: dict[str, str], ray: str) -> None:
        config: dict[str, Any] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
        (discovered,) = (j for j in config["scrape_configs"] if "file_sd_configs" in j)
        # As Ray writes it.
        found = [{"labels": {"job": "ray"}, "targets": [ray]}]
        (folder / "nodes.json").write_text(json.dumps(found))
        discovered["file_sd_configs"][0]["files"] = [str(folder / "nodes.json")]
        for job in config["scrape_configs"]:
            if job["job_name"] in targets:
                job["static_configs"][0]["targets"] = [targets[job["job_name"]]]
        path = folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        (folder / "alerts.yaml").write_text((PROMETHEUS / "alerts.yaml").read_text())
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    find_tool("prometheus"),
                    f"--config.file={path}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, what: str, **parameters: str) -> Any:
        """What its API answers."""
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=WAIT) as reply:  # noqa: S310 - http
            answer = json.loads(reply.read())
        assert answer["status"] == "success", answer
        return answer["data"]

    def value(self, query: str) -> float | None:
        """The value of a query that has one sample; None if it has none."""
        result = self.ask("query", query=query)["result"]
        return float(result[0]["value"][1]) if result else None

    def until(self, true: Callable[[], Any], what: str) -> None:
        """Waits for a condition; a server that does not answer yet has not met it."""
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self._log.read_text()
            try:
                if true():
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"{what}: {self._log.read_text()[-2000:]}")

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that scrapes an exporter, and a learner and a reader that stand where Ray would."""
    find_tool("prometheus")
    registry = prometheus_client.CollectorRegistry()
    httpd, _ = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    command = [sys.executable, "-m", "redis_state_sync.cli.main", "exporter", "--port", "0"]
    with EmbeddedServer() as server:
        learner = PrometheusMetrics("n", "learner", registry=registry)
        reader = PrometheusMetrics("n", "reader", registry=registry)
        with (
            closing(StatePublisher(open_store(server.url), "n", observers=[learner])) as publisher,
            closing(StateSubscriber(open_store(server.url), "n", observers=[reader])) as subscriber,
            subprocess.Popen(
                [*command, "--json", "--interval", "1", "--url", server.url],
                stdout=subprocess.PIPE,
                text=True,
            ) as exporter,
        ):
            publisher.publish({"rl_module/p": {"w": 1.0}}).wait(WAIT)
            assert subscriber.refresh(lambda snapshot: None) is not None
            assert exporter.stdout is not None
            url = json.loads(exporter.stdout.readline())["url"]
            address = urllib.parse.urlparse(url).netloc
            own = f"127.0.0.1:{httpd.server_port}"
            made = Prometheus(
                tmp_path_factory.mktemp("prometheus"),
                {"redis-state-sync": address, "redis": own},
                own,
            )
            try:
                yield made
            finally:
                made.close()
                exporter.terminate()
                httpd.shutdown()
                httpd.server_close()


def test_it_scrapes(prometheus: Prometheus) -> None:
    """All jobs are up, and what learner, reader and exporter tell arrives."""
    for job in ("ray", "redis-state-sync", "redis"):
        query = f'up{{job="{job}"}}'
        prometheus.until(lambda query=query: prometheus.value(query) == 1, job)
    for query in (
        "redis_state_sync_exporter_store_up",
        'redis_state_sync_namespace_learner_up{state_namespace="n"}',
        'redis_state_sync_applied_version_number{job="ray"}',
        'redis_state_sync_namespace_readers{state_namespace="n"}',
    ):
        prometheus.until(lambda query=query: prometheus.value(query) == 1, query)


def test_rules_are_evaluated(prometheus: Prometheus) -> None:
    """Every rule is evaluated without an error, on what is really there; and no alert fires."""

    def evaluated() -> list[dict[str, Any]]:
        groups = prometheus.ask("rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        assert not [rule for rule in found if rule["health"] == "err"], found
        return [rule for rule in found if rule["health"] == "ok"]

    prometheus.until(lambda: len(evaluated()) == len(rules()), "all evaluated")
    assert {rule["name"] for rule in evaluated()} == {rule["alert"] for rule in rules()}
    assert [rule["name"] for rule in evaluated() if rule["state"] != "inactive"] == []


def test_panels_are_answered(prometheus: Prometheus) -> None:
    """Each panel's query runs without an error; those of what is there have an answer."""
    prometheus.until(
        lambda: prometheus.value("rate(redis_state_sync_poll_seconds_count[1m])") is not None,
        "two scrapes",
    )
    silent = set()
    for where, query in QUERIES:
        if not prometheus.ask("query", query=query)["result"]:
            silent.add(where)
    answered = {where for where, _ in QUERIES} - silent
    for question in (
        "Is anyone stale? Versions behind A",
        "How old is what readers act with? A",
        "Is Redis slow? Polls A",
        "How long does a publish take? A",
        "Does the store answer? A",
        "Does the store answer? B",
        "Who writes? A",
        "Is a learner at work? A",
        "How old is the newest version? A",
        "How much is fetched? A",
        "How large is a state? A",
        "How many readers are behind, as the store sees it? A",
    ):
        assert question in answered, sorted(answered)
