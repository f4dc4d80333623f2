"""What each EnvRunner does at the beginning and the end of an episode; and names of pins."""

import random

from matchmaking import Results, chances, pick
from ray.rllib.callbacks.callbacks import RLlibCallback

from redis_state_sync import (
    CodecError,
    History,
    SnapshotPool,
    StoreError,
    UnknownVersionError,
    open_store,
)

PREFIX = "league/"
WEIGHTS = "rl_module/main"
# Past selves that an EnvRunner holds at once.
IN_MEMORY = 8


def pin_name(number):
    return f"{PREFIX}{number:05}"


def next_number(pins):
    """The number of the next pin, whoever made those that there are."""
    numbers = [pin.removeprefix(PREFIX) for pin in pins if pin.startswith(PREFIX)]
    return max((int(number) + 1 for number in numbers if number.isdigit()), default=0)


class League(RLlibCallback):
    """Chooses an opponent for each episode, and notes how it ended.

    One env for each EnvRunner: there is one opponent at a time.
    """

    def __init__(self):
        super().__init__()
        self._results = Results()
        self._random = random.Random()
        self._pool = None
        self._playing = None

    def on_episode_start(self, *, episode, env_runner, **_):
        if self._pool is None:
            settings = env_runner.config.redis_state_settings
            # An episode begins late by no more than this, if the server does not answer.
            history = History(
                open_store(settings.url, password_env=settings.password_env),
                settings.namespace,
                timeout_s=0.25,
                transfer_timeout_s=5.0,
            )
            self._pool = SnapshotPool(history, PREFIX, most=IN_MEMORY)
        name, snapshot = self._opponent()
        if snapshot is not None and (name, snapshot.version) != self._playing:
            env_runner.module["opponent"].become(snapshot[WEIGHTS])
            self._playing = (name, snapshot.version)
        episode.custom_data["opponent"] = self._playing[0] if self._playing else None

    def on_episode_end(self, *, episode, metrics_logger, **_):
        opponent = episode.custom_data["opponent"]
        if opponent is None:
            return
        won = float(episode.agent_episodes["main"].get_rewards()[-1] > 0)
        self._results.add(opponent, won)
        metrics_logger.log_value(("league", opponent, "win_rate"), won, window=200)
        metrics_logger.log_value(("league", opponent, "games_lifetime"), 1, reduce="lifetime_sum")

    def _opponent(self):
        """A name and its snapshot; None for both if there is none to be had."""
        names = self._pool.names()
        while names:
            name = pick(chances(names, self._results.win_rates), self._random.random())
            try:
                return name, self._pool.get(name)
            except (UnknownVersionError, CodecError):
                names = [other for other in names if other != name]  # Another one.
            except StoreError:
                names = [other for other in names if other in self._pool.held]  # One that is here.
        return None, None
