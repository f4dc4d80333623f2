"""What the nodes of a cluster say: who has which slot, and which commands go where next.

https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from redis_state_sync.errors import StoreReplyError
from redis_state_sync.resp import Request, pack

Address = tuple[str, int]

# Every node answers these. All else has a key as its first argument.
_KEYLESS = {"TIME", "INFO"}
# What a node answers to a command that it does not execute, and another one might.
_REFUSALS = (AskError, MovedError, TryAgainError, ClusterDownError)
_ASKING = Request(pack("ASKING"))
# A node that names ever new ones can not fill the memory.
_MOST_LEARNED = 16


def slot_of(commands: Iterable[Sequence[Any]]) -> int | None:
    """The hash slot of commands that concern one namespace, or None if none of them has a key."""
    for name, *arguments in commands:
        if arguments and name not in _KEYLESS:
            key = arguments[0]
            return key_slot(key.encode() if isinstance(key, str) else bytes(key))
    return None


class Redirect(NamedTuple):
    """Where to go: from now on, or (`ask`) with some commands alone, because the slot is moving."""

    address: Address
    ask: bool


class Rounds:
    """Commands on their way through a cluster.

    Only those that were refused are sent again. While a slot moves, its node refuses commands for
    the keys that have gone: sending on those that it did execute as well would make a second
    `versions` at the new node, in the way of the one that is still to come.

    Args:
        requests: What to send for each command.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._refused = list(range(len(requests)))
        self._sent: list[int] = []
        self.replies: list[Any] = [None] * len(requests)
        self.asking: Address | None = None

    def requests(self) -> list[Request]:
        """What to send next: to `asking` if that is set, else to the node that has the slot."""
        if self.asking is None:
            self._sent = list(self._refused)
            return [self._requests[i] for i in self._sent]
        self._sent = [i for i in self._refused if isinstance(self.replies[i], AskError)]
        return [request for i in self._sent for request in (_ASKING, self._requests[i])]

    def answered(self, answers: Sequence[Any], node: Address) -> Redirect | None:
        """Takes the replies of a node to `requests`, and says where it sends us, if it does.

        Raises:
            StoreReplyError: If that is no address.
        """
        if self.asking is not None:
            # A node that refuses ASKING refuses the command as well, but does not say why.
            pairs = zip(answers[::2], answers[1::2], strict=True)
            answers = [asked if isinstance(asked, Exception) else reply for asked, reply in pairs]
            self.asking = None
        for i, reply in zip(self._sent, answers, strict=True):
            self.replies[i] = reply
        self._refused = [i for i in self._refused if isinstance(self.replies[i], _REFUSALS)]
        redirect = redirect_in([self.replies[i] for i in self._sent], node)
        if redirect is not None and redirect.ask:
            self.asking = redirect.address
        return redirect

    @property
    def refusal(self) -> Any:
        """The reply to one of the commands that were not executed yet, if there is one."""
        return self.replies[self._refused[0]] if self._refused else None


def redirect_in(replies: Iterable[Any], asked: Address) -> Redirect | None:
    """The redirection among the replies of the node `asked`, if there is one.

    MOVED comes before ASK: the slot has a new owner by now, which has all of it.

    Raises:
        StoreReplyError: If it leads nowhere.
    """
    found = [reply for reply in replies if isinstance(reply, AskError)]
    moved = [reply for reply in found if isinstance(reply, MovedError)]
    if not found:
        return None
    error = (moved or found)[0]
    host, port = error.host.strip("[]") or asked[0], error.port
    if host == "?" or not 0 < port < 65536:
        raise StoreReplyError(
            f"{shown_address(asked)} names {str(error)[:100]!r} as the node to ask, which is no "
            "address: set cluster-announce-hostname or cluster-announce-ip on that node"
        )
    return Redirect((host, port), ask=not moved)


def shown_address(address: Address) -> str:
    """``host:port``, for messages."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Nodes:
    """The nodes that are known, and which of them has which slot. Safe for threads.

    Args:
        start: Those that the URL names; they are never forgotten.
    """

    def __init__(self, start: Iterable[Address]) -> None:
        self._start = tuple(dict.fromkeys(start))
        self._order = list(self._start)
        self._owners: dict[int, Address] = {}
        self._lock = threading.Lock()

    def in_turn(self) -> list[Address]:
        """All of them: those that worked last first, those that failed last at the end."""
        with self._lock:
            return list(self._order)

    def owner(self, slot: int | None) -> Address | None:
        """The node that has a slot, as far as is known."""
        with self._lock:
            return None if slot is None else self._owners.get(slot)

    def has_slots(self, address: Address) -> bool:
        """Whether a node has a slot that was ever asked for."""
        with self._lock:
            return address in self._owners.values()

    def learn(self, slot: int | None, address: Address) -> None:
        """A node works, and has this slot."""
        with self._lock:
            if slot is not None:
                self._owners[slot] = address
            if address == self._order[0]:
                return
            if address in self._order:
                self._order.remove(address)
            self._order.insert(0, address)
            learned = [node for node in self._order if node not in self._start]
            for node in learned[_MOST_LEARNED:]:
                self._order.remove(node)

    def failed(self, address: Address) -> None:
        """A node did not answer: another one may have its slots by now."""
        with self._lock:
            for slot in [s for s, owner in self._owners.items() if owner == address]:
                del self._owners[slot]
            if address in self._order:
                self._order.remove(address)
                self._order.append(address)
