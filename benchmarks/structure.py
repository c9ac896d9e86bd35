"""How large etude is and how it is cut: `python -m benchmarks.structure [--room NAME] [--json] [--tighten]`.

Counts the sources with the standard library alone; without an installed engine the traced rows are left out. The goals
stand beside what is counted. tests/layers/structure.json holds upper bounds, above which it ends with an error;
`--tighten` lowers them to what is counted and 3 %, for people who merge at the same time, and never raises one.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1] / "etude"
BOUNDS = ROOT.parent / "tests" / "layers" / "structure.json"

GOALS: dict[str, int] = {  # row -> at most
    "files": 300,
    "lines": 45_000,
    "code lines": 30_000,  # without blank lines, imports and docstrings
    "lines outside algorithms": 39_700,
    "code lines outside algorithms": 27_000,
    "import lines": 3_500,
    "blank lines outside algorithms": 7_400,
    "public classes": 480,
    "public functions": 700,
    "named tuples": 70,
    "private functions called from one place": 250,
    "lines in them": 2_500,
    "of these, of at most six lines": 90,
    "modules under 90 lines with one importer": 15,  # algorithms and losses aside, which are one file each
    "protocols and abstract classes": 30,
    "with one implementation or none": 0,
    "places that spell out a run's arguments": 3,
    "command line fields": 100,
    "parameters of Run": 12,
    "parameters of load": 12,
    "parameters of Study": 12,
    "parameters of RL.set": 12,
    "parameters of train": 12,
    "methods of LearningKind that may be replaced": 10,
    "accesses to another object's private attributes": 5,
    "functions in a learning phase of DQN": 40,  # Stable-Baselines3 2.9, traced alike: 58 in 15 files
    "files in a learning phase of DQN": 14,
    "words for what a run is made of": 7,
}

BLANK = "blank lines outside algorithms"
OPEN = ("lines", "code lines")
"""Rows without a bound. An algorithm is one file, of at most 600 lines: there may be any number of them, while all else
grows no further."""

SIGNATURES: dict[str, tuple[str, ...]] = {  # row -> module, class, function
    "parameters of Run": ("run.run", "Run", "__init__"),
    "parameters of load": ("run.loading", "load"),
    "parameters of Study": ("tuning.study", "Study", "__init__"),
    "parameters of RL.set": ("solo.agent", "RL", "set"),
    "parameters of train": ("run.run", "Run", "train"),
}

ARGUMENTS = {
    "algorithm", "env", "config", "policies", "train_only", "data", "run_dir", "explorer", "rewrite", "start_from",
    "env_args", "wrappers", "frame_stack", "seed", "engine", "device", "compiled", "environments", "workers",
    "overlap", "vectorization", "replay_folder", "keep_info", "ray", "devices", "strategy", "steps",
    "evaluate_every", "evaluate_episodes", "evaluate_workers", "estimate_every", "checkpoint_every", "target",
}  # fmt: skip
"""What a run is asked for, wherever it is asked."""
ENOUGH = 6  # of these names make a place that spells them out

WORDS = {
    "context", "setup", "parts", "plan", "request", "session", "lifecycle", "kind", "regime", "experiment",
    "segment", "trial", "schedule", "candidate",
}  # fmt: skip

PHASE = """
import json, sys
import etude
from etude.base.events import Learned

ROOM = etude.__path__[0]
seen = set()

def watch(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(ROOM) and not code.co_name.startswith("<"):
        seen.add((code.co_filename, code.co_qualname))

with etude.Run("dqn", "CartPole-v1", environments=1, learning_starts=32, train_every=4, gradient_steps=4) as run:
    phases = 0
    for event in run.steps(100):
        phases += isinstance(event, Learned)
        if phases == 4:  # everything is compiled, and the next event but one is again Learned
            sys.setprofile(watch)
        elif phases == 5:
            sys.setprofile(None)
            break
print(json.dumps([len(seen), len({name for name, _ in seen})]))
"""

ADVICE = "Join two things before you add a third (`python -m benchmarks.structure --room NAME`)."

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A source file, parsed, and what is asked of it more than once."""

    name: str
    path: Path
    lines: list[str]
    tree: ast.Module
    nodes: list[ast.AST] = field(repr=False)
    uses: Counter[str] = field(repr=False)  # how often it reads a name, or an attribute of one


def read(root: Path) -> list[Module]:
    found = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(root.parent).with_suffix("").parts
        nodes = walked(tree := ast.parse(text))
        uses = Counter(node.id for node in nodes if isinstance(node, ast.Name))
        uses.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, text.splitlines(), tree, nodes, uses))
    return found


def walked(tree: ast.AST) -> list[ast.AST]:
    """What `ast.walk` yields, in half the time."""
    found = [tree]
    for node in found:  # which grows
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
    return found


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a body and, within them, of all others."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, name, []))


def count(root: Path = ROOT, room: str = "", phase: bool = True) -> dict[str, int]:
    """Every row that can be counted, of the whole package or of one folder of it."""
    package = read(root)
    inside = [module for module in package if (module.name + ".").startswith(f"{root.name}.{room}." if room else "")]
    rows = {**sizes(inside), **definitions(inside), **cuts(package, inside), **seams(package, inside)}
    if not room:
        rows |= signatures(package, root.name)
        rows |= traced() if phase else {}
        names = " ".join(module.name for module in package) + " ".join(cls.name for cls in classes(package))
        found = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", names)}
        rows["words for what a run is made of"] = len(WORDS & {word.rstrip("s") for word in found} | WORDS & found)
    return {name: rows[name] for name in GOALS if name in rows}


def sizes(modules: list[Module]) -> dict[str, int]:
    blank = imported = described = 0
    for module in modules:
        blank += sum(not line.strip() for line in module.lines)
        imported += sum(span(node) for node in module.nodes if isinstance(node, ast.Import | ast.ImportFrom))
        described += sum(
            sum(bool(module.lines[at].strip()) for at in range(node.lineno - 1, node.end_lineno or 0))
            for node in docstrings(module)
        )
    lines = sum(len(module.lines) for module in modules)
    code = lines - blank - imported - described
    own = [module for module in modules if ".algorithms." in module.name]
    aside = sizes(own) if 0 < len(own) < len(modules) else dict.fromkeys(("lines", "code lines", BLANK), 0)
    return {
        "files": len(modules),
        "lines": lines,
        "code lines": code,
        "lines outside algorithms": lines - aside["lines"],
        "code lines outside algorithms": code - aside["code lines"],
        "import lines": imported,
        BLANK: blank - aside[BLANK],
    }


def span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def docstrings(module: Module) -> Iterator[ast.stmt]:
    """Strings that stand alone: those of modules, classes, functions, and of the constants above them."""
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def classes(modules: list[Module]) -> list[ast.ClassDef]:
    return [node for module in modules for node in module.tree.body if isinstance(node, ast.ClassDef)]


def bases(cls: ast.ClassDef) -> list[str]:
    """The last names of what a class derives from: `typing.Protocol[T]` -> Protocol."""
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in cls.bases]


def definitions(modules: list[Module]) -> dict[str, int]:
    functions = [node for module in modules for node in module.tree.body if isinstance(node, Function)]
    return {
        "public classes": sum(not cls.name.startswith("_") for cls in classes(modules)),
        "public functions": sum(not function.name.startswith("_") for function in functions),
        "named tuples": sum("NamedTuple" in bases(cls) for cls in classes(modules)),
    }


def cuts(package: list[Module], inside: list[Module]) -> dict[str, int]:
    """Pieces that one place alone asks for."""
    alone = []
    for module in inside:
        private = [node for node in module.nodes if isinstance(node, Function) and is_private(node.name)]
        twice = {name for name, times in Counter(node.name for node in private).items() if times > 1}
        alone += [node for node in private if node.name not in twice and module.uses[node.name] == 1]
    importers = Counter(target for module in package for target in imported(module, package))
    small = [
        module
        for module in inside
        if module.path.name != "__init__.py" and len(module.lines) < 90 and importers[module.name] == 1
        if not {"algorithms", "losses"} & set(module.name.split("."))
    ]
    return {
        "private functions called from one place": len(alone),
        "lines in them": sum(map(span, alone)),
        "of these, of at most six lines": sum(span(node) <= 6 for node in alone),
        "modules under 90 lines with one importer": len(small),
    }


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imported(module: Module, package: list[Module]) -> set[str]:
    """The modules of the package that a file imports, anywhere in it."""
    names = {each.name for each in package}
    found = set()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= full & names or {node.module or ""}
    return found & names - {module.name}


def seams(package: list[Module], inside: list[Module]) -> dict[str, int]:
    abstract = {cls.name: cls for cls in classes(inside) if {"Protocol", "ABC"} & set(bases(cls))}
    members = all_members(classes(package))
    derived = Counter(base for cls in classes(package) for base in set(bases(cls)))
    few = 0
    for name, cls in abstract.items():
        alike = sum(members[name] <= found for other, found in members.items() if other not in abstract)
        is_call = members[name] <= {"__call__"}  # which every function implements
        few += max(derived[name], alike if "Protocol" in bases(cls) else 0) < 2 and not is_call
    fields = [each for module in inside if ".cli." in module.name + "." for each in fields_of(module)]
    return {
        "protocols and abstract classes": len(abstract),
        "with one implementation or none": few,
        "places that spell out a run's arguments": sum(len(spelled(module)) for module in inside),
        "command line fields": len(fields),
        "accesses to another object's private attributes": sum(map(reaches, inside)),
    }


def all_members(found: list[ast.ClassDef]) -> dict[str, set[str]]:
    """The public methods and attributes of classes by their names, those of the classes that they derive from among
    them."""
    own = {cls.name: cls for cls in found}

    @functools.cache
    def of(cls: ast.ClassDef) -> set[str]:
        names = {node.name for node in cls.body if isinstance(node, Function)}
        for node in statements(cls.body):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            names |= {name.removeprefix("self.") for target in targets for name in ast.unparse(target).split(", ")}
        names = {name for name in names if not name.startswith("_") or name == "__call__"}
        return names.union(*(of(own[base]) for base in bases(cls) if base in own and base != cls.name))

    return {cls.name: of(cls) for cls in found}


def fields_of(module: Module) -> list[str]:
    """The fields of the dataclasses of a module."""
    return [
        ast.unparse(node.target)
        for cls in classes([module])
        if any("dataclass" in ast.unparse(decorator) for decorator in cls.decorator_list)
        for node in cls.body
        if isinstance(node, ast.AnnAssign)
    ]


def spelled(module: Module) -> list[int]:
    """Lines of signatures, of classes' fields and of constants that name several arguments of a run."""
    found = []
    for node in module.nodes:
        if isinstance(node, Function):
            names = parameters(node)
        elif isinstance(node, ast.ClassDef):
            names = [ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            items = [key for key in node.keys if key] if isinstance(node, ast.Dict) else node.elts
            names = [str(item.value) for item in items if isinstance(item, ast.Constant)]
        else:
            continue
        if len(ARGUMENTS.intersection(names)) >= ENOUGH:
            found.append(node.lineno)
    return found


def parameters(function: Function) -> list[str]:
    """Those with a name; `self` and `cls` aside."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def reaches(module: Module) -> int:
    """Private attributes of other objects than `self`, of classes that do not define them."""
    owned = {
        node.attr
        for node in module.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    }
    owned |= {node.name for node in module.nodes if isinstance(node, Function)} | set(fields_of(module))
    of_tuples = {"_replace", "_asdict", "_fields", "_make", "_field_defaults", "_exit"}
    return sum(
        isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in owned | of_tuples
        for node in module.nodes
    )


def signatures(package: list[Module], name: str) -> dict[str, int]:
    rows = {}
    for row, (place, *names) in SIGNATURES.items():
        body: Any = [node for module in package if module.name == f"{name}.{place}" for node in module.tree.body]
        for own in names:
            found = next((node for node in body if getattr(node, "name", "") == own), None)
            body = getattr(found, "body", [])
        if isinstance(found, Function):
            rows[row] = len(parameters(found))
    kind = next(cls for cls in classes(package) if cls.name == "LearningKind")
    replaceable = [node for node in kind.body if isinstance(node, Function) and not node.name.startswith("_")]
    return rows | {"methods of LearningKind that may be replaced": len(replaceable)}


def traced() -> dict[str, int]:
    """etude's functions, and their files, between two learning phases of DQN on CartPole-v1: four environment steps and
    four gradient steps in one process, on the engine that "auto" picks. Empty without an engine."""
    # Limits from outside take the place of etude's own, which are a part of what is counted.
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    told = {"capture_output": True, "text": True, "timeout": 300, "check": False, "env": free}
    done = subprocess.run([sys.executable, "-c", PHASE], **told)
    names = [f"{what} in a learning phase of DQN" for what in ("functions", "files")]
    return dict(zip(names, json.loads(done.stdout.splitlines()[-1]), strict=True)) if done.returncode == 0 else {}


def tightened(bounds: dict[str, int], rows: dict[str, int]) -> dict[str, int]:
    """Bounds that are nowhere above those of before. What one place decides alone has no slack."""
    exact = ("parameters", "methods")
    new = {name: found if name.startswith(exact) else found + -(-3 * found // 100) for name, found in rows.items()}
    return bounds | {name: min(bound, bounds.get(name, bound)) for name, bound in new.items() if name not in OPEN}


def above(rows: dict[str, int]) -> list[str]:
    """What is more than its bound."""
    bounds = json.loads(BOUNDS.read_text())
    return [
        f"{row}: {found:,}, at most {bounds[row]:,}" for row, found in rows.items() if found > bounds.get(row, found)
    ]


def table(rows: dict[str, int], goals: bool) -> str:
    wide = max(map(len, rows))
    lines = [f"{'':{wide}}    today" + "  at most" * goals]
    return "\n".join(
        lines + [f"{row:{wide}}  {found:>7,}" + f"  {GOALS[row]:>7,}" * goals for row, found in rows.items()]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the package's folder in another checkout")
    parser.add_argument("--room", default="", help="one folder alone, such as report or training.kinds")
    parser.add_argument("--json", action="store_true", help="print JSON in place of text")
    parser.add_argument("--tighten", action="store_true", help=f"lower the bounds in {BOUNDS.relative_to(ROOT.parent)}")
    asked = parser.parse_args()
    rows = count(asked.root, asked.room.replace("/", "."), asked.root == ROOT)
    both = {name: {"today": found, "at_most": GOALS[name]} for name, found in rows.items()}
    print(json.dumps(both, indent=2) if asked.json else table(rows, not asked.room))
    if asked.tighten and not asked.room:
        before = json.loads(BOUNDS.read_text()) if BOUNDS.exists() else {}
        BOUNDS.write_text(json.dumps(tightened(before, rows), indent=2) + "\n")
    elif asked.root == ROOT and not asked.room and (faults := above(rows)):
        sys.exit("\n".join([*faults, ADVICE]))


if __name__ == "__main__":
    main()
