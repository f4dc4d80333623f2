"""Who plays: `Player`, which learns, and `Opponent`, a `Player` of the past."""

from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import nn


class Player(TorchRLModule, ValueFunctionAPI):
    """Policy and value of one hidden layer."""

    def setup(self):
        inputs, hidden = self.observation_space.shape[0], self.model_config["hidden"]
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh())
        self.policy = nn.Linear(hidden, self.action_space.n)
        self.value = nn.Linear(hidden, 1)

    def _forward(self, batch, **_):
        features = self.body(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch, embeddings=None):
        if embeddings is None:
            embeddings = self.body(batch[Columns.OBS])
        return self.value(embeddings).squeeze(-1)


class Opponent(Player):
    """A shell that an EnvRunner fills with a past self, before an episode begins.

    It has no state as far as the learner and the published versions are concerned. So a learner
    sends nothing of it, and no new version of `main` changes whom an episode is played against.
    """

    def become(self, weights):
        """Plays like this `Player` from now on.

        Args:
            weights: A `Player`'s state: name -> array.
        """
        super().set_state(weights)

    def get_state(self, *args, **kwargs):
        return {}

    def set_state(self, state):
        pass
