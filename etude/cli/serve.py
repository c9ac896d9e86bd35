"""`etude serve`: trained policies, asked for actions over HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.errors import ConfigError
from etude.checkpoint.run_directory import RunDirectory
from etude.cli.options import takes, with_names
from etude.cli.output import say


@dataclass(frozen=True)
@takes("address every certificate key trust")
class Serve:
    """Answer observations of clients with the best actions of RUNS..., run directories or checkpoint files.

    A run directory is served by the checkpoint with the highest evaluated return, or the newest one where there is
    none, and again by the next one. The name of a policy is that of its folder or file; NAME=RUN gives it another.
    An address that other machines reach needs a token, in the environment variable ETUDE_TOKEN.
    """

    address: str = "127.0.0.1:9900"  # to listen at, HOST:PORT
    every: float = 5.0  # seconds between two looks for a newer checkpoint


def main(arguments: Sequence[str]) -> int:
    """Answer until Ctrl-C."""
    names, options = with_names(Serve, arguments, "serve RUNS...")
    if not names:
        raise ConfigError("serve takes runs; got none. Usage: etude serve RUNS... [options]")
    from etude.serving.clients import Listening
    from etude.serving.service import PolicyService

    sources: dict[str, Checkpoints] = {}
    for given in names:
        name, named, path = given.rpartition("=")[0], "=" in given, Path(given.rpartition("=")[2])
        name = name if named else path.absolute().name.removesuffix(".etude")
        if name in sources:
            raise ConfigError(f"Two runs are called {name!r}: give them names, as NAME=RUN.")
        sources[name] = Checkpoints(path, options.trust)
    files = [None if file is None else str(file) for file in (options.certificate, options.key)]
    listening = Listening(options.address, os.environ.get("ETUDE_TOKEN") or None, None, *files)
    service = PolicyService(listening, sources)
    try:
        scheme = "http" if options.certificate is None else "https"
        for name in service.policies:
            say(f"{name} is served at {scheme}://{options.address}/{name}")
        say("Ctrl-C ends it.")
        with suppress(KeyboardInterrupt):
            while not service.ends:
                time.sleep(options.every)
                for problem in service.reload():
                    say(f"The policy goes on as it was. {problem}")
    finally:
        service.close()
    return 0


class Checkpoints:
    """Loads the policy of a run: from its best checkpoint, or its newest where there is none."""

    def __init__(self, path: Path, trust: bool):
        self._path, self._trust = path, trust
        self._loaded: Any = None  # what tells whether the file is another one

    def __call__(self) -> Mapping[str, Any] | None:
        """The policies by agent; None where they are those of the last call."""
        from etude.cli.runs import trained
        from etude.export.policy import policies_of

        best = RunDirectory(self._path).best
        file = best if best.is_file() else self._path
        about = file.stat() if file.is_file() else None
        found = None if about is None else (about.st_mtime_ns, about.st_ino, about.st_size)
        if self._loaded is not None and self._loaded == (file, found):
            return None
        with trained(file, "last", None, trust=self._trust) as run:
            policies = policies_of(run.policy, run.actor())
            if self._loaded is None and (others := sorted(run.policy.translation.conversions.keys() - policies)):
                say(
                    f"{', '.join(others)} of {self._path} not served: the policy is a league or a function, no network."
                )
        self._loaded = file, found
        return policies
