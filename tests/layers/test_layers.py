"""The floors of docs/design.md, section 4. Every import of etude is read from the source, also inside functions."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import etude
from benchmarks import structure

ROOT = Path(__file__).parents[2] / "etude"

FLOORS = {  # rooms, and modules that stand on another floor than their room
    0: "base",
    1: "ops optimizers protocols",
    2: "losses multi_agent.joint",
    3: "adapt explore networks replay",
    4: "agent config language offline",
    5: "engines envs multi_agent",
    6: "algorithms checkpoint rewrite solo.engines solo.environments workers",
    7: "presets rollout",
    8: "serving",
    9: "training",
    10: "training.assembly",
    11: "estimation export report",
    12: "run",
    13: "importing solo",
    14: "tuning",
    15: "board examples ray",
    16: "cli",
    17: "__main__",
}
FLOOR = {place: floor for floor, places in FLOORS.items() for place in places.split()}
AXES = {"algorithms", "engines", "explore", "replay", "rollout"}
LOOSE = {"__init__", "__main__", "agent", "config", "optimizers", "protocols"}  # modules at the top, beside the folders
FRAMEWORKS = {"torch", "jax", "jaxlib", "keras", "tensorflow", "transformers", "peft"}
EDGES = {"rich", "tyro", "matplotlib", "tensorboardX", "imageio_ffmpeg", "wandb", "starlette", "uvicorn", "msgpack"}
DRAWING = {"board", "cli", "report", "serving"}  # where they are imported
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "core"}
LONGEST_FILE = 600
MOST_NAMES = 40  # of `etude.__all__`


def sources(root: Path) -> dict[str, Path]:
    """Module name -> file, for every module under `root`, whose name is the package's."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return structure.walked(ast.parse(path.read_text()))


def imports(module: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules that a file imports anywhere in it; names of etude as precisely as the source gives them."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in nodes(path):
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


def place_of(module: str) -> str:
    """The longest name in FLOORS that a module is in, as `etude.training.assembly.parts` is in `training.assembly`;
    else its room."""
    parts = module.split(".")[1:]
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in FLOOR), part_of(module))


def floor_faults(root: Path) -> list[str]:
    modules = sources(root)
    faults = []
    for module, path in modules.items():
        here = place_of(module)
        if not here:
            continue  # the package's own __init__ offers what all floors hold
        if here not in FLOOR:
            faults.append(f"{module} is on no floor: give it one in FLOORS")
            continue
        for target in sorted(imports(module, path, modules)):
            there = place_of(target)
            if target.split(".")[0] != root.name or there == here:
                continue
            if there == "__version__" or (here == "examples" and target == root.name):
                continue  # examples are written as a user writes
            if there not in FLOOR:
                faults.append(f"{module} imports {target}; import the module that holds the name")
            elif FLOOR[there] > FLOOR[here]:
                faults.append(f"{module} (floor {FLOOR[here]}) imports {target} (floor {FLOOR[there]})")
            elif FLOOR[there] == FLOOR[here] and part_of(target) != part_of(module):
                faults.append(f"{module} imports its neighbour {target} on floor {FLOOR[here]}")
            elif part_of(module) != part_of(target) and AXES.issuperset((part_of(module), part_of(target))):
                faults.append(f"{module} and {target} are of two axes")
    return faults


def loose_faults(root: Path) -> list[str]:
    """Modules at the top of the package that belong into a room."""
    return sorted({path.stem for path in root.glob("*.py")} - LOOSE)


def shared_names(root: Path) -> dict[str, list[str]]:
    """Public classes of one name in several modules; examples have names of their own."""
    found: dict[str, list[str]] = {}
    for module, path in sources(root).items():
        for node in nodes(path)[0].body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and part_of(module) != "examples":
                found.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def missing_places(root: Path) -> list[str]:
    """Names in FLOORS for which there is neither a folder nor a module."""
    paths = {place: root / place.replace(".", "/") for place in FLOOR}
    return [place for place, path in paths.items() if not path.is_dir() and not path.with_suffix(".py").exists()]


def outside_faults(root: Path, packages: set[str], allowed: set[str]) -> list[str]:
    """Imports of third-party `packages` in places of etude (see `place_of`) other than `allowed`."""
    modules = sources(root)
    return [
        f"{module} imports {target}"
        for module, path in modules.items()
        for target in sorted(imports(module, path, modules))
        if target.split(".")[0] in packages and place_of(module) not in allowed
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


def uses_of_the_package(root: Path) -> list[str]:
    """Modules that ask the package itself for a name, which imports all of it; `ops` is loaded with the package.
    Examples are written as a user writes."""
    return [
        f"{module} imports {alias.name} from {root.name}"
        for module, path in sources(root).items()
        if module != root.name and part_of(module) != "examples"
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == root.name
        for alias in node.names
        if alias.name not in ("__version__", "ops")
    ]


def calls_of_print(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root.parent)}:{node.lineno}"
        for path in sources(root).values()
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def test_modules_import_lower_floors_only():
    assert floor_faults(ROOT) == []


def test_only_the_map_is_loose_at_the_top_and_every_floor_names_what_there_is():
    assert loose_faults(ROOT) == [] and missing_places(ROOT) == []


def test_public_classes_have_names_of_their_own():
    assert shared_names(ROOT) == {}


def test_there_are_no_import_cycles_also_none_hidden_in_functions():
    assert cycles(ROOT) == []


def test_frameworks_are_imported_in_ops_and_engines_only():
    assert outside_faults(ROOT, FRAMEWORKS, {"ops", "engines", "solo.engines", "examples"}) == []


def test_what_draws_and_prints_is_imported_at_the_edges_only():
    assert outside_faults(ROOT, EDGES, DRAWING) == []


def test_the_library_imports_modules_and_not_all_of_itself():
    assert uses_of_the_package(ROOT) == []


def test_the_library_does_not_print():
    assert calls_of_print(ROOT) == []


def test_files_have_telling_names_and_a_readable_length():
    """Six hundred lines, as what reads as one thing is found and understood faster in one file than in three that
    import each other."""
    files = sources(ROOT).values()
    assert [str(path) for path in files if BANNED_NAMES & {path.stem, path.parent.name}] == []
    assert [str(path) for path in files if len(path.read_text().splitlines()) > LONGEST_FILE] == []


def test_test_files_have_names_of_their_own_by_which_pytest_imports_them_in_one_process():
    files = Counter(path.name for path in Path(__file__).parents[1].rglob("*.py") if path.name != "conftest.py")
    assert [name for name, times in files.items() if times > 1] == []


@pytest.mark.parametrize("statement", ["import etude", "import etude, etude.cli"])
def test_importing_loads_no_framework_and_nothing_that_draws(statement):
    listing = f"{statement}, sys; sys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded & (FRAMEWORKS | EDGES) == set()


def test_a_worker_that_steps_environments_loads_neither_algorithms_nor_the_rest_of_a_run():
    listing = "import etude.workers.worker, sys; sys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, timeout=60)
    rooms = {part_of(name) for name in done.stdout.split() if name.split(".")[0] == "etude"}
    assert {"workers", "envs"} <= rooms
    assert rooms & {"algorithms", "checkpoint", "replay", "report", "rollout", "run", "solo", "training"} == set()


def test_type_checkers_see_the_names_that_programs_get():
    seen = {
        alias.name
        for node in nodes(ROOT / "__init__.py")
        if isinstance(node, ast.ImportFrom) and node.module.startswith("etude")
        for alias in node.names
        if alias.name != alias.asname  # what is there once all is imported
    }
    got = {name.removeprefix("etude.") for name, names in etude._EXPORTS.items() if not names}
    got |= {name for names in etude._EXPORTS.values() for name in names.split()}
    assert seen - {"config_for"} == got == set(etude.__all__) - {"config"}


def test_the_front_door_has_few_names():
    assert len(etude.__all__) == len(set(etude.__all__)) <= MOST_NAMES


@pytest.fixture
def broken(tmp_path):
    """A package in which every rule is broken once."""
    root = tmp_path / "etude"
    for name, text in {
        "__init__.py": "",
        "base/__init__.py": "",
        "base/data.py": "def late():\n    from etude.replay import ring\n    print(ring)\n",
        "replay/__init__.py": "import etude.explore\n",
        "replay/ring.py": "from ..base import data\nimport torch.nn\nclass Ring: ...\n",
        "rollout/__init__.py": "import etude.replay\n",
        "explore/__init__.py": "class Ring: ...\nclass _Own: ...\n",
        "solo/__init__.py": "",
        "solo/agent.py": "def late():\n    import keras\n",
        "solo/engines/torch.py": "import torch\n",
        "helpers.py": "import matplotlib.pyplot\n",
        "run.py": "from etude import Run, __version__\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_each_rule_notices_its_breach(broken):
    assert floor_faults(broken) == [
        "etude.base.data (floor 0) imports etude.replay.ring (floor 3)",
        "etude.helpers is on no floor: give it one in FLOORS",
        "etude.replay imports its neighbour etude.explore on floor 3",
        "etude.rollout and etude.replay are of two axes",
        "etude.run imports etude.Run; import the module that holds the name",
    ]
    assert shared_names(broken) == {"Ring": ["etude.explore", "etude.replay.ring"]}
    assert loose_faults(broken) == ["helpers", "run"] and "networks" in missing_places(broken)
    assert cycles(broken) == ["etude.base.data -> etude.replay.ring -> etude.base.data"]
    assert outside_faults(broken, FRAMEWORKS, {"ops", "engines", "solo.engines"}) == [
        "etude.replay.ring imports torch.nn",
        "etude.solo.agent imports keras",
    ]
    assert outside_faults(broken, EDGES, DRAWING) == ["etude.helpers imports matplotlib.pyplot"]
    assert uses_of_the_package(broken) == ["etude.run imports Run from etude"]
    assert calls_of_print(broken) == ["etude/base/data.py:3"]
