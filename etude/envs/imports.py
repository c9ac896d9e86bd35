"""What the name of an environment would import, found out without importing it."""

from __future__ import annotations

import os
import re
import site
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

OURS = "etude.examples"
KNOWN = ("ale_py", "gymnasium", "minigrid", "mpe2", "pettingzoo")
"""Packages whose environments may be named by anybody, where they are installed."""
WRAPPERS = ("gymnasium.wrappers:AtariPreprocessing",)
"""Wrappers that presets name, of a module that etude imports anyway."""
_VERSIONED = re.compile(r"(\w+/)?\w[\w-]*-v\d+|\w+_v\d+", re.ASCII)  # ALE/Pong-v5, simple_spread_v3


@dataclass(frozen=True)
class Code:
    """A file or a module that would be imported.

    places: the absolute path of its file, or of the folders of a namespace package; none where it is not found, or has
    no file.
    """

    name: str
    places: tuple[str, ...]


def imported_by(name: str) -> tuple[Code, ...]:
    """What the name of an environment would import, packages before what is in them.

    Nothing for what any program may name: a Gymnasium id, an example of etude, an environment of an installed package
    in `KNOWN`, and one of `WRAPPERS`.
    """
    where, colon, what = name.rpartition(":")
    if not colon or name in WRAPPERS:
        return ()
    if where.endswith(".py"):
        return (Code(where, _file(where)),)
    found = _modules(where, what)
    return () if _is_ours(where, what) or _is_known(where, what, found) else found


def found_elsewhere(module: str) -> bool:
    """Whether Python finds a top-level module without a look into the current folder."""
    spec = _find(module, None)
    return module in sys.modules or (spec is not None and spec.origin is not None)


def _file(where: str) -> tuple[str, ...]:
    try:
        path = Path(where).resolve()
        return (str(path),) if path.is_file() else ()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a null byte
        return ()


def _modules(where: str, what: str) -> tuple[Code, ...]:
    """Those of `where`, and of `where.what` as far as there are any."""
    needed, names = where.count(".") + 1, f"{where}.{what}".split(".")
    found: list[Code] = []
    path: list[str] | None = None
    for i in range(len(names)):
        name = ".".join(names[: i + 1])
        spec = _find_top(name) if i == 0 else None if path is None else _find(name, path)
        if spec is None:
            return tuple(found) if i >= needed else (*found, Code(name, ()))
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        places = [spec.origin] if spec.has_location and spec.origin else path or []
        found.append(Code(name, tuple(dict.fromkeys(map(os.path.realpath, places)))))
    return tuple(found)


def _find_top(name: str) -> ModuleSpec | None:
    """As `registry` finds it: in the current folder, too, where it is nowhere else. A namespace package counts as
    nowhere: another module may still take its place."""
    spec = _find(name, None)
    if spec is not None and spec.origin is not None:
        return spec
    here = [] if os.getcwd() in sys.path else [os.getcwd()]
    return _found_by(PathFinder, name, [*sys.path, *here]) or spec


def _find(name: str, path: list[str] | None) -> ModuleSpec | None:
    """A module as Python finds it, in these folders of its package."""
    found = (_found_by(finder, name, path) for finder in sys.meta_path)
    spec = next((spec for spec in found if spec is not None), None)
    if spec is None and path is not None:
        # A namespace package in another one: Python finds it only after importing that.
        folders = [str(folder) for each in path if (folder := Path(each, name.rpartition(".")[2])).is_dir()]
        if folders:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = folders
    return spec


def _found_by(finder: Any, name: str, path: list[str] | None) -> ModuleSpec | None:
    try:
        return finder.find_spec(name, path)
    except (ImportError, KeyError, ValueError):  # one namespace package in another, a null byte
        return None


def _is_ours(where: str, what: str) -> bool:
    inside = where == OURS or where.startswith(f"{OURS}.")
    return inside and all(part.isidentifier() for part in (*where.split("."), what))


def _is_known(where: str, what: str, found: tuple[Code, ...]) -> bool:
    """Whether it is an environment of a package in `KNOWN`, and all of it is installed: nothing of the same name in the
    current folder takes its place."""
    names = where.split(".")
    made = _VERSIONED.fullmatch(what) or (what in ("env", "parallel_env") and _VERSIONED.fullmatch(names[-1]))
    if names[0] not in KNOWN or not made:
        return False
    return all(code.places and all(_is_installed(place) for place in code.places) for code in found)


def _is_installed(place: str) -> bool:
    path = Path(place).resolve()
    return any(path.is_relative_to(os.path.realpath(f)) for f in (*site.getsitepackages(), site.getusersitepackages()))
