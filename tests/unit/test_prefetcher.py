"""The thread that looks ahead: on and off, dropped and closed."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from redis_state_sync import background
from redis_state_sync.prefetcher import Prefetcher
from tests.unit.flight import wait_until
from tests.unit.forking import in_child
from tests.unit.states import WAIT


class Holder:
    """Has a prefetcher, as a subscriber does."""

    def __init__(self, every_s: float | None = 0.001) -> None:
        self.looks = 0
        self.threads: set[threading.Thread] = set()
        self.looked = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.found = False
        self.spend_s = 0.0
        self.prefetcher = Prefetcher(self.look, every_s)

    def look(self) -> bool:
        self.looks += 1
        self.threads.add(threading.current_thread())
        self.looked.set()
        self.go_on.wait(WAIT)
        until = time.thread_time() + self.spend_s
        while time.thread_time() < until:
            pass
        return self.found

    def wait_for(self, more: int) -> None:
        """Until it looked so many times more."""
        wanted = self.looks + more
        wait_until(lambda: self.looks >= wanted)


def test_looks_only_while_it_is_on() -> None:
    """On, it looks again and again, on one thread; off, it does not look at all."""
    holder = Holder()
    prefetcher = holder.prefetcher
    assert not prefetcher.is_on
    for _ in range(3):
        prefetcher.turn_on()
        assert prefetcher.is_on
        holder.wait_for(3)
        prefetcher.turn_off()
        assert not prefetcher.is_on
        time.sleep(0.01)  # A look that had begun.
        seen = holder.looks
        time.sleep(0.05)
        assert holder.looks == seen
    assert len(holder.threads) == 1
    assert threading.current_thread() not in holder.threads
    prefetcher.close()


def test_turning_on_wakes_it() -> None:
    """A block may be short: what waits while it is off does not sleep on when it is on."""
    holder = Holder()
    holder.prefetcher.turn_on()
    holder.wait_for(1)
    holder.prefetcher.turn_off()
    time.sleep(0.02)
    woken = []
    for _ in range(5):
        holder.looked.clear()
        began = time.monotonic()
        holder.prefetcher.turn_on()
        assert holder.looked.wait(WAIT)
        woken.append(time.monotonic() - began)
        holder.prefetcher.turn_off()
        time.sleep(0.02)
    assert min(woken) < background._LOOK_S / 5
    holder.prefetcher.close()


def test_looking_in_vain_costs_a_hundredth_of_a_core() -> None:
    """The more CPU time a look in vain takes, the longer the pause; one that found is no cost."""
    holder = Holder(every_s=None)
    holder.spend_s = 0.001
    began = time.monotonic()
    holder.prefetcher.turn_on()
    holder.wait_for(3)  # The first comes at once, the others after 132 ms each.
    assert time.monotonic() - began > 2 * 0.12
    holder.prefetcher.close()
    holder = Holder(every_s=None)
    holder.spend_s, holder.found = 0.02, True
    began = time.monotonic()
    holder.prefetcher.turn_on()
    holder.wait_for(3)
    assert 2 * 0.01 < time.monotonic() - began < 2 * 0.02 * 99
    holder.prefetcher.close()


def test_dropping_its_holder_ends_the_thread() -> None:
    """Neither the thread nor the prefetcher keeps its holder alive, on or off; nor does a cycle."""
    for on in (True, False):
        holder = Holder()
        holder.prefetcher.turn_on()
        holder.wait_for(2)
        if not on:
            holder.prefetcher.turn_off()
        (thread,) = holder.threads
        there = weakref.ref(holder)
        gc.disable()
        try:
            del holder
            wait_until(lambda there=there: there() is None)
        finally:
            gc.enable()
        thread.join(WAIT)
        assert not thread.is_alive()


def test_it_does_not_look_all_the_time() -> None:
    """However cheap a look is, at most a hundred a second are made."""
    holder = Holder(every_s=None)
    began = time.monotonic()
    holder.prefetcher.turn_on()
    holder.wait_for(6)
    assert time.monotonic() - began > 5 * 0.009
    holder.prefetcher.close()


def test_close_ends_the_thread() -> None:
    """At once, also while it is off; it can be turned on again, with a new thread."""
    holder = Holder()
    holder.prefetcher.close()
    for number in (1, 2):
        holder.prefetcher.turn_on()
        holder.wait_for(2)
        if number == 1:
            holder.prefetcher.turn_off()
        holder.prefetcher.close()
        assert not holder.prefetcher.is_on
        assert not any(thread.is_alive() for thread in holder.threads)
    assert len(holder.threads) == 2


def test_close_does_not_wait_for_a_look_that_hangs() -> None:
    """It returns; the thread ends with its look, also if it was turned on again meanwhile."""
    holder = Holder()
    holder.go_on.clear()
    holder.prefetcher.turn_on()
    assert holder.looked.wait(WAIT)
    (first,) = holder.threads
    began = time.monotonic()
    holder.prefetcher.close()
    assert time.monotonic() - began < WAIT / 2
    assert first.is_alive()
    holder.prefetcher.turn_on()
    holder.go_on.set()
    holder.wait_for(5)
    first.join(WAIT)
    assert not first.is_alive()
    assert len(holder.threads) == 2
    holder.prefetcher.close()


def test_its_own_thread_may_close_it() -> None:
    """The interpreter may drop its holder on that thread: it does not wait for itself."""

    class Closing(Holder):
        def look(self) -> bool:
            self.prefetcher.close()
            return super().look()

    holder = Closing()
    holder.prefetcher.turn_on()
    assert holder.looked.wait(WAIT)
    (thread,) = holder.threads
    thread.join(WAIT)
    assert not thread.is_alive()
    assert holder.looks == 1


def test_without_a_thread_it_is_not_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there can be no further thread, nobody must rely on it; later there may be one."""
    holder = Holder()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            holder.prefetcher.turn_on()
    assert not holder.prefetcher.is_on
    holder.prefetcher.turn_on()
    holder.wait_for(1)
    holder.prefetcher.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_closing_in_a_forked_child() -> None:
    """What is closed when a child exits waits for no lock that the parent's thread had: C90."""
    holder = Holder()
    holder.prefetcher.turn_on()
    holder.wait_for(1)
    with holder.prefetcher._changed:
        other = []
        thread = threading.Thread(target=lambda: other.append(in_child(holder.prefetcher.close)))
        thread.start()
        thread.join(WAIT)
    assert other == [0]
    holder.prefetcher.close()
