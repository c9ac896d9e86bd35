"""What a file of episodes says of itself: JSON with the spaces, counts, and what recorded it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.base import spaces as spaces_
from etude.base.errors import DataError
from etude.base.spaces import Spaces, describe, from_zero, origins_of, with_origins

VERSION = 1
DEEPEST = 32  # of spaces in spaces
LARGEST_BOX = 2**24  # numbers


def describe_recording(environment: str | None, spaces: Spaces) -> dict[str, Any]:
    """What a file says of itself, as plain data."""
    found: dict[str, Any] = {"version": VERSION, "environment": environment, **_plain(spaces)}
    if spaces.agents is not None:
        found["agents"] = {name: _plain(own) for name, own in spaces.agents.items()}
        found["turns"] = spaces.turns
    return found


def _plain(spaces: Spaces) -> dict[str, Any]:
    return {
        "observation_space": spaces_.to_json(spaces.observation),
        "action_space": spaces_.to_json(spaces.action),
    }


def check_counts(about: dict[str, Any], transitions: int, episodes: int, path: Path) -> None:
    """Raise DataError where a file holds something else than it says."""
    for name, count in (("transitions", transitions), ("episodes", episodes)):
        if about.get(name, count) != count:
            raise DataError(
                f"{path}: it holds {count} {name} and says that it has {_shown(about[name])}: it is incomplete, or "
                "another program changed it. Record it again, or remove its metadata, 'etude'."
            )


def parsed(text: str | None, path: Path) -> dict[str, Any]:
    """What a file says of itself, from the text that says it. Raises DataError where it is damaged."""
    if text is None:
        return {}
    try:
        about = json.loads(text)
        version = about["version"]
    except (ValueError, KeyError, RecursionError, TypeError):
        raise DataError(f"{path}: its metadata, 'etude', is damaged. Record it again, or remove them.") from None
    if version != VERSION:
        raise DataError(f"{path}: its layout is version {_shown(version)}; this etude reads {VERSION}. Upgrade etude.")
    return about


def _shown(value: Any) -> str:
    """What a file says, for a message; of a long text, its beginning."""
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _space(about: dict[str, Any], name: str, path: Path) -> Any:
    """A space in the metadata."""
    try:
        _check_sizes(about[name])
        return spaces_.from_json(about[name])
    except (AssertionError, AttributeError, LookupError, OverflowError, StopIteration, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: its metadata, 'etude', has a damaged {name} ({_shown(repr(error))}). Record it again, or "
            "remove them."
        ) from None


def _check_sizes(data: Any, depth: int = 0) -> None:
    """Raise ValueError where a space would be too large to make, or is nested too deeply."""
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    for key, part in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        if key == "shape" and math.prod(part) > LARGEST_BOX:
            raise ValueError(f"a Box of shape {part}")
        if key == "context" and part > LARGEST_BOX:
            raise ValueError(f"{part} tokens")
        _check_sizes(part, depth + 1)


def spaces_of(about: dict[str, Any], given: Spaces | None, path: Path) -> Spaces:
    """The spaces that a file says, or those that are given. Raises DataError where they differ, or there are none."""
    if "action_space" not in about:
        if given is None:
            raise DataError(
                f"{path}: it does not say its spaces. Give those of the environment: "
                "read(path, Spaces(env.observation_space, env.action_space))."
            )
        return given
    held = _held(about, path)
    if given is None:
        return held
    held = replace(held, observation=with_origins(held.observation, origins_of(given.observation)))
    seen = (from_zero(held.observation), from_zero(given.observation))  # as agents see them, float64 as float32
    pairs = (("observations", *seen), ("actions", held.action, given.action))
    for name, mine, theirs in pairs:
        same_bounds = name == "observations" or spaces_.to_json(mine) == spaces_.to_json(theirs)
        if describe(mine) != describe(theirs) or not same_bounds:
            raise DataError(
                f"{path}: its {name} are of {mine}; expected {theirs}. It was recorded in another environment "
                f"({_shown(about.get('environment'))})."
            )
    return held


def _held(about: dict[str, Any], path: Path) -> Spaces:
    spaces = Spaces(_space(about, "observation_space", path), _space(about, "action_space", path))
    agents = about.get("agents")
    if agents is None:
        return spaces
    if not isinstance(agents, dict) or not all(isinstance(own, dict) for own in agents.values()):
        raise DataError(f"{path}: its metadata, 'etude', has damaged agents. Record it again.")
    own = {name: Spaces(_space(each, "observation_space", path), _space(each, "action_space", path))
           for name, each in agents.items()}  # fmt: skip
    return Spaces(spaces.observation, spaces.action, own, about.get("turns") is True)
