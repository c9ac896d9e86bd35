"""NumPy arrays in a pickle, read without unpickling it: no name in it is imported, and nothing is called.

A pickle is a program. Of its instructions, those that build data are followed, and every class or function becomes a
record of its name, its arguments and its state. Any other instruction or name is refused.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import CheckpointError

LARGEST = 16 * 2**20  # bytes; what is normalised are vectors
NAMES = re.compile(
    r"stable_baselines3\.common\.(vec_env\.vec_normalize VecNormalize|running_mean_std RunningMeanStd)"
    r"|numpy (ndarray|dtype)|numpy\._?core\.multiarray (_reconstruct|scalar)|numpy\._?core\.numeric _frombuffer"
    r"|numpy\.random\.\w+ \w+|gym(nasium)?\.spaces\.\w+ \w+|collections OrderedDict"
)
PUSHED = re.compile("BININT[12]?|LONG1|BINFLOAT|(SHORT_)?BIN(UNICODE|BYTES)")
MADE: Mapping[str, Any] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict,
}  # fmt: skip


@dataclass
class Record:
    """What a pickle would make by calling something of this name."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


def read_pickled(path: Path) -> Any:
    """What a pickle describes: numbers, texts, lists, dicts, and a `Record` in the place of every object. Raises
    CheckpointError for other instructions and names, and for a damaged file."""
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise CheckpointError(f"{path} has {size:,} bytes; expected at most {LARGEST:,}.")
        return _Machine().run(path.read_bytes())
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as problem:
        raise CheckpointError(
            f"{path} was not read: {problem}. Expected what VecNormalize.save of Stable-Baselines3 writes: arrays and "
            "numbers. Nothing in it was executed; save it again."
        ) from problem


class _Machine:
    """Follows the instructions of a pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []  # how long the stack was at each mark that is open
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for instruction, argument, _ in pickletools.genops(data):
            self._follow(instruction.name, argument)
        return self._stack.pop()

    def _follow(self, name: str, argument: Any) -> None:
        stack = self._stack
        if PUSHED.fullmatch(name):
            stack.append(argument)
        elif name in MADE:
            stack.append(MADE[name]())
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            self._replace(int(name[-1]), lambda *parts: parts)
        elif name == "TUPLE":
            stack.append(tuple(self._after_mark()))
        elif name in ("SETITEM", "SETITEMS"):
            given = self._after_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            stack[-1].update(zip(given[::2], given[1::2], strict=True))
        elif name in ("APPEND", "APPENDS"):
            given = self._after_mark() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(given)
        elif name == "GLOBAL":
            stack.append(_named(argument))
        elif name == "STACK_GLOBAL":
            self._replace(2, lambda module, what: _named(f"{module} {what}"))
        elif name in ("REDUCE", "NEWOBJ"):
            self._replace(2, lambda made, arguments: Record(made.name, tuple(arguments)))
        elif name == "BUILD":
            state = stack.pop()
            if not isinstance(stack[-1], Record):
                raise ValueError(f"it sets the state of a {type(stack[-1]).__name__}")
            stack[-1].state = state
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it has the instruction {name}")

    def _replace(self, count: int, function: Any) -> None:
        parts = self._stack[-count:]
        if len(parts) < count:
            raise ValueError("an instruction finds too little")
        del self._stack[-count:]
        self._stack.append(function(*parts))

    def _after_mark(self) -> list[Any]:
        place = self._marks.pop()
        found = self._stack[place:]
        del self._stack[place:]
        return found


def _named(name: str) -> Record:
    if not NAMES.fullmatch(name):
        raise ValueError(f"it names {name.replace(' ', '.')[:80]!r}")
    return Record(name)


def array_of(value: Any) -> np.ndarray:
    """The array of numbers, float64, that a number or the record of an array stands for; ValueError for others."""
    if type(value) in (int, float):
        return np.asarray(value, np.float64)
    if not isinstance(value, Record):
        raise ValueError(f"a {type(value).__name__} stands where an array is expected")
    if value.name.endswith("scalar"):
        dtype, data = value.arguments
        shape: tuple[int, ...] = ()
    elif value.name.endswith("_reconstruct"):
        _, shape, dtype, fortran, data = value.state
        if fortran is not False:
            raise ValueError("an array is stored in Fortran's order")
    else:
        raise ValueError(f"{value.name} stands where an array is expected")
    if not (
        isinstance(dtype, Record) and dtype.name == "numpy dtype" and dtype.arguments[0] in ("f8", "f4", "i8", "i4")
    ):
        raise ValueError("an array has no numbers of 32 or 64 bits")
    kind = np.dtype(dtype.arguments[0]).newbyteorder(dtype.state[1])
    if not all(type(n) is int and n >= 0 for n in shape) or len(data) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"an array of shape {shape} has {len(data)} bytes")
    return np.frombuffer(data, kind).reshape(shape).astype(np.float64)
