"""What the interface for agents of one's own must not become: see docs/design.md."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "etude"
FLAGS = {"PPO", "HER", "TRL", "MARL", "PR", "IRL"}
AXES = ("algorithms", "engines", "replay", "rollout", "explore", "adapt")
LONGEST_CLASS = 400


def functions(tree: ast.AST, inside: str = "") -> list[tuple[str, ast.AST]]:
    """Every function with its qualified name; a function in a function belongs to the outer one."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((f"{inside}{node.name}", node))
        elif isinstance(node, ast.ClassDef):
            found += functions(node, f"{inside}{node.name}.")
    return found


def read(node: ast.AST) -> str | None:
    """The flag that `x.FLAG` or `getattr(x, "FLAG")` reads."""
    name = None
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        name = node.attr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
    return name if name in FLAGS else None


def readers(root: Path) -> dict[str, set[str]]:
    """For each flag, the functions that read it; but for `Settings`, which checks that its fields do not contradict
    each other."""
    found = defaultdict(set)
    for path in sorted(root.rglob("*.py")):
        for name, function in functions(ast.parse(path.read_text())):
            if name.startswith("Settings."):
                continue
            for node in ast.walk(function):
                if flag := read(node):
                    found[flag].add(f"{path.stem}.{name}")
    return found


def test_no_flag_is_read_in_more_than_one_function():
    found = readers(ROOT / "solo")
    assert {flag: sorted(where) for flag, where in found.items() if len(where) != 1} == {}
    assert set(found) == FLAGS


def test_a_flag_that_is_read_twice_is_noticed(tmp_path):
    (tmp_path / "parts.py").write_text(
        "def one(settings):\n    return settings.PR\n\n\ndef two(settings):\n    return getattr(settings, 'PR')\n"
    )
    assert readers(tmp_path) == {"PR": {"parts.one", "parts.two"}}


def test_no_flag_is_handed_on_as_an_argument():
    """`part(ppo=settings.PPO)` would be read in one function and decided upon in another."""
    handed = []
    for path in sorted((ROOT / "solo").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                handed += [
                    f"{path.stem}:{node.lineno}" for x in given if isinstance(x, ast.Attribute) and x.attr in FLAGS
                ]
    assert handed == []


def classes(root: Path) -> dict[str, int]:
    return {
        f"{path.stem}.{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in sorted(root.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


def test_no_class_is_longer_than_400_lines():
    found = classes(ROOT)
    assert found["agent.RL"] > 100, "the classes are found"
    assert {name: lines for name, lines in found.items() if lines > LONGEST_CLASS} == {}


def imported(path: Path) -> set[str]:
    """The modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("axis", [axis for axis in AXES if (ROOT / axis).is_dir()])
def test_no_axis_imports_another(axis):
    others = tuple(f"etude.{other}" for other in AXES if other != axis)
    faults = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sorted((ROOT / axis).rglob("*.py"))
        for module in sorted(imported(path))
        if module in others or module.startswith(tuple(f"{other}." for other in others))
    ]
    assert faults == []


FRAMEWORK_WORDS = {"torch", "tensorflow", "keras", "jax"}
ALGORITHM_WORDS = {"dqn", "ppo", "sac", "ddpg"}


@pytest.mark.parametrize("axis", ["replay", "rollout", "explore"])
def test_what_collects_and_stores_names_neither_framework_nor_algorithm_in_its_code(axis):
    """Docstrings may tell where an idea comes from; code must not decide by it."""
    faults = []
    for path in sorted((ROOT / axis).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            words = set(name.lower().split("_"))
            faults += [f"{path.relative_to(ROOT)}: {name}" for _ in words & (FRAMEWORK_WORDS | ALGORITHM_WORDS)]
    assert faults == []
