"""The table of metrics follows Prometheus' conventions."""

from __future__ import annotations

import re

import pytest

from redis_state_sync.instruments import INSTRUMENTS, PREFIX, Instrument, of

each = pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda i: i.name)


@each
def test_names(instrument: Instrument) -> None:
    """A name has our prefix, ends as its kind asks for, and names a base unit and no other."""
    name = instrument.name
    assert re.fullmatch(PREFIX + r"[a-z][a-z_]*[a-z]", name)
    assert name.endswith("_total") == (instrument.kind == "counter")
    assert name.endswith("_info") == (instrument.kind == "info")
    # What a histogram's series end with would be mixed up with them.
    assert not re.search(r"_(count|sum|bucket|created)$", name)
    words = name.removeprefix(PREFIX).split("_")
    assert not {"ms", "us", "millis", "milliseconds", "kb", "mb", "minutes"} & set(words)
    if instrument.unit in ("seconds", "bytes"):
        assert words[-1] == instrument.unit or words[-2:] == [instrument.unit, "total"]
    if instrument.kind == "histogram":
        assert instrument.unit == "seconds"


@each
def test_help(instrument: Instrument) -> None:
    """Each says what it is, in a sentence on one line."""
    assert re.fullmatch(r"[A-Z1][^\n]*\.", instrument.help)


@each
def test_buckets(instrument: Instrument) -> None:
    """A histogram, and nothing else, has buckets, which ascend from above 0."""
    buckets = instrument.buckets
    assert bool(buckets) == (instrument.kind == "histogram")
    assert list(buckets) == sorted({b for b in buckets if b > 0})


@each
def test_labels_are_few(instrument: Instrument) -> None:
    """No label takes a new value with each version or process; what tells of a writer does."""
    labels = set(instrument.all_labels)
    assert len(labels) == len(instrument.all_labels)
    if instrument.kind != "info":
        assert labels <= {"state_namespace", "role", "operation", "category"}
    if instrument.source != "exporter":
        assert {"state_namespace", "role"} <= labels


def test_names_are_unique() -> None:
    """No two metrics have a name, or a time series, in common."""
    series = [name for instrument in INSTRUMENTS for name in instrument.series]
    assert len(series) == len(set(series))


def test_every_metric_has_a_source() -> None:
    """The sources together have all of them."""
    assert set(of("learner", "reader", "both", "exporter")) == set(INSTRUMENTS)
    assert len(of("exporter")) + len(of("learner", "reader", "both")) == len(INSTRUMENTS)
