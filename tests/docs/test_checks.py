"""The checks of the pages find what they are for, and nothing in what is right."""

from __future__ import annotations

import pytest

from tests.docs import test_names
from tests.docs.commands import commands_in, problem_of
from tests.docs.test_links import problem_of as problem_of_link
from tests.docs.test_links import resolved

RIGHT = """
make demo ARGS="--help"   # a comment
export REDIS_STATE_SYNC_URL=redis://localhost:6379/0
redis-state-sync pin my-run best newest --json | jq . && redis-state-sync status my-run \\
    --timeout 2
python examples/quick_start.py --iterations 2
python -m benchmarks --rounds 3
pip install '.[rllib,embedded]'
sudo deploy/redis/render-acl.sh users.acl
cat > file <<'EOF'
nonsense: here
EOF
python -c "
print(1)"
until redis-cli ping; do sleep 1; done
pytest tests/docs
"""


def problems(script: str) -> list[str]:
    return [problem for _, words in commands_in(script) if (problem := problem_of(words))]


def test_what_is_right_is_passed() -> None:
    """Commands that can be typed have no problem, in a script of the usual forms."""
    assert problems(RIGHT) == []
    assert len(list(commands_in(RIGHT))) == 14


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("make dmeo", "no target 'dmeo'"),
        ("redis-state-sync stauts my-run", "no command 'stauts'"),
        ("redis-state-sync pin my-run", "NAME"),
        ("redis-state-sync status my-run --tmeout 3", "--tmeout"),
        ("redis-state-sync status my-run too-much", "too-much"),
        ("redis-state-sync doctor --role king", "king"),
        ("true | redis-state-sync nope", "unknown program 'true'"),
        ("python -m redis_state_sync.demmo", "no module"),
        ("python -m redis_state_sync.demo --kore", "'--kore'"),
        ("python examples/quick_stat.py", "there is no examples/quick_stat.py"),
        ("python examples/quick_start.py --iteration 2", "'--iteration'"),
        ("pip install 'redis-state-sync[rlib]'", "no extra rlib"),
        ("python -m pip install '.[rlib]'", "no extra rlib"),
        ("pytest tests/doc", "there is no tests/doc"),
        ("docker compose -f deploy/compose/compose.yml up", "there is no deploy/compose"),
        ("A=1 sudo dokcer ps", "unknown program 'dokcer'"),
        ("ls | kat", "unknown program 'kat'"),
    ],
)
def test_a_wrong_command_is_found(command: str, said: str) -> None:
    """A mistake in a command, option, argument, target or path is a problem that names it."""
    assert said in str(problems(command))


def test_scripts_of_an_example_are_found() -> None:
    """What an example's page tells to type is typed in its folder."""
    page = "examples/two_jobs/README.md"
    assert problem_of(["python", "train.py", "--take-over"], page=page) is None
    assert problem_of(["python", "train.py", "--takeover"], page=page) is not None
    assert problem_of(["python", "trian.py"], page=page) is not None
    assert problem_of(["python", "train.py"], page="docs/getting-started.md") is None


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("`StoreFulError`", test_names.unknown_errors),
        ("StatePublisher.publsh", test_names.unknown_members),
        ("Settings.histroy", test_names.unknown_members),
        ("redis_state_sync.rlib", test_names.unknown_modules),
        ("redis_state_sync.errors.StoreFulError", test_names.unknown_modules),
        ("num_fetchs_lifetime", test_names.unknown_results),
        ("poll_timer, fetsch_timer", test_names.unknown_results),
        ("node_cash_bytes=0", test_names.unknown_arguments),
        ("poll_time_out_s", test_names.unknown_words),
        ("with_redis_stat()", test_names.unknown_words),
        ("REDIS_STATE_SYNC_PASSWORT", test_names.unknown_variables),
    ],
)
def test_a_wrong_name_is_found(text: str, check: object) -> None:
    """A name that does not exist is named by the check for its kind."""
    assert callable(check)
    assert len(check(text)) == 1


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nope.md", "no such file"),
        ("history.md#rolling", "no such heading"),
        ("#no-such-heading", "no such heading"),
        ("../../outside.md", "no such file"),
        ("../..", "leaves the repository"),
        ("history.md#rolling-back", None),
        ("images", None),
    ],
)
def test_a_wrong_link_is_found(target: str, said: str | None) -> None:
    """A link to what there is not, or to outside of the repository, is a problem."""
    problem = problem_of_link(*resolved("docs/configuration.md", target))
    assert (problem is None) if said is None else (said in str(problem))
