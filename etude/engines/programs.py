"""Which engines call the same compiled program: those whose traces depend on the same, but for what is an argument.

A trace depends on a built agent (its class, its config, what `build` made of the spaces) and on the backend. All of it
is written down, arrays by their shapes where they are weights, else by value, and classes and functions as the very
objects that they are. What is written is the key of a program, and the agent that is traced is read from it: it is no
engine's own, and a program holds no engine's arrays.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import math
import pickle
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from etude.engines.parameter_layout import ParameterLayout
from etude.networks.network import Part, put_part

KEPT = 8  # programs that stay although no engine is left that calls them: those that were asked for last
KNOWN = {"etude", "gymnasium", "jax", "jaxlib", "keras", "numpy", "tensorflow", "torch"} | sys.stdlib_module_names
_CODE = (type, types.FunctionType)
_THEMSELVES = (types.ModuleType, types.BuiltinFunctionType, np.ufunc)
_WRITING = ("__reduce__", "__reduce_ex__", "__getstate__")

AnyProgram = TypeVar("AnyProgram")
# The programs of this process by their keys, for as long as an engine calls them or they are among the last.
PROGRAMS: WeakValueDictionary[Any, Any] = WeakValueDictionary()
LAST: deque[Any] = deque(maxlen=KEPT)


def shared(
    make: Callable[[ParameterLayout, Any], AnyProgram], layout: ParameterLayout, backend: Any, scalars: Iterable[str]
) -> AnyProgram:
    """The program of an agent: that of an earlier one whose trace was the same, or a new one. An agent that cannot be
    written down has one of its own, as have modules of the user's own, which hold their weights.

    scalars: the fields of the config that are arguments of what will be called.
    """
    try:
        key, read = _written(make, layout, backend, tuple(scalars))
    except Exception:  # whatever an object of the user's raises
        return make(layout, backend)
    program = PROGRAMS.get(key)
    if program is None:
        program = make(read(), backend)
        PROGRAMS[key] = program
    if program in LAST:
        LAST.remove(program)
    LAST.append(program)
    return program


def _written(
    make: Any, layout: ParameterLayout, backend: Any, scalars: tuple[str, ...]
) -> tuple[Any, Callable[[], ParameterLayout]]:
    """(the key, what reads the agent's layout from it)."""
    file, agent = io.BytesIO(), layout.agent
    config = copy.copy(agent.config)
    for name in vars(config).keys() & set(scalars):
        object.__setattr__(config, name, math.nan)
    held = {attribute: value for attribute, value in vars(agent).items() if not isinstance(value, Part)}
    for attribute, value in held.items():
        if isinstance(value, dict):
            held[attribute] = {name: one for name, one in value.items() if not isinstance(one, Part)}
    writer = _Writer(file)
    writer.dump((make, type(backend), backend.compiled_for, scalars, type(agent), held | {"config": config}))
    writer.parts = True
    writer.dump(layout.parts)
    written, objects = file.getvalue(), tuple(writer.objects)

    def read() -> ParameterLayout:
        reader = _Reader(io.BytesIO(written), objects)
        *_, kind, held = reader.load()
        own, own.agent, own.parts = copy.copy(layout), object.__new__(kind), reader.load()
        own.agent.__dict__.update(held)
        for name, part in own.parts.items():
            put_part(own.agent, name, part)
        own.initial = {name: _blank(value.shape, value.dtype) for name, value in layout.initial.items()}
        return own

    return (written, objects), read


class _Same:
    """An object that is equal to itself alone. read: what is read in its place."""

    def __init__(self, itself: Any, read: Any = None):
        self.itself, self.read = itself, itself if read is None else read

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.itself is other.itself

    def __hash__(self) -> int:
        return id(self.itself)


class _Reader(pickle.Unpickler):
    def __init__(self, file: Any, objects: tuple[_Same, ...]):
        super().__init__(file)
        self._objects = objects

    def persistent_load(self, number: Any) -> Any:
        return self._objects[number].read


class _Writer(pickle.Pickler):
    """objects: what is not written, as it counts by itself. parts: whether networks are due; their weights are left
    out, which would be constants of a trace where something else than the agent holds a network."""

    def __init__(self, file: Any):
        super().__init__(file)
        self.fast: bool = True  # equal strings are written alike, whether or not they are one object
        self.parts = False
        self.objects: list[_Same] = []
        self._walked: set[_Same] = set()

    def persistent_id(self, found: Any) -> int | None:
        if (
            isinstance(found, _THEMSELVES)
            or (isinstance(found, type) and not _is_of_user(found))
            or any(found is each for each in _READING)
        ):
            found = _Same(found)
        elif not isinstance(found, _Same):
            return None
        self.objects.append(found)
        return len(self.objects) - 1

    def reducer_override(self, found: Any) -> Any:
        if isinstance(found, Part):
            if not self.parts or not found.in_numpy or _is_of_user(type(found)):
                raise pickle.PicklingError("a network that is no attribute of the agent, or of the user's own")
            shapes = {name: (np.shape(value), value.dtype) for name, value in found.variables.items()}
            return _part, (type(found), {**vars(found), "variables": shapes})
        if isinstance(found, _CODE):
            # A function may be made anew at every call of another: what counts is its code, and what it was made with
            same = _Same(found.__code__, found) if isinstance(found, types.FunctionType) else _Same(found)
            read = () if _Same(found) in self._walked else tuple(_read_by(found))
            self._walked.add(_Same(found))
            return _first, (same, read)
        kind: Any = type(found)
        # A class of etude's that says how those derived from it are written, or data
        written = next((base for base in kind.__mro__ if "__reduce__" in vars(base)), object)
        if _is_of_user(kind) and (written is object or _is_of_user(written)) and not (
            dataclasses.is_dataclass(kind) and all(getattr(kind, name) is getattr(object, name) for name in _WRITING)
        ):  # fmt: skip
            raise pickle.PicklingError(f"{kind.__module__}.{kind.__name__} may change")
        return NotImplemented


def _is_of_user(found: Any) -> bool:
    return str(getattr(found, "__module__", None)).partition(".")[0] not in KNOWN


def _read_by(found: Any) -> Iterator[Any]:
    """What a class or a function of the user's reads: what it inherits and its attributes, or what its names mean and
    its defaults."""
    if isinstance(found, type):
        yield from found.__bases__
        for name, value in sorted(vars(found).items()):
            if isinstance(value, property):
                yield name, value.fget
            elif isinstance(value, classmethod | staticmethod):
                yield name, value.__func__
            elif isinstance(value, types.FunctionType) or not name.startswith("_"):
                yield name, value
        return
    codes, names = [found.__code__], set()
    for code in codes:
        names |= set(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    cells = zip(found.__code__.co_freevars, found.__closure__ or (), strict=True)
    yield found.__defaults__, found.__kwdefaults__, {name: cell.cell_contents for name, cell in cells}
    scopes, seen = [found.__globals__, sys.modules] if _is_of_user(found) else [], []
    for scope in scopes:  # modules among what is read are scopes, too
        for name in sorted(names & scope.keys()):
            yield name, scope[name]
            if isinstance(scope[name], types.ModuleType) and scope[name] not in seen:
                seen.append(scope[name])
                scopes.append(vars(scope[name]))


def _first(itself: Any, read: Any) -> Any:
    return itself


def _part(kind: type[Part], held: dict[str, Any]) -> Part:
    part = object.__new__(kind)
    part.__dict__.update(held)
    part.variables = {name: _blank(*shape) for name, shape in held["variables"].items()}
    return part


_READING = (_first, _part)


def _blank(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array that stands for one of this shape, without the memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
