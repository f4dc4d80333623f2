"""Settings: one frozen dataclass, safe to copy, pickle, print and write into any file."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from redis_state_sync.endpoint import REMEDY, parse_url
from redis_state_sync.errors import SettingsError
from redis_state_sync.keys import check_namespace

MAX_STATE_BYTES = 4 << 30


def check_seconds(name: str, value: Any) -> None:
    """Raises `SettingsError` unless `value` is a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingsError(f"{name} must be a number of seconds, got {value!r}")
    if not 0 < value < math.inf:
        raise SettingsError(f"{name} must be a positive number of seconds, got {value!r}")


def check_history(value: Any) -> None:
    """Raises `SettingsError` unless `value` is an int of at least 1."""
    if type(value) is not int or value < 1:
        raise SettingsError(f"history must be an int of at least 1, got {value!r}")


def check_node_cache_bytes(value: Any) -> None:
    """Raises `SettingsError` unless `value` is None or an int of at least 0."""
    if value is not None and (type(value) is not int or value < 0):
        raise SettingsError(f"node_cache_bytes must be an int of at least 0 or None, got {value!r}")


def check_limits(limits: Any) -> None:
    """Raises `SettingsError` unless the limits of staleness are such, see `Settings`."""
    if limits.max_staleness_s is not None:
        check_seconds("max_staleness_s", limits.max_staleness_s)
    versions = limits.max_staleness_versions
    if versions is not None and (type(versions) is not int or versions < 0):
        raise SettingsError(
            f"max_staleness_versions must be an int of at least 0 or None, got {versions!r}"
        )
    if limits.on_stale not in ("raise", "warn", "wait"):
        raise SettingsError(f"on_stale must be 'raise', 'warn' or 'wait', got {limits.on_stale!r}")
    check_seconds("stale_wait_s", limits.stale_wait_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How to reach the store and how to behave. Holds no secret, by construction.

    Args:
        url: Where the store is: ``redis://host:6379/0``, ``rediss://``, ``unix:///run/v.sock``,
            ``redis+sentinel://h1,h2/mymaster/0``, ``redis+cluster://h1,h2``, ``valkey://``,
            ``memory://name``, ``embedded://``. None: the environment variable
            REDIS_STATE_SYNC_URL of each process.
        namespace: The shared state's name. None: the experiment's and trial's names, so that
            trials never meet by accident.
        password_env: Name of the environment variable that holds the password.
        credential_provider: ``"package.module:name"`` of a redis-py CredentialProvider, or of a
            function that makes one.
        history: How many of the newest versions to keep, at least 1.
        ttl_s: Seconds after which a namespace without a living learner expires, at least 10.
        poll_timeout_s: Most seconds that asking for a newer version may cost one ``sample()``.
        stall_timeout_s: Seconds without a byte after which a transfer is given up.
        transfer_timeout_s: Most seconds that one fetch or one publish attempt may take.
        connect_timeout_s: Most seconds for connecting, at start and in the background.
        max_staleness_s: A ``sample()`` that begins when no new version was applied for more than
            this many seconds is too stale, see `on_stale`. None: never.
        max_staleness_versions: Likewise if the version held is more than so many behind the newest
            one of its generation that the EnvRunner's polls have shown: if it could not be fetched
            or did not fit. None: never.
        on_stale: ``"raise"``: `StaleStateError`. ``"warn"``: go on, with one warning until it is
            fresh again. ``"wait"``: poll until there is a version within the limits.
        stale_wait_s: Most seconds that a ``sample()`` waits, after which it raises.
        max_state_bytes: Most bytes of a version, of 1 to 2**36: more is neither published nor
            fetched, whatever a manifest claims.
        node_cache_bytes: Most bytes of shared memory that the processes of one node take together
            for the weights that all of them need: the first one fetches, the others map. None:
            half of /dev/shm, or of the folder that REDIS_STATE_SYNC_NODE_CACHE names. 0: none,
            each process fetches for itself.
        fallback_to_push: While the store is down, let Ray push the state as it does without us.
        publish_timeout_s: Most seconds that a synchronous algorithm (PPO) waits for a version to
            be stored before it falls back, or raises if `fallback_to_push` is off.
        signed: Refuse to work without a signing key in the environment of each process, see
            `redis_state_sync.keyring`. (Where there is one, states are signed and signatures
            checked in any case.)
        mode: ``"async"``: publish in the background; ``"sync"``: return from the sync only when
            the version is stored; ``"auto"``: async for IMPALA and APPO, else sync.
        refresh: When EnvRunners apply a newer version. ``"sample"``: at the top of each
            ``sample()``. ``"episode"``: also where an episode begins within one. ``"steps"``: also
            between any two env steps. The latter two are for asynchronous algorithms, and apply
            weights; connector states follow at the next ``sample()``.
        refresh_every_steps: Least number of (vectorized) env steps between two refreshes within a
            ``sample()``, at least 1.
        refresh_every_s: Least number of seconds between them. None: as often as that costs less
            than a hundredth of the time spent sampling.
        prefetch: Fetch newer versions in the background while the env steps, so that a refresh
            only applies them. None: where `refresh` is not ``"sample"``.
        role: ``"learner"``: this Algorithm publishes. ``"follower"``: it only reads what an
            Algorithm of another job publishes in `namespace`, which must be given then.
        resume: Take over where the last learner of `namespace` left off: a learner begins with the
            newest published weights, connector states and `WEIGHTS_SEQ_NO` rather than with its
            own, if there are any. What only a learner has, as its optimizer's state, is new.
        first_version_timeout_s: Most seconds that a follower waits for a version: when it is
            built, and in the first ``sample()`` of an EnvRunner that was restarted. It raises
            then, for it has nothing to act with but random weights.

    Raises:
        SettingsError: If a value is of the wrong type or out of range, if the URL holds a
            password, or if a follower has no namespace.
    """

    url: str | None = None
    namespace: str | None = None
    password_env: str = "REDIS_STATE_SYNC_PASSWORD"  # noqa: S105 - a variable's name
    credential_provider: str | None = None
    history: int = 4
    ttl_s: float = 86_400.0
    poll_timeout_s: float = 0.05
    stall_timeout_s: float = 0.5
    transfer_timeout_s: float = 60.0
    connect_timeout_s: float = 2.0
    max_staleness_s: float | None = None
    max_staleness_versions: int | None = None
    on_stale: Literal["raise", "warn", "wait"] = "raise"
    stale_wait_s: float = 60.0
    max_state_bytes: int = MAX_STATE_BYTES
    node_cache_bytes: int | None = None
    fallback_to_push: bool = True
    publish_timeout_s: float = 10.0
    signed: bool = False
    mode: Literal["auto", "async", "sync"] = "auto"
    refresh: Literal["sample", "episode", "steps"] = "sample"
    refresh_every_steps: int = 1
    refresh_every_s: float | None = None
    prefetch: bool | None = None
    role: Literal["learner", "follower"] = "learner"
    resume: bool = False
    first_version_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if self.url is not None and parse_url(self.url).password is not None:
            raise SettingsError(
                "the store URL holds a password, and settings are written to checkpoints, logs "
                f"and Tune's files: take it out of the URL and {REMEDY}"
            )
        if self.namespace is not None:
            check_namespace(self.namespace)
        if not isinstance(self.password_env, str) or not self.password_env:
            raise SettingsError("password_env must be the name of an environment variable")
        if self.credential_provider is not None and (
            not isinstance(self.credential_provider, str) or ":" not in self.credential_provider
        ):
            raise SettingsError(
                "credential_provider must be 'package.module:name' (a text, so that no secret "
                "travels with the settings)"
            )
        check_history(self.history)
        for name in (
            "ttl_s",
            "poll_timeout_s",
            "stall_timeout_s",
            "transfer_timeout_s",
            "connect_timeout_s",
            "publish_timeout_s",
            "first_version_timeout_s",
        ):
            check_seconds(name, getattr(self, name))
        check_limits(self)
        if self.ttl_s < 10:
            raise SettingsError(f"ttl_s must be at least 10 seconds, got {self.ttl_s!r}")
        for name in ("fallback_to_push", "signed", "resume"):
            if type(getattr(self, name)) is not bool:
                raise SettingsError(f"{name} must be True or False")
        if type(self.max_state_bytes) is not int or not 0 < self.max_state_bytes <= 1 << 36:
            raise SettingsError(
                f"max_state_bytes must be an int from 1 to 2**36, got {self.max_state_bytes!r}"
            )
        check_node_cache_bytes(self.node_cache_bytes)
        if self.mode not in ("auto", "async", "sync"):
            raise SettingsError(f"mode must be 'auto', 'async' or 'sync', got {self.mode!r}")
        self._check_refresh()
        self._check_role()

    def _check_role(self) -> None:
        if self.role not in ("learner", "follower"):
            raise SettingsError(f"role must be 'learner' or 'follower', got {self.role!r}")
        if self.follows and self.resume:
            raise SettingsError("resume is for a learner: a follower acts with the newest anyway")
        if self.follows and self.namespace is None:
            raise SettingsError(
                "a follower has to know what to follow: pass namespace='...', and the same to "
                "with_redis_state in the learner's job"
            )

    def _check_refresh(self) -> None:
        if self.refresh not in ("sample", "episode", "steps"):
            raise SettingsError(
                f"refresh must be 'sample', 'episode' or 'steps', got {self.refresh!r}"
            )
        if type(self.refresh_every_steps) is not int or self.refresh_every_steps < 1:
            raise SettingsError(
                "refresh_every_steps must be an int of at least 1, "
                f"got {self.refresh_every_steps!r}"
            )
        if self.refresh_every_s is not None:
            check_seconds("refresh_every_s", self.refresh_every_s)
        if self.prefetch is not None and type(self.prefetch) is not bool:
            raise SettingsError(f"prefetch must be True, False or None, got {self.prefetch!r}")

    @property
    def follows(self) -> bool:
        """Whether this is a job that only reads."""
        return self.role == "follower"

    @property
    def in_flight(self) -> bool:
        """Whether EnvRunners apply newer weights within a `sample()`."""
        return self.refresh != "sample"

    @property
    def prefetches(self) -> bool:
        """Whether EnvRunners fetch in the background."""
        return self.in_flight if self.prefetch is None else self.prefetch

    @classmethod
    def create(cls, **values: Any) -> Settings:
        """Like the constructor; an unknown name raises `SettingsError` with the known ones."""
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(values.keys() - known)
        if unknown:
            raise SettingsError(
                f"unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}"
            )
        return cls(**values)

    def replace(self, **changes: Any) -> Settings:
        """A copy with some settings changed.

        Raises:
            SettingsError: As the constructor, and for an unknown name.
        """
        current = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Settings.create(**{**current, **changes})
