"""Policies as a folder with `act.py` and `weights.safetensors`, which needs NumPy alone.

The program is the steps of the trace, one a line, over the functions of `ops.numpy_ops` that they call, copied as they
are: so it computes the same bits.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from etude.base.files import replacing
from etude.base.spaces import Box, Dict, Discrete, Space, parts
from etude.checkpoint.tensors import encode
from etude.envs import observations
from etude.export import standalone
from etude.export.policy import ExportedPolicy, exported, title
from etude.ops import numpy_ops
from etude.ops.tracing import Traced, steps
from etude.serving import client

_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "and": "&", "or": "|",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_IMPORTS = """from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
"""
_SIGNS = {"neg": "-", "invert": "~"}


def write(run: Any, path: Path) -> None:
    """Write the folder, or one for each agent."""
    for place, policy in exported(run, path).items():
        _write(policy, place, title(run))


def _write(policy: ExportedPolicy, path: Path, about: str) -> None:
    outputs = policy.trace()
    program = PythonProgram({name: outputs[name] for name in policy.needed})
    flags = sum(each.shape[0] for each in policy.observed if each.path is None)
    text = f'''"""{about}

    action = act(observation)  # both as the environment has them

`make()` returns a policy with a memory of its own, for each further environment; `program` takes batches of arrays.
"""

{program.source()}

OBSERVATION = [
{_rows((each.name, each.path, each.dtype.name, each.shape) for each in policy.observed if each.path is not None)}]
MEMORY = [
{_rows((each.name, each.dtype.name, each.shape) for each in policy.memory)}]


def action_of(outputs):
    return {_action(policy.space, iter(policy.actions))}


def make() -> ActingPolicy:
    """A policy that remembers nothing yet."""
    return ActingPolicy(program, OBSERVATION, MEMORY, {flags}, action_of)


act = make().act
'''
    with replacing(path / "weights.safetensors") as file:
        for piece in encode(program.constants):
            file.write(piece)
    with replacing(path / "act.py") as file:
        file.write(text.encode())


def _rows(rows: Iterable[tuple[Any, ...]]) -> str:
    return "".join(f"    {row!r},\n" for row in rows)


def _action(space: Space, names: Iterator[str], alone: bool = True) -> str:
    """An expression for an action of the environment, of the outputs."""
    if isinstance(space, Dict):
        return "{" + ", ".join(f"{key!r}: {_action(part, names, False)}" for key, part in parts(space)) + "}"
    if inner := parts(space):
        return "(" + "".join(f"{_action(part, names, False)}, " for _, part in inner) + ")"
    number = isinstance(space, Box) and space.shape == ()
    row = f"outputs[{next(names)!r}][{'0, ...' if number else 0}]"
    return f"int({row})" if isinstance(space, Discrete) and alone else row


class PythonProgram:
    """The steps of a trace as Python.

    constants: what they read, by name.
    """

    def __init__(self, outputs: Mapping[str, Traced]):
        self.constants: dict[str, np.ndarray] = {}
        self._names: dict[Traced, str] = {}
        self._lines: list[str] = []
        self._called: dict[str, None] = {}
        for step in steps(outputs.values()):
            if not step.varies:
                name = step.name or f"constant{len(self.constants)}"
                self.constants[name] = step.value
                self._names[step] = f"WEIGHTS[{name!r}]"
            else:
                self._names[step] = f"x{len(self._lines)}"
                what = self._call(step.operation, step.arguments) if step.operation else f"inputs[{step.name!r}]"
                self._lines.append(f"{self._names[step]} = {what}")
        self._lines.append(f"return {{{', '.join(f'{name!r}: {self._names[out]}' for name, out in outputs.items())}}}")

    def _call(self, operation: str, arguments: tuple[Any, ...]) -> str:
        if operation == "getitem":
            x, key = arguments
            own = key if isinstance(key, tuple) else (key,)
            return f"{self._text(x)}[{', '.join(_index(part) for part in own)}]"
        given = [self._text(argument) for argument in arguments]
        if operation in _OPERATORS:
            return f" {_OPERATORS[operation]} ".join(given)
        if operation in _SIGNS:
            return _SIGNS[operation] + given[0]
        self._called[operation] = None
        return f"{operation}({', '.join(given)})"

    def _text(self, argument: Any) -> str:
        if isinstance(argument, tuple):
            return "(" + "".join(f"{self._text(part)}, " for part in argument) + ")"
        if isinstance(argument, Traced):
            return self._names[argument]
        return f'float("{argument}")' if isinstance(argument, float) and not np.isfinite(argument) else repr(argument)

    def source(self) -> str:
        """All that `act.py` holds of it."""
        lines = "\n".join(f"    {line}" for line in self._lines)
        found = [
            _IMPORTS,
            *copied(client, ["read_safetensors"]),
            *copied(observations, ["flat_mask"]),
            *copied(standalone, ["as_array", "ActingPolicy"]),
            *copied(numpy_ops, self._called),
            'WEIGHTS = read_safetensors(Path(__file__).with_name("weights.safetensors").read_bytes())[0]\n',
            f'def program(inputs):\n    """From arrays [N, ...] by name to outputs by name."""\n{lines}\n',
        ]
        return "\n\n".join(found)


def _index(key: Any) -> str:
    if isinstance(key, slice):
        return ":".join("" if part is None else str(part) for part in (key.start, key.stop, key.step))
    return "..." if key is Ellipsis else repr(key)


def copied(module: ModuleType, names: Iterable[str]) -> list[str]:
    """The source of these definitions of a module and of those that they use, in its order."""
    source = inspect.getsource(module)
    defined: dict[str, ast.stmt] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name):
                defined[target.id] = node
    wanted, waiting = set(), list(names)
    while waiting:
        if (name := waiting.pop()) in defined and name not in wanted:
            wanted.add(name)
            waiting += [node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)]
    lines, found = source.split("\n"), []  # once: `ast.get_source_segment` would do so for each definition
    for node in (node for name, node in defined.items() if name in wanted):
        *before, last = lines[node.lineno - 1 : node.end_lineno]
        found.append("\n".join((*before, last.encode()[: node.end_col_offset].decode(), "")))
    return found
