"""What a run may import, and where it may write, when it is loaded: what its user signed by training it, gives again,
or trusts.

A run names its environment, and Python imports what makes it; it may name a folder for its replay, too. So each
checkpoint holds signatures (HMAC-SHA256, RFC 2104) of what these names stood for when the run was made: absolute paths,
and the contents of files that others than their user could change. The key never leaves the user's state folder.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from etude.base.errors import UntrustedError
from etude.envs.configured import DROP, ConfiguredEnvironment
from etude.envs.registry import Code, imported_by

ENVIRONMENT, ARGUMENTS, WRAPPERS, REPLAY_FOLDER = "environment", "environment_arguments", "wrappers", "replay_folder"
OUTPUT = "output"
_SIZE = 32  # bytes of the key
_ARGUMENTS = {ENVIRONMENT: "env", REPLAY_FOLDER: "replay_folder", OUTPUT: "output"}


class _Claim(NamedTuple):
    """Something that a run would import or write to."""

    name: str  # as the run has it
    reason: str  # a sentence: what it would do
    statement: Any  # plain data to sign; None where it is not even found


def claims(environment: Any, replay_folder: Any) -> dict[str, _Claim]:
    """What a run of this environment would import, what its maker would be told, and where its replay would be; nothing
    where that needs no trust."""
    env: Any = environment
    args: dict[str, Any] = {}
    wrappers: tuple[Any, ...] = ()
    if isinstance(environment, ConfiguredEnvironment):
        env, args = environment.env, environment.args
        wrappers = tuple(own for own in environment.wrappers if not str(own).startswith(DROP))
    found = {
        **_imports(ENVIRONMENT, "its environment", [env]),
        **_imports(WRAPPERS, "its environment's wrapper", wrappers),
    }
    if any(isinstance(value, str | list | tuple | dict) for value in args.values()):  # such as a path, or another name
        plain = json.dumps(args, sort_keys=True)
        found[ARGUMENTS] = _Claim(plain, f"its environment is made with the arguments {plain}", plain)
    if replay_folder is not None:
        folder = _absolute(str(replay_folder))
        reason = f"its replay makes and removes files in {folder or replay_folder!r}"
        found[REPLAY_FOLDER] = _Claim(str(replay_folder), reason, folder)
    return found


def output_claims(folder: str) -> dict[str, _Claim]:
    """Where a run would write its recorded episodes."""
    place = _absolute(folder)
    return {OUTPUT: _Claim(folder, f"it records episodes in {place or folder!r}", place)}


def _imports(kind: str, subject: str, names: Iterable[Any]) -> dict[str, _Claim]:
    """One claim for all of these names whose import needs trust."""
    needed = {name: codes for name in names if isinstance(name, str) and (codes := imported_by(name))}
    if not needed:
        return {}
    reasons = []
    for name, codes in needed.items():
        what = ", ".join(repr(code.places[0]) if code.places else f"{code.name!r}, not found here" for code in codes)
        reasons.append(f"{subject} {name!r} imports {what}")
    known = all(code.places for codes in needed.values() for code in codes)
    statement = [[name, *map(_plain, codes)] for name, codes in needed.items()] if known else None
    return {kind: _Claim(", ".join(needed), " and ".join(reasons), statement)}


def signatures(made: Mapping[str, _Claim]) -> dict[str, str]:
    """A signature of each claim; none where the state folder cannot be used, which is warned of: loading asks then."""
    key = _key(make=True) if made else None
    if key is None:
        if made:
            warnings.warn(
                f"No key could be kept in {_shown_folder()}, by which etude knows later that you trained this run. To "
                "go on with it, give trust=True (--trust), or set XDG_STATE_HOME to a folder of your own that can be "
                "written to, before the run is made.",
                stacklevel=1,  # once, from wherever it is called
            )
        return {}
    return {kind: _sign(key, kind, claim) for kind, claim in made.items() if claim.statement is not None}


def require(description: Mapping[str, Any], environment: Any, replay_folder: Any) -> None:
    """Raise UntrustedError unless the user who runs this signed what is taken from a run's description: its environment
    and the folder of its replay, or None for what is not."""
    require_signed(claims(environment, replay_folder), description.get("signatures"))


def require_signed(made: Mapping[str, _Claim], held: Any) -> None:
    """Raise UntrustedError unless the user who runs this signed all of these claims. held: their signatures."""
    key = _key(make=False)
    refused = {kind: claim for kind, claim in made.items() if key is None or not _is_signed(key, kind, claim, held)}
    if refused:
        reasons = ", and ".join(claim.reason for claim in refused.values())
        why = "You did not train this run here, or what it names has changed since"
        if key is None:
            why = f"There is no key in {_shown_folder()} by which etude would know that you trained this run here"
        raise UntrustedError(
            f"{why}: {reasons}.",
            {
                _ARGUMENTS[kind]: claim.name
                for kind, claim in refused.items()
                if kind in _ARGUMENTS and claim.name.isprintable()
            },
        )


def _plain(code: Code) -> list[Any]:
    return [code.name, [[place, _content(Path(place))] for place in code.places]]


def _absolute(folder: str) -> str | None:
    try:
        return os.path.realpath(folder)
    except ValueError:  # no name of a folder
        return None


def _content(path: Path) -> str | None:
    """The SHA-256 of a file that somebody else may change. None for the user's own, which he edits while he works, and
    for what the system installed."""
    if not path.is_file():  # a folder, or a module within Python
        return None
    about = path.stat()
    alone = about.st_gid == about.st_uid  # in a group of his own, as many systems have it
    others = stat.S_IWOTH if alone else stat.S_IWOTH | stat.S_IWGRP
    if about.st_uid in (os.getuid(), 0) and not about.st_mode & others:
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sign(key: bytes, kind: str, claim: _Claim) -> str:
    text = json.dumps(["etude run, version 1", kind, claim.statement])
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _is_signed(key: bytes, kind: str, claim: _Claim, held: Any) -> bool:
    signature = held.get(kind) if isinstance(held, dict) else None
    if claim.statement is None or not isinstance(signature, str):
        return False
    return hmac.compare_digest(_sign(key, kind, claim).encode(), signature.encode(errors="replace"))


def _key(make: bool) -> bytes | None:
    """The user's key; None where there is none, or somebody else could read it."""
    try:
        path = _state_folder() / "key"
        if make and not path.exists():
            _make_key(path)
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            private = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
            key = file.read(_SIZE)
    except (OSError, RuntimeError):  # a home that cannot be written to, or none
        return None
    return key if private and len(key) == _SIZE else None


def _state_folder() -> Path:
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".local" / "state") / "etude"


def _shown_folder() -> str:
    try:
        return str(_state_folder())
    except RuntimeError:  # no home
        return "~/.local/state/etude"


def _make_key(path: Path) -> None:
    """Make a new key, whole or not at all; the first of several processes wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".key.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SIZE))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
