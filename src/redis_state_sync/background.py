"""A thread that works for an object, and keeps it alive only while there is work to do."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

# How long an owner that was dropped may go unnoticed: dropping it wakes nobody.
_LOOK_S = 0.5


class Owner(Protocol):
    """Whom a thread works for."""

    def close(self) -> None:
        """Ends it."""
        ...


OwnerT = TypeVar("OwnerT", bound=Owner)


class Due(NamedTuple):
    """When to work next.

    Args:
        seconds: From now on.
        waits: Whether something must be done then, even if the owner is dropped.
    """

    seconds: float
    waits: bool


def start(
    owner: OwnerT,
    changed: threading.Condition,
    *,
    due: Callable[[OwnerT], Due | None],
    work: Callable[[OwnerT], None],
    ended: Callable[[], None],
    name: str,
) -> threading.Thread:
    """Starts the thread. If the interpreter exits before it ends, the owner is closed.

    None of the functions may be a method of this owner, which would keep it alive.

    Args:
        owner: Whom to work for. The thread of one that is dropped ends once nothing waits.
        changed: Notified when `due` may have changed.
        due: Says when to work next; None: never again. Called with the condition held.
        work: Does it.
        ended: Called at the end of the thread.
        name: What to call the thread.

    Raises:
        RuntimeError: If there can be no further thread.
    """
    this = weakref.ref(owner)
    # Finalizers run in reverse: that of an `EmbeddedServer` which was made earlier comes later.
    at_exit = weakref.finalize(owner, _close, this)

    def run() -> None:
        try:
            _run(this, changed, due, work)
        finally:
            at_exit.detach()
            ended()

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except BaseException:
        at_exit.detach()
        raise
    return thread


def _run(
    this: weakref.ref[OwnerT],
    changed: threading.Condition,
    due: Callable[[OwnerT], Due | None],
    work: Callable[[OwnerT], None],
) -> None:
    owner = this()
    while owner is not None:
        with changed:
            turn = due(owner)
            if turn is None:
                return
            if turn.seconds > 0:
                if not turn.waits:
                    owner = None
                changed.wait(min(turn.seconds, _LOOK_S))
                owner = this() if owner is None else owner
                continue
        work(owner)


def _close(this: weakref.ref[OwnerT]) -> None:
    owner = this()  # None if it is called because the owner was dropped.
    if owner is not None:
        owner.close()
