"""Commands to whichever nodes of a cluster have their slot, within one deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import redis

from redis_state_sync.cluster import Address, Nodes, Rounds, shown_address, slot_of
from redis_state_sync.connection import (
    Connection,
    Connector,
    Pool,
    StillConnectingError,
    remaining,
)
from redis_state_sync.errors import (
    RedisStateSyncError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from redis_state_sync.exchange import Batch, Exchange, converse, is_demoted
from redis_state_sync.frames import ReplyTooLargeError
from redis_state_sync.guarded import guarded
from redis_state_sync.redis_errors import shown, translated, without_frames
from redis_state_sync.resp import Request

MAX_REDIRECTS = 5
TRY_AGAIN_S = 0.02

Lost = dict[Address, StoreError]


class ClusterExchange(Exchange):
    """Talks to the nodes of a cluster: one connection to each that has a slot which is asked for.

    Args:
        make: Makes the pool of one node, whose connections are used.
        start: The nodes to begin with.
        where: The cluster, for messages; must hold no secret.
    """

    def __init__(
        self, make: Callable[[Address], Pool], start: Iterable[Address], where: str
    ) -> None:
        self._make_for = make
        self._start = tuple(start)
        super().__init__(lambda: None, where)  # `_begin` says how.

    def _begin(self) -> None:
        super()._begin()
        self._nodes = Nodes(self._start)
        # The one connector of a single server leads to any node here. It does not refer to this
        # object: one that is dropped would keep its connections until the next garbage collection.
        to_any = partial(AnyNode, self._nodes, self._make_for, self._where)
        self._connector = Connector(to_any, self._where)
        self._connectors: dict[Address, Connector] = {}
        self._closed = False

    def close(self) -> None:
        """Closes all connections; the next call makes new ones."""
        self._closed = True  # Also for a call that is under way.
        super().close()
        for connector in list(self._connectors.values()):
            connector.close()

    def mark(self) -> None:
        """None: a slot that moves takes its tracking along to nobody."""

    def _send(self, batch: Batch) -> list[Any]:
        self._closed = False
        slot = slot_of(batch.commands)
        rounds = Rounds(batch.requests)
        lost: Lost = {}
        redirects = 0
        while True:
            asking, requests = rounds.asking, rounds.requests()
            asked = self._ask(asking or self._nodes.owner(slot), requests, batch, lost)
            if asked is None:
                rounds.asking = None  # The node that has the slot may know better by now.
                continue
            connection, answers = asked
            node = connection.host, connection.port
            try:
                redirect = rounds.answered(answers, node)
            except BaseException:
                connection.disconnect()
                raise
            if redirect is not None:
                if not redirect.ask:
                    self._nodes.learn(slot, redirect.address)
                self._release(connection, keep=redirect.ask or self._nodes.has_slots(node))
                redirects += 1
                if redirects > MAX_REDIRECTS:
                    raise StoreUnavailableError(
                        f"{self._where}: {batch.operation} was redirected {redirects} times, at "
                        f"last by {shown_address(node)} to {shown_address(redirect.address)}: do "
                        "the nodes agree on who has the slot?"
                    )
            elif isinstance(rounds.refusal, redis.exceptions.ClusterDownError):
                connection.disconnect()
                self._lose(node, rounds.refusal, batch, lost)  # It may be the view of this node.
            elif rounds.refusal is not None and remaining(batch.deadline) > TRY_AGAIN_S:
                self._release(connection)
                time.sleep(TRY_AGAIN_S)
            else:
                if is_demoted(answers):
                    connection.disconnect()
                    self._forget(node)
                else:
                    self._nodes.learn(None if asking else slot, node)
                    self._release(connection)
                return rounds.replies

    def _ask(
        self, target: Address | None, requests: list[Request], batch: Batch, lost: Lost
    ) -> tuple[Connection, list[Any]] | None:
        """Sends requests to a node, or (None) to any.

        Returns:
            The connection and the replies, or None if the node is gone and another is to be asked.

        Raises:
            StoreError: If no other one is.
        """
        while True:
            if target in lost:
                raise lost[target]
            try:
                connector = self._connector_to(target, lost)
                connection, fresh = connector.acquire(remaining(batch.deadline))
            except StillConnectingError:
                raise
            except Exception as error:
                if target is None:
                    raise
                self._lose(target, error, batch, lost)
                return None
            node = connection.host, connection.port
            if node in lost:
                connection.disconnect()  # There is no other one.
                raise lost[node]
            try:
                return connection, converse(
                    connection, batch._replace(requests=requests, tracked=False), fresh=fresh
                )
            except ReplyTooLargeError:
                raise
            except Exception as error:
                closed = isinstance(error, (redis.ConnectionError, OSError))
                if fresh or not closed or isinstance(error, TimeoutError):
                    self._lose(node, error, batch, lost)
                    return None

    def _connector_to(self, target: Address | None, lost: Lost) -> Connector:
        if target is None:
            for node, connector in self._connectors.items():
                if connector.idle is not None and node not in lost:
                    return connector
            return self._connector
        if target not in self._connectors:
            make = partial(self._make_for, target)
            self._connectors[target] = Connector(make, self._at(target))
        return self._connectors[target]

    def _release(self, connection: Connection, *, keep: bool = True) -> None:
        connector = self._connector_to((connection.host, connection.port), {})
        if keep and connector.lends(connection):
            connector.release(connection)
        elif keep and not self._closed:
            connector.adopt(connection)
        else:
            connection.disconnect()

    def _lose(self, node: Address, error: Exception, batch: Batch, lost: Lost) -> None:
        """Remembers why a node is of no use in this call; raises if another one is not either."""
        self._forget(node)
        if isinstance(error, RedisStateSyncError):
            raise error
        ours = translated(error, batch.operation, self._at(node))
        ours.__cause__ = shown(error)
        # After a silence there is no time left for others, and a password is the same for all.
        if not isinstance(ours, StoreUnavailableError) or isinstance(ours, StoreTimeoutError):
            raise ours
        lost[node] = ours

    def _forget(self, node: Address) -> None:
        self._nodes.failed(node)
        self._connectors.pop(node, None)

    def _at(self, node: Address) -> str:
        return f"{self._where} at {shown_address(node)}"


class AnyNode:
    """Looks like a pool; its connections are to the first node that can be reached.

    Args:
        nodes: Those to try in turn. A silent one takes its share of the time for connecting.
        make: Makes the pool of one node.
        where: The cluster, for messages.
    """

    connection_kwargs: Mapping[str, Any] = {}

    def __init__(self, nodes: Nodes, make: Callable[[Address], Pool], where: str) -> None:
        self._nodes = nodes
        self._make = make
        self._where = where

    def connection_class(self) -> Connection:
        """A connection that is connected already.

        Raises:
            StoreError: If no node can be reached. The message says what is the matter with each.
        """
        problems: list[Exception] = []
        candidates = self._nodes.in_turn()
        for node in candidates:
            pool = self._make(node)
            share = pool.connection_kwargs["socket_connect_timeout"] / len(candidates)
            limits = {"socket_connect_timeout": share, "socket_timeout": share}
            make = guarded(pool.connection_class)
            connection = make(**{**pool.connection_kwargs, **limits})
            try:
                connection.connect()
                return connection
            except Exception as error:
                connection.disconnect()
                self._nodes.failed(node)
                # The scheme tells whether the node is spoken to by TLS.
                name = f"{self._where.partition(':')[0]}://{shown_address(node)}"
                problem = translated(without_frames(error), "connecting", name)
                if not isinstance(problem, StoreError):
                    raise problem from None
                problems.append(problem)
        silent = (StoreUnavailableError, StoreTimeoutError)
        kinds = [type(problem) for problem in problems]
        # What says more than that nobody was there.
        kind = next((k for k in kinds if k not in silent), kinds[0])
        raise kind(
            f"{self._where}: no node can be reached: "
            + "; ".join(str(problem) for problem in problems)
        )
