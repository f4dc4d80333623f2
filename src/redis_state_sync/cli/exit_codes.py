"""Exit statuses, as docs/cli.md lists them."""

from __future__ import annotations

from enum import IntEnum

from redis_state_sync import errors


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    PROBLEM = 1
    USAGE = 2
    STORE = 3
    UNKNOWN = 4
    LEARNER_AT_WORK = 5
    DAMAGED = 6
    INTERRUPTED = 130


# The first that fits.
_BY_ERROR = (
    (errors.UnknownVersionError, ExitCode.UNKNOWN),
    (errors.SettingsError, ExitCode.USAGE),
    (errors.LearnerAliveError, ExitCode.LEARNER_AT_WORK),
    (errors.BlobMissingError, ExitCode.DAMAGED),
    (errors.CodecError, ExitCode.DAMAGED),
    (errors.StoreError, ExitCode.STORE),
)


def exit_code_of(error: errors.RedisStateSyncError) -> ExitCode:
    """The exit status for an error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.PROBLEM)
