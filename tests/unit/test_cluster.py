"""What cluster nodes say is understood: slots, redirections, and whom to ask in which order."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

from redis_state_sync.cluster import (
    Nodes,
    Redirect,
    Rounds,
    redirect_in,
    shown_address,
    slot_of,
)
from redis_state_sync.errors import StoreReplyError
from redis_state_sync.keys import Keys
from redis_state_sync.resp import Request, pack

A, B, C = ("a", 1), ("b", 2), ("c", 3)
COMMANDS = [Request(pack("GET", name)) for name in "xyz"]
ASKING = Request(pack("ASKING"))


def test_slots() -> None:
    """A batch belongs to the slot of its namespace; TIME and INFO belong to none: C79."""
    keys = Keys("n")
    # As the servers have it: CLUSTER KEYSLOT n.
    for key in (keys.versions, keys.pins, keys.readers, keys.blob("0" * 32)):
        assert slot_of([("GET", key)]) == slot_of([("GET", key.encode())]) == 3432
    assert slot_of([("TIME",), ("SET", "123456789", b"x")]) == 0x31C3
    assert slot_of([("TIME",)]) is None
    assert slot_of([("INFO", "server")]) is None
    assert slot_of([]) is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("1 h:7", ("h", 7)),
        ("1 10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("1 :7", ("asked", 7)),
        ("1 ::1:7", ("::1", 7)),
        ("1 [fe80::1]:7", ("fe80::1", 7)),
        ("1 node.example.org:7", ("node.example.org", 7)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    """Names, IPv6, and an empty host, which is the host that was asked, are understood: C79."""
    assert redirect_in([MovedError(text)], ("asked", 1)) == Redirect(address, ask=False)
    assert redirect_in([AskError(text)], ("asked", 1)) == Redirect(address, ask=True)


@pytest.mark.parametrize("text", ["1 ?:7", "1 h:0", "1 h:65536", "1 h:-1"])
def test_no_address(text: str) -> None:
    """A node without a name, or with an impossible port, is an error that says who said so: C79."""
    with pytest.raises(StoreReplyError, match=r"asked:1 names.*cluster-announce-hostname"):
        redirect_in([b"fine", MovedError(text)], ("asked", 1))


def test_a_move_that_is_over_counts_more() -> None:
    """Of MOVED and ASK in one batch MOVED is followed; without either nothing is: C79."""
    replies: list[Any] = [b"fine", AskError("1 a:1"), MovedError("1 b:2")]
    assert redirect_in(replies, C) == Redirect(B, ask=False)
    assert redirect_in([b"fine", ResponseError("ERR"), None], C) is None


def test_addresses_are_shown() -> None:
    """An IPv6 address is told from its port."""
    assert [shown_address(a) for a in (A, ("::1", 7))] == ["a:1", "[::1]:7"]


def test_only_what_was_refused_is_asked_for_elsewhere() -> None:
    """Commands that a node executed are not sent on to where the slot is going: C10, C79."""
    rounds = Rounds(COMMANDS)
    assert rounds.requests() == COMMANDS
    assert rounds.answered([b"1", AskError("1 b:2"), b"3"], A) == Redirect(B, ask=True)
    assert rounds.asking == B
    assert rounds.requests() == [ASKING, COMMANDS[1]]
    assert rounds.answered([b"OK", b"2"], B) is None
    assert rounds.replies == [b"1", b"2", b"3"]
    assert (rounds.asking, rounds.refusal) == (None, None)


def test_only_what_was_asked_for_is_sent_with_asking() -> None:
    """What was refused for another reason goes to the node that has the slot: C10, C79."""
    rounds = Rounds(COMMANDS)
    rounds.requests()
    rounds.answered([ClusterDownError("down"), AskError("1 b:2"), TryAgainError("later")], A)
    assert rounds.requests() == [ASKING, COMMANDS[1]]
    rounds.answered([b"OK", b"2"], B)
    assert isinstance(rounds.refusal, ClusterDownError)
    assert rounds.requests() == [COMMANDS[0], COMMANDS[2]]
    assert rounds.answered([b"1", b"3"], A) is None
    assert rounds.replies == [b"1", b"2", b"3"]


def test_a_slot_that_moves_in_the_middle() -> None:
    """What was executed before a slot moved is not sent to its new owner: C10, C79."""
    rounds = Rounds(COMMANDS)
    rounds.requests()
    answers = [b"1", AskError("1 b:2"), MovedError("1 b:2")]
    assert rounds.answered(answers, A) == Redirect(B, ask=False)
    assert rounds.asking is None
    assert rounds.requests() == COMMANDS[1:]
    rounds.answered([b"2", ResponseError("ERR no")], B)
    assert rounds.replies[:2] == [b"1", b"2"]
    assert rounds.refusal is None  # An error is an answer.


def test_a_move_that_was_called_off() -> None:
    """A node that does not know of the move sends back, and the owner is asked again: C79."""
    rounds = Rounds(COMMANDS[:1])
    rounds.requests()
    rounds.answered([AskError("1 b:2")], A)
    rounds.requests()
    assert rounds.answered([b"OK", MovedError("1 a:1")], B) == Redirect(A, ask=False)
    assert rounds.requests() == COMMANDS[:1]


def test_asking_that_is_refused() -> None:
    """A user who may not say ASKING is told so, not sent back and forth: C83."""
    rounds = Rounds(COMMANDS[:1])
    rounds.requests()
    rounds.answered([AskError("1 b:2")], A)
    rounds.requests()
    refused = ResponseError("NOPERM")
    assert rounds.answered([refused, MovedError("1 a:1")], B) is None
    assert rounds.replies == [refused]


def test_nodes_are_tried_in_order_of_success() -> None:
    """Who answered last is asked first, who failed last is asked last, none is forgotten: C73."""
    nodes = Nodes([A, B, C, A])
    assert nodes.in_turn() == [A, B, C]
    nodes.failed(A)
    assert nodes.in_turn() == [B, C, A]
    nodes.learn(None, C)
    assert nodes.in_turn() == [C, B, A]
    nodes.failed(("unknown", 1))
    assert nodes.in_turn() == [C, B, A]


def test_a_node_that_failed_has_no_slots() -> None:
    """The slots of a node that failed are asked for anew, those of others are not: C76, C79."""
    nodes = Nodes([A])
    for slot, node in ((1, B), (2, B), (3, C)):
        nodes.learn(slot, node)
    assert [nodes.owner(slot) for slot in (1, 2, 3, 4, None)] == [B, B, C, None, None]
    nodes.failed(B)
    assert [nodes.owner(slot) for slot in (1, 2, 3)] == [None, None, C]
    assert [nodes.has_slots(node) for node in (A, B, C)] == [False, False, True]
    nodes.learn(3, A)
    assert not nodes.has_slots(C)


def test_nodes_do_not_pile_up() -> None:
    """However many nodes are named in time, few are kept, and those of the URL always: C84."""
    nodes = Nodes([A, B])
    for number in range(1000):
        nodes.learn(number, ("h", number))
    assert {A, B} < set(nodes.in_turn())
    assert len(nodes.in_turn()) < 20
    assert nodes.in_turn()[0] == ("h", 999)
