"""Whether a published state is one for this EnvRunner, wholly: what a follower has to know.

RLlib takes over what it finds and leaves the rest as it is, which suits a learner's own EnvRunners:
they are made from its config. A follower's config is written a second time, and whatever has no
published state there would act with random weights, or on observations that nobody normalised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ray.rllib.core.rl_module.apis import InferenceOnlyAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

from redis_state_sync.errors import ApplyError
from redis_state_sync.rllib.apply import pipelines
from redis_state_sync.rllib.states import modules_in
from redis_state_sync.rllib.weights import live_modules
from redis_state_sync.snapshot import Snapshot

_SAME = "are the modules of this config those of the learner's?"


def check_modules(runner: Any, snapshot: Snapshot) -> None:
    """Refuses a version that has no weights for one of an EnvRunner's modules.

    Raises:
        ApplyError: With the modules that there are.
    """
    published = modules_in(snapshot)
    for module_id, module in live_modules(runner).items():
        if module_id not in published and module.get_state(inference_only=True):
            raise ApplyError(
                f"version {snapshot.version} has no weights for module {module_id!r}, only for "
                f"{sorted(published)}: {_SAME}"
            )


def check_names(runner: Any, snapshot: Snapshot) -> None:
    """Refuses weights that lack parameters of a module, or have some that it does not know.

    Shapes are compared where weights are applied. Parameters that RLlib leaves out of EnvRunners,
    as those of a value function, may be on either side.

    Raises:
        ApplyError: With the parameters that are too many or too few.
        DecodeError: If weights are not well-formed.
    """
    live = live_modules(runner)
    for module_id, name in modules_in(snapshot).items():
        module = live.get(module_id)
        # Others know best what they load.
        if isinstance(module, TorchRLModule) and type(module).set_state is TorchRLModule.set_state:
            state = snapshot.view(name)
            own = module.state_dict()
            optional = _optional(module)
            for names, what in (
                (own.keys() - state.keys(), "lacks"),
                (state.keys() - own.keys(), "also has"),
            ):
                wrong = sorted(n for n in names if not _is_below(n, optional))
                if wrong:
                    raise ApplyError(
                        f"version {snapshot.version}, module {module_id!r}: the published state "
                        f"{what} {wrong[:5]}{' and more' if len(wrong) > 5 else ''}: {_SAME}"
                    )


def check_connectors(runner: Any, snapshot: Snapshot, states: Mapping[str, Any]) -> None:
    """Refuses a version whose stateful connectors are not those of the EnvRunner.

    Args:
        runner: The EnvRunner.
        snapshot: The version.
        states: The states of its connector pipelines, by component.

    Raises:
        ApplyError: With the connectors that are too many or too few.
    """
    for name, pipeline in pipelines(runner).items():
        if pipeline is None:
            continue
        own, theirs = pipeline.get_state().keys(), states.get(name, {}).keys()
        for missing, what in (
            (theirs - own, "this EnvRunner lacks"),
            (own - theirs, "the published state lacks"),
        ):
            if missing:
                raise ApplyError(
                    f"version {snapshot.version}, {name}: {what} {sorted(missing)}: are the "
                    "connectors of this config those of the learner's?"
                )


def _optional(module: Any) -> Collection[str]:
    return module.get_non_inference_attributes() if isinstance(module, InferenceOnlyAPI) else ()


def _is_below(name: str, attributes: Collection[str]) -> bool:
    return any(name == attribute or name.startswith(f"{attribute}.") for attribute in attributes)
