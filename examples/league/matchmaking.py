"""Whom to play against: pure functions of names, results, and a random number."""

import bisect
import itertools

UNKNOWN = 0.5
WEIGHT = 0.05


class Results:
    """How `main` fares against each opponent, newer games counting more."""

    def __init__(self):
        self.win_rates = {}

    def add(self, opponent, won):
        """One more game; `won` is 1, 0, or something between for a draw."""
        rate = self.win_rates.get(opponent, UNKNOWN)
        self.win_rates[opponent] = rate + WEIGHT * (won - rate)


def chances(names, win_rates, *, newest=0.3, hardness=2.0):
    """How likely each opponent is.

    A part of the games is against the newest, from which there is most to learn. The others are
    against those that are hard: prioritised fictitious self-play, as in "Grandmaster level in
    StarCraft II using multi-agent reinforcement learning" (Vinyals et al., 2019).

    Args:
        names: Of opponents, the newest one last.
        win_rates: Name -> share of the games that `main` wins; 0.5 for one that is not there.
        newest: The part of the games that is against the newest in any case.
        hardness: The greater, the less against those that `main` beats.

    Returns:
        Name -> probability. They sum to 1, and none is 0: who is never met may have become hard.
    """
    weights = [max(0.05, 1 - win_rates.get(name, UNKNOWN)) ** hardness for name in names]
    total = sum(weights)
    found = {n: (1 - newest) * w / total for n, w in zip(names, weights, strict=True)}
    found[names[-1]] += newest
    return found


def pick(probabilities, number):
    """The name that a random number in [0, 1) stands for."""
    names = list(probabilities)
    bounds = list(itertools.accumulate(probabilities.values()))
    return names[min(bisect.bisect(bounds, number * bounds[-1]), len(names) - 1)]
