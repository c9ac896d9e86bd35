"""From what a user names (a Gymnasium id, `module:callable`, `file.py:callable`, a callable) to what makes it."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import site
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium import error
from gymnasium.vector import VectorEnv

from etude.base.errors import ConfigError, EnvironmentFault, EtudeError, MissingExtra
from etude.base.spaces import Origins
from etude.envs.configured import DROP, ConfiguredEnvironment, Wrapper, make_wrapped, with_frame_stack, without_entry
from etude.envs.envpool import PREFIX as ENVPOOL
from etude.envs.envpool import EnvPoolSimulator
from etude.envs.faults import RAISED, cause_of, explain_error, line_of, text_of
from etude.envs.functional import FUNCTIONAL, FunctionalEnvironment, as_gymnasium
from etude.envs.jax_libraries import LIBRARIES
from etude.language import GAMES

OURS = "etude.examples"
KNOWN = ("ale_py", "envpool", "gymnasium", "minigrid", "mpe2", "pettingzoo")
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
    if not colon or name in WRAPPERS or name in FUNCTIONAL:
        return ()
    if where.endswith(".py"):
        return (Code(where, _file(where)),)
    found, inside = _modules(where, what), where == OURS or where.startswith(f"{OURS}.")
    ours = inside and all(part.isidentifier() for part in (*where.split("."), what))
    return () if ours or _is_known(where, what, found) else found


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


def _is_known(where: str, what: str, found: tuple[Code, ...]) -> bool:
    """Whether it is an environment of a package in `KNOWN`, and all of it is installed: nothing of the same name in the
    current folder takes its place."""
    names = where.split(".")
    made = (
        where in LIBRARIES
        or _VERSIONED.fullmatch(what)
        or (what in ("env", "parallel_env") and _VERSIONED.fullmatch(names[-1]))
    )
    if names[0] not in {*KNOWN, *LIBRARIES} or not made:
        return False
    return all(code.places and all(_is_installed(place) for place in code.places) for code in found)


def _is_installed(place: str) -> bool:
    path = Path(place).resolve()
    return any(path.is_relative_to(os.path.realpath(f)) for f in (*site.getsitepackages(), site.getusersitepackages()))


EnvironmentSpec = str | Callable[..., Any] | ConfiguredEnvironment


@dataclass(frozen=True)
class EnvironmentSource:
    """What an environment is made with. At least one of the two is there."""

    name: str
    single: Callable[..., Any] | None  # (**kwargs) -> gymnasium.Env
    vector: Callable[..., Any] | None  # (num_envs, **kwargs) -> gymnasium.vector.VectorEnv
    global_state: bool = False  # whether observations of several agents hold the environment's `state()`
    masks: bool = False  # whether infos hold action masks at some steps
    origins: Origins = ()  # what large numbers of observations are counted from


def resolve(env: EnvironmentSpec) -> EnvironmentSource:
    """What makes the environments that `env` names.

    A callable with a parameter `num_envs`, and a subclass of VectorEnv, make a vectorised simulator.
    Raises ConfigError for what is unknown and MissingExtra for what is not installed.
    """
    if isinstance(env, ConfiguredEnvironment):
        source = resolve(env.env)
        wrappers = [(name_of(wrapper), imported(wrapper)) for wrapper in env.wrappers]
        if env.frame_stack > 1:
            wrappers.append(("frame_stack", partial(with_frame_stack, count=env.frame_stack)))
        if wrappers and source.single is None:
            raise ConfigError(
                f"{source.name} makes a vectorised simulator only; wrappers and frame_stack are for single "
                "environments."
            )
        single = source.single and partial(make_wrapped, env.env, source.single, env.args, wrappers)
        # A wrapper is for one environment: with one, simulators are left aside.
        vector = source.vector and not wrappers and partial(make_wrapped, env.env, source.vector, env.args, ())
        return EnvironmentSource(source.name, single, vector or None, env.global_state, env.masks, env.origins or ())
    if isinstance(env, str):
        library, _, task = env.partition(":")
        if env in FUNCTIONAL:
            return _resolve_callable(FUNCTIONAL[env], env)
        if library in LIBRARIES:
            return EnvironmentSource(env, partial(as_gymnasium, partial(LIBRARIES[library], task)), None)
        if env.startswith(ENVPOOL):
            return EnvironmentSource(env, None, partial(EnvPoolSimulator, env.removeprefix(ENVPOOL)))
        if env in gym.registry or ":" not in env:
            return _resolve_id(env)
        where, _, what = env.rpartition(":")
        module = _load_file(where, env) if where.endswith(".py") else _load_module(where, env)
        if env.count(":") == 1 and what in vars(module) and not isinstance(vars(module)[what], ModuleType):
            return _resolve_callable(vars(module)[what], env)
        several = None if where.endswith(".py") else _several(where, what)
        if several is not None:
            return _resolve_callable(several, env)
        if where.endswith(".py") or "-v" not in what:  # Gymnasium's own `module:Id-v0` imports, then looks up the id
            near = difflib.get_close_matches(what, [key for key, value in vars(module).items() if callable(value)])
            raise ConfigError(f"{where} has no {what!r}.{_did_you_mean(near)}")
        return _resolve_id(what)
    if callable(env):
        return _resolve_callable(env, name_of(env))
    got = f"An environment is a Gymnasium id, 'module:callable', a gymnasium.Env class or a callable; got {env!r}."
    if isinstance(env, gym.Env):  # made already
        make = f"{type(env.unwrapped).__name__}(...)" if env.spec is None else f"gymnasium.make({env.spec.id!r})"
        got += f" Give a function that makes it: lambda: {make}."
    raise ConfigError(got)


def name_of(env: EnvironmentSpec) -> str:
    """A short name for messages and run directories."""
    env = env.env if isinstance(env, ConfiguredEnvironment) else env
    while isinstance(env, partial):
        env = env.func
    return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)


def imported(given: Wrapper, kind: str = "wrapper") -> Callable[..., Any]:
    """What a user names "module:Name" or "file.py:Name"; anything else as it is. ConfigError where it is not there."""
    if not isinstance(given, str):
        return given
    if given.startswith(DROP):
        return partial(without_entry, key=given.removeprefix(DROP))
    where, _, what = given.rpartition(":")
    module = _load_file(where, given) if where.endswith(".py") else _load_module(where, given)
    found = vars(module).get(what)
    if not callable(found):
        near = difflib.get_close_matches(what, [key for key, value in vars(module).items() if callable(value)])
        raise ConfigError(f"{where} has no {kind} {what!r}.{_did_you_mean(near)}")
    return found


def _several(where: str, what: str) -> Callable[..., Any] | None:
    """What makes the environment of a module of PettingZoo, such as `mpe2:simple_spread_v3`: its agents act at once
    where it has both kinds. None where there is no such module."""
    with _importing(f"{where}:{what}"):
        try:
            found = vars(importlib.import_module(f"{where}.{what}"))
        except ModuleNotFoundError as problem:
            if problem.name != f"{where}.{what}":
                raise  # the module is there; what it imports is not
            return None
    return found.get("parallel_env") or found.get("env")


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """Whatever the user's modules raise while they are imported becomes EnvironmentFault."""
    try:
        yield
    except EtudeError:
        raise
    except RAISED as problem:
        raise EnvironmentFault(
            f"The module of {name!r} could not be imported: it raised {explain_error(problem)}."
        ) from cause_of(problem)


def _load_module(where: str, name: str) -> ModuleType:
    # A console script does not look in the folder it was started in; `python -m` does. What is found without that
    # folder is imported without it, so that nothing there passes for a dependency that is not installed.
    spec = _find(package := where.partition(".")[0], None)
    if os.getcwd() not in sys.path and package not in sys.modules and (spec is None or spec.origin is None):
        sys.path.append(os.getcwd())  # nothing else has a module of this name
    with _importing(name):
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as problem:
            if problem.name in _EXTRAS:
                raise MissingExtra(f"The environment {name!r}", _EXTRAS[problem.name]) from problem
            if problem.name is None or not where.startswith(problem.name):
                raise  # the module is there; what it imports is not
            if where in (packages := dict(_PACKAGES.values())):
                raise ConfigError(f"The environment {name!r} needs {where}: pip install {packages[where]}") from problem
            raise ConfigError(
                f"Cannot import {where!r} for the environment {name!r}. Expected 'module:callable' with a module that "
                "Python finds from here, or 'path/to/file.py:callable'."
            ) from problem


def _load_file(where: str, name: str) -> ModuleType:
    path = Path(where).resolve()
    if not path.is_file():
        raise ConfigError(f"There is no file {where!r} for the environment {name!r}.")
    key = f"etude_environment_{path.stem}_{abs(hash(str(path))):x}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module  # dataclasses and pickling look their module up
    folder = str(path.parent)
    sys.path.insert(0, folder)  # as for a script: it imports its neighbours
    try:
        with _importing(name):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise
    finally:
        sys.path.remove(folder)
    if folder not in sys.path:
        sys.path.append(folder)  # for imports inside its functions, after all that is installed
    return module


def _resolve_callable(make: Any, name: str) -> EnvironmentSource:
    if not callable(make):
        raise ConfigError(f"{name} is a {type(make).__name__}; expected a callable that makes a gymnasium.Env.")
    if isinstance(make, type) and issubclass(make, FunctionalEnvironment):
        return EnvironmentSource(name, partial(as_gymnasium, make), None)
    if isinstance(make, type):
        vectorised = issubclass(make, VectorEnv)
    else:
        vectorised = "num_envs" in inspect.signature(make).parameters
    return EnvironmentSource(name, None, make) if vectorised else EnvironmentSource(name, make, None)


def _resolve_id(name: str) -> EnvironmentSource:
    name = name if name in gym.registry else GAMES.get(name, name)
    for prefix, (module, package) in _PACKAGES.items():
        if name.startswith(prefix) and name not in gym.registry:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as problem:
                if module in _EXTRAS:
                    raise MissingExtra(f"The environment {name!r}", _EXTRAS[module]) from problem
                raise ConfigError(f"The environment {name!r} needs {module}: pip install {package}") from problem
    try:
        spec = gym.spec(name)
    except error.Error as problem:
        raise ConfigError(_unknown_id(name, problem)) from problem
    single = partial(gym.make, name, disable_env_checker=True) if spec.entry_point is not None else None
    vector = None
    if spec.vector_entry_point is not None:
        vector = partial(gym.make_vec, name, vectorization_mode="vector_entry_point")
    return EnvironmentSource(name, single, vector)


def _unknown_id(name: str, problem: Exception) -> str:
    if isinstance(problem, error.DeprecatedEnv):
        return f"{problem}"
    if (family := _family_of(name)) is not None:
        return f"There is no Gymnasium environment {name!r}. Did you mean {family}:{name}, which has several agents?"
    known = [*gym.registry, *GAMES]
    near = difflib.get_close_matches(name, known, n=3)
    lower = {key.lower(): key for key in known}
    near = near or [lower[key] for key in difflib.get_close_matches(name.lower(), lower, n=3)]
    return f"There is no Gymnasium environment {name!r}.{_did_you_mean(near)} Your own: 'module:callable'."


def _family_of(name: str) -> str | None:
    """The package of PettingZoo's that has an environment of this name."""
    if not re.fullmatch(r"[a-z_0-9]+_v\d+", name):
        return None
    for family in _FAMILIES:
        with suppress(ImportError):
            if importlib.util.find_spec(f"{family}.{name}") is not None:
                return family
    return "mpe2" if name.startswith("simple_") else None


def _did_you_mean(near: list[str]) -> str:
    return f" Did you mean {', '.join(near)}?" if near else ""


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name, or takes any."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a compiled module
        return True
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


_PACKAGES = {  # what an id begins with -> the module that registers it, and what installs that
    "ALE/": ("ale_py", "ale-py"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    **dict.fromkeys(
        ("Fetch", "Hand", "Adroit", "AntMaze", "PointMaze", "FrankaKitchen"),
        ("gymnasium_robotics", "gymnasium-robotics"),
    ),
}
_FAMILIES = ("mpe2", *(f"pettingzoo.{family}" for family in ("butterfly", "classic", "sisl", "atari")))
_EXTRAS = {  # module -> the extra that installs it
    **dict.fromkeys(("Box2D", "box2d", "mujoco", "swig", "imageio", "mujoco_py"), "envs"),
    "pygame": "video",
    **dict.fromkeys(("pettingzoo", "mpe2"), "multiagent"),
    **dict.fromkeys(("ale_py", "cv2", "opencv"), "atari"),
}


def construct(make: Callable[..., Any], name: str, kwargs: dict[str, Any]) -> Any:
    """Call what makes an environment. An optional dependency that is missing becomes MissingExtra, arguments that are
    missing ConfigError, and whatever else it raises EnvironmentFault."""
    try:
        return make(**kwargs)
    except EtudeError:
        raise
    except error.DependencyNotInstalled as problem:
        text = text_of(problem)
        extra = next((_EXTRAS[package] for package in _EXTRAS if package in text.lower()), None)
        if extra is None:
            raise ConfigError(f"The environment {name!r} needs what is not installed: {text}") from problem
        raise MissingExtra(f"The environment {name!r} ({text})", extra) from problem
    except error.Error as problem:
        raise ConfigError(f"The environment {name!r} could not be made: {problem}") from problem
    except RAISED as problem:
        missing = (problem.name or "").split(".")[0] if isinstance(problem, ModuleNotFoundError) else ""
        if missing in _EXTRAS:
            raise MissingExtra(f"The environment {name!r}", _EXTRAS[missing]) from problem
        if isinstance(problem, TypeError) and line_of(problem) is None and "required" in text_of(problem):
            example = f"lambda: {getattr(make, '__name__', 'make')}(...)"
            given = f"env_args={{...}} (--env-arg NAME=VALUE), or a callable such as {example}"
            raise ConfigError(
                f"The environment {name!r} needs arguments: {text_of(problem)}. Give them: {given}."
            ) from problem
        raise EnvironmentFault(
            f"The environment {name!r} could not be made: it raised {explain_error(problem)}."
        ) from cause_of(problem)
