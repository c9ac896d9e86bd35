"""What helps to contribute: `make new-algorithm NAME=...`, and what runs on a push and before a commit."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import new_algorithm
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import pathlib, etude, etude.presets as presets
from etude.algorithms import find
print(pathlib.Path(etude.__file__).parents[1], *(each.__name__ for each in find("my_dqn")))
print(presets.lookup("my_dqn", "CartPole-v1").steps)
"""
COPIED = ("etude", "docs/algorithms", "tests/algorithms")


@pytest.fixture
def checkout(tmp_path):
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "static"))
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    return tmp_path


def run(checkout, *command):
    return subprocess.run(
        [sys.executable, *command], cwd=checkout, capture_output=True, text=True, check=False, timeout=120,
        env={"PYTHONPATH": str(checkout), "PATH": ""},
    )  # fmt: skip


def test_a_new_algorithm_is_known_and_its_test_lists_what_is_left_to_fill_in(checkout):
    new_algorithm.write(checkout, "my_dqn", "MyDQN")
    assert run(checkout, "-c", PROGRAM).stdout.split() == [str(checkout), "MyDQN", "MyDQNConfig", "50000"]
    left = run(checkout, "-m", "pytest", "-o", "addopts=", "-q", "tests/algorithms/test_my_dqn.py")
    assert left.returncode == 1 and "2 failed" in left.stdout
    assert "etude/algorithms/my_dqn.py:1:" in left.stdout and "docs/algorithms/my_dqn.md:3:" in left.stdout
    assert "write the numbers of two or three transitions here" in left.stdout
    assert "      - MY DQN: algorithms/my_dqn.md\n      - NeuralTS:" in (checkout / "mkdocs.yml").read_text()
    settings = str(ROOT / "pyproject.toml")
    for command in (["check"], ["format", "--check"]):
        done = run(checkout, "-m", "ruff", *command, "--config", settings, "etude/algorithms", "tests")
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "agent"), [("mpo", "MPO"), ("soft_decision_trees", "SoftDecisionTrees"), ("td_mpc2", "TdMpc2")]
)
def test_a_class_is_named_after_its_algorithm(name, agent, tmp_path):
    for path in ("etude/algorithms", "etude/presets", "docs/algorithms", "tests/algorithms"):
        (tmp_path / path).mkdir(parents=True)
    shutil.copy(ROOT / "etude/algorithms/__init__.py", tmp_path / "etude/algorithms")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    new_algorithm.write(tmp_path, name)
    assert f"class {agent}(Agent)" in (tmp_path / f"etude/algorithms/{name}.py").read_text()


@pytest.mark.parametrize(("name", "told"), [("dqn", "exists"), ("My-DQN", "small letters"), ("class", "small letters")])
def test_a_name_that_is_taken_or_is_none_is_refused(name, told):
    with pytest.raises(SystemExit, match=told):
        new_algorithm.write(ROOT, name)


def test_a_push_is_tested_on_every_python_and_every_engine():
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    pythons = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))
    assert set(re.findall(r'"(3\.\d+)"', workflow)) == pythons
    assert set(re.findall(r"engine: (\w+) }", workflow)) == {"tensorflow", "torch", "jax"}
    targets = re.findall(r"run: make ([\w-]+)", workflow)
    assert {"check", "engines", "docs", "build", "lowest"} == set(targets) and ".ci/run" in workflow


def test_hooks_call_tools_and_tests_that_there_are():
    entries = re.findall(r"entry: (.+)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert [entry.split()[2] for entry in entries] == ["ruff", "ruff", "mypy", "pytest"]
    assert all((ROOT / word).exists() for entry in entries for word in entry.split() if word.startswith("tests/"))
