"""What is promised about time, worked out from the settings of the processes under test."""

from __future__ import annotations

from dataclasses import dataclass

from redis_state_sync import Settings
from redis_state_sync.redis_store import REPLY_TIMEOUT_S

# The defaults that users get, but for the longest fetch: a minute is longer than any test's fault.
SETTINGS = Settings(transfer_timeout_s=2.0)
FIRST_TIMEOUT_S = 2.0

# Digests, decoding and copying, on a machine with less than one core for each process. (What it
# stands still is measured and taken off; that it is slow is not.)
OWN_WORK_S = 0.1
# Waiting for a connection, sending, each reply, and what is done with it: each time a thread may
# be put aside for as long as one that computes is just then (see `tests.chaos.stalls.Gauge`).
PUT_ASIDE = 5
# A line without a fault brings at least so much.
BYTES_PER_S = 10e6

# The longest cool-down of readers and learner is 1.5 s, and they sit it out side by side.
RECOVERED_S = 2.0
# One is written off; nothing tells a client that its connection is dead but that no reply comes.
DEAD_CONNECTION_S = REPLY_TIMEOUT_S
# Copying the state is all that publish() does on the caller's thread.
PUBLISH_CALL_S = 0.1


@dataclass(frozen=True)
class Refresh:
    """What one `refresh` did.

    Args:
        polls: How often the store was asked.
        polled_s: How long it took to be answered, in all.
        fetches: How often blobs were asked for.
        notes: How often a note was left for learner or `status`.
        bytes: How many bytes of blobs arrived.
        first: Whether it was this reader's first.
        shared: Whether it may have waited for another reader of its node that fetches the same.
    """

    polls: int
    polled_s: float
    fetches: int
    notes: int
    bytes: int
    first: bool
    shared: bool


def longest(refresh: Refresh, *, slow_line: bool) -> float:
    """The most seconds that a refresh may take, if the machine does not stand still.

    Each poll and each note has `poll_timeout_s`; the first poll of a process has longer, because
    acting with no state at all is worse than waiting. A fetch is given up `stall_timeout_s` after
    the last byte, and `transfer_timeout_s` after it began; a line that trickles may take the
    latter. Who waits for another reader of its node may find out after `stall_timeout_s` that this
    one does not go on, and has as long for itself then.
    """
    allowed = longest_polling(refresh) + refresh.notes * SETTINGS.poll_timeout_s
    if slow_line:
        allowed += refresh.fetches * SETTINGS.transfer_timeout_s
    else:
        stalls = 2 if refresh.shared else 1
        allowed += refresh.fetches * stalls * SETTINGS.stall_timeout_s
        allowed += refresh.bytes / BYTES_PER_S
    return allowed


def longest_polling(refresh: Refresh) -> float:
    """The most seconds that may go by until the store has answered, whatever is fetched then."""
    first = FIRST_TIMEOUT_S - SETTINGS.poll_timeout_s if refresh.first else 0.0
    return refresh.polls * SETTINGS.poll_timeout_s + first + OWN_WORK_S
