"""What a learner and its EnvRunners can each work out for themselves, also after a restart.

An Algorithm hands its log directory to every EnvRunner that it creates, and Ray replays these
arguments when it restarts one. The directory is the trial's own under Tune, and unique otherwise.
(The `tune_trial_id` argument would be the natural choice, but is "default" for every trial that
gets its config as a dict, which is how Tune passes it: seen on Ray 2.60.)
"""

from __future__ import annotations

import os
from pathlib import PurePath

import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.impala import IMPALAConfig

from redis_state_sync.errors import SettingsError
from redis_state_sync.keys import as_namespace
from redis_state_sync.settings import Settings


def in_background(settings: Settings, config: AlgorithmConfig) -> bool:
    """Whether the learner goes on training while a version is being stored.

    Only where it does not must an EnvRunner's next poll see that version.
    """
    if settings.mode == "auto":
        return isinstance(config, IMPALAConfig)  # APPO's, too.
    return settings.mode == "async"


def trial_name(log_dir: str | os.PathLike[str]) -> str:
    """``experiment/trial`` under Tune, else the name of the run's log directory."""
    path = PurePath(log_dir)
    # Tune's layout: .../<experiment>/working_dirs/<trial>
    if len(path.parts) > 2 and path.parent.name == "working_dirs":
        return f"{path.parent.parent.name}/{path.name}"
    return path.name


def namespace_of(settings: Settings, log_dir: str | os.PathLike[str] | None) -> str:
    """The namespace that the settings name, or the trial's own.

    Raises:
        SettingsError: If there is neither.
    """
    if settings.namespace is not None:
        return settings.namespace
    if log_dir is None:
        raise SettingsError(
            "redis_state needs a namespace here: this EnvRunner was not made by an Algorithm, so "
            "there is no log directory to derive one from. Pass namespace='...'"
        )
    return as_namespace(trial_name(log_dir))


def writer_id_of(log_dir: str | os.PathLike[str] | None) -> str:
    """Identifies one Algorithm: Ray session, Ray job, and its log directory."""
    context = ray.get_runtime_context()
    return "/".join(
        (context.get_session_name(), context.get_job_id(), trial_name(log_dir) if log_dir else "-")
    )
