"""The floors of docs/design.md, section 4. Every import of etude is read from the source, also inside functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "etude"

FLOORS = {
    0: "cores data trees spaces events protocols errors schedules optimizers seeding checks config_json progress",
    1: "ops losses joint",
    2: "networks explore replay adapt offline",
    3: "agent config engines algorithms presets several independent",
    4: "envs rollout",
    5: "run evaluate checkpoint run_directory assembly learner interrupt cadence audience collection loop cycles "
    "exploration recording recorded",
    6: "report solo tuning serving language",
    7: "cli examples __main__",
}
FLOOR = {part: floor for floor, parts in FLOORS.items() for part in parts.split()}
ON_ONE_FLOOR = {  # what may import what beside it
    ("losses", "ops"),
    ("joint", "ops"),
    ("engines", "agent"),
    ("algorithms", "agent"),
    ("algorithms", "config"),
    ("several", "agent"),
    ("offline", "replay"),
    ("algorithms", "several"),
    ("independent", "agent"),
    ("independent", "several"),
    ("rollout", "envs"),
    ("run", "assembly"),
    ("run", "exploration"),
    ("run", "learner"),
    ("learner", "assembly"),
    ("learner", "cycles"),
    ("run", "evaluate"),
    ("run", "checkpoint"),
    ("run", "run_directory"),
    ("run", "interrupt"),
    ("run", "cadence"),
    ("run", "collection"),
    ("run", "loop"),
    ("run", "recorded"),
    ("recorded", "assembly"),
    ("recorded", "learner"),
    ("recorded", "cycles"),
    ("loop", "learner"),
    ("loop", "cadence"),
    ("run", "audience"),
    ("run_directory", "checkpoint"),
    ("solo", "report"),
    ("__main__", "cli"),
}
FRAMEWORKS = {"torch", "jax", "jaxlib", "keras", "tensorflow"}
EDGES = {"rich", "tyro", "matplotlib", "tensorboardX", "imageio", "imageio_ffmpeg", "wandb"}
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "core"}
LONGEST_FILE = 400


def sources(root: Path) -> dict[str, Path]:
    """Module name -> file, for every module under `root`, whose name is the package's."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules that a file imports anywhere in it; names of etude as precisely as the source gives them."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in modules or "." not in base else base)
    return found


def part_of(module: str) -> str:
    """`etude.replay.ring` -> `replay`; the package itself -> ''."""
    return (module.split(".") + [""])[1]


def floor_faults(root: Path) -> list[str]:
    modules = sources(root)
    faults = []
    for module, path in modules.items():
        here = part_of(module)
        if not here:
            continue  # the package's own __init__ offers what all floors hold
        if here not in FLOOR:
            faults.append(f"{module} is on no floor: give it one in FLOORS")
            continue
        for target in imports(module, path, modules):
            there = part_of(target)
            if target.split(".")[0] != root.name or there == here:
                continue
            if there == "__version__" or (here == "examples" and target == root.name):
                continue  # examples are written as a user writes
            if there not in FLOOR:
                faults.append(f"{module} imports {target}; import the module that holds the name")
            elif FLOOR[there] > FLOOR[here]:
                faults.append(f"{module} (floor {FLOOR[here]}) imports {target} (floor {FLOOR[there]})")
            elif FLOOR[there] == FLOOR[here] > 0 and (here, there) not in ON_ONE_FLOOR:
                faults.append(f"{module} imports its neighbour {target} on floor {FLOOR[here]}")
    return faults


def outside_faults(root: Path, packages: set[str], allowed: set[str]) -> list[str]:
    """Imports of third-party `packages` in parts of etude other than `allowed`."""
    modules = sources(root)
    return [
        f"{module} imports {target}"
        for module, path in modules.items()
        for target in sorted(imports(module, path, modules))
        if target.split(".")[0] in packages and part_of(module) not in allowed
    ]


def cycles(root: Path) -> list[str]:
    modules = sources(root)
    graph = {m: sorted(imports(m, p, modules) & modules.keys() - {m, root.name}) for m, p in modules.items()}
    found: list[str] = []
    finished: set[str] = set()

    def visit(module: str, trail: list[str]) -> None:
        if module in trail:
            found.append(" -> ".join([*trail[trail.index(module) :], module]))
        elif module not in finished:
            for target in graph[module]:
                visit(target, [*trail, module])
            finished.add(module)

    for module in graph:
        visit(module, [])
    return found


def calls_of_print(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root.parent)}:{node.lineno}"
        for path in sources(root).values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def test_modules_import_lower_floors_only():
    assert floor_faults(ROOT) == []


def test_there_are_no_import_cycles_also_none_hidden_in_functions():
    assert cycles(ROOT) == []


def test_frameworks_are_imported_in_ops_and_engines_only():
    assert outside_faults(ROOT, FRAMEWORKS, {"ops", "engines", "examples"}) == []


def test_what_draws_and_prints_is_imported_at_the_edges_only():
    assert outside_faults(ROOT, EDGES, {"report", "cli"}) == []


def test_the_library_does_not_print():
    assert calls_of_print(ROOT) == []


def test_files_have_telling_names_and_a_readable_length():
    files = sources(ROOT).values()
    assert [str(path) for path in files if BANNED_NAMES & {path.stem, path.parent.name}] == []
    assert [str(path) for path in files if len(path.read_text().splitlines()) > LONGEST_FILE] == []


@pytest.mark.parametrize("statement", ["import etude", "import etude, etude.cli"])
def test_importing_loads_no_framework_and_nothing_that_draws(statement):
    listing = f"{statement}, sys; sys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded & (FRAMEWORKS | EDGES) == set()


@pytest.fixture
def broken(tmp_path):
    """A package in which every rule is broken once."""
    root = tmp_path / "etude"
    for name, text in {
        "__init__.py": "",
        "data.py": "def late():\n    from etude.replay import ring\n    print(ring)\n",
        "replay/__init__.py": "import etude.explore\n",
        "replay/ring.py": "from .. import data\nimport torch.nn\n",
        "explore/__init__.py": "",
        "helpers.py": "import matplotlib.pyplot\n",
        "run.py": "from etude import Run, __version__, trees\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_each_rule_notices_its_breach(broken):
    assert floor_faults(broken) == [
        "etude.base.data (floor 0) imports etude.replay.ring (floor 2)",
        "etude.helpers is on no floor: give it one in FLOORS",
        "etude.replay imports its neighbour etude.explore on floor 2",
        "etude.run imports etude.Run; import the module that holds the name",
    ]
    assert cycles(broken) == ["etude.base.data -> etude.replay.ring -> etude.base.data"]
    assert outside_faults(broken, FRAMEWORKS, {"ops", "engines"}) == ["etude.replay.ring imports torch.nn"]
    assert outside_faults(broken, EDGES, {"report", "cli"}) == ["etude.helpers imports matplotlib.pyplot"]
    assert calls_of_print(broken) == ["etude/base/data.py:3"]
