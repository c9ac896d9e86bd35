"""The errors that etude raises on purpose. Each message says what was wrong, what was given, what was expected and
what to do."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_OPTIONS = re.compile(r" \((?:etude [^()]*)?--[a-z][^()]*\)")


class EtudeError(Exception):
    """Base of every error that etude raises on purpose. A message has options of the command line in brackets, behind
    the argument that Python has; Python's own messages go without."""

    in_all_processes = False  # whether all processes of a run raise it, and none waits for another

    def __str__(self) -> str:
        return _OPTIONS.sub("", self.with_options)

    @property
    def with_options(self) -> str:
        """The message as the command line shows it."""
        return super().__str__()


class ConfigError(EtudeError, ValueError):
    """A hyperparameter or an argument cannot be used."""


class SpaceError(EtudeError, ValueError):
    """An algorithm cannot use a space, or a value does not belong to its space."""


class EnvironmentFault(EtudeError, RuntimeError):
    """An environment raised, hung, or returned something that breaks the Gymnasium contract."""


class NetworkError(EtudeError, ValueError):
    """A network has a wrong output shape, or weights do not fit it."""


class NumericalError(EtudeError, FloatingPointError):
    """A loss, a gradient or a weight became NaN or infinite."""


class CheckpointError(EtudeError, RuntimeError):
    """A checkpoint is missing, incomplete, corrupt or of another agent."""


class UntrustedError(CheckpointError):
    """A run that its user did not train would import code, or write to files of its choice.

    reason: what it would do. again: what may be given in the place of what the run names, by argument.
    """

    def __init__(self, reason: str, again: Mapping[str, str]):
        given = ", ".join(f"{name}={value!r}" for name, value in again.items())
        super().__init__(f"{reason} If you trust it, pass trust=True{given and f', or give {given} yourself'}.")
        self.reason: str = reason
        self.again: Mapping[str, str] = again


class DataError(EtudeError, ValueError):
    """Recorded episodes are incomplete, inconsistent, or of other spaces."""


class CallbackError(EtudeError, RuntimeError):
    """A callback, a custom metric or a rewriter of steps returned what it must not; the run was saved in its directory.

    raised: what the function raised, where it raised: `Run.train` and `Run.steps` raise that, with this as its note.
    """

    def __init__(self, message: str, raised: Exception | None = None):
        super().__init__(message)
        self.raised = raised

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes what was raised where that can be pickled, and else the message alone."""
        try:
            raised = pickle.loads(pickle.dumps(self.raised))
        except Exception:  # whatever a class of the user's raises
            raised = None
        return type(self), (str(self), raised)


class ReplicaError(EtudeError, RuntimeError):
    """A process that trains the same run ended, does not answer, or does something else than the others."""


class MissingExtra(EtudeError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs an optional dependency. Install it with: pip install 'etude[{extra}]'")


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Imports of optional dependencies: MissingExtra where they are not installed."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(what, extra) from error
