"""A folder with code from elsewhere, and the place of the user's key."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from runs_from_elsewhere import SOURCE, trained

from etude import checkpoint


@pytest.fixture(scope="module")
def state(tmp_path_factory) -> dict:
    """What a checkpoint on CartPole-v1 holds."""
    path = tmp_path_factory.mktemp("state") / "run.etude"
    with trained() as run:
        run.save(path)
    return checkpoint.read(path)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The user's state folder, without a key; what is imported and looked for is forgotten afterwards."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path / "state" / "etude"
    for name in set(sys.modules) - before:
        if name.split(".")[0] in {"tasks", "package", "plain", "ta:sks", "minigrid"} or "etude_environment" in name:
            del sys.modules[name]


@pytest.fixture
def canary(tmp_path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def evil(home, tmp_path, canary, monkeypatch) -> Path:
    """A folder from elsewhere with code under many names, which is the current one."""
    folder = tmp_path / "evil"
    places = (
        "tasks.py",
        "package/__init__.py",
        "package/tasks.py",
        "plain/tasks.py",
        "plain/inner/tasks.py",
        "ta:sks.py",
        "minigrid.py",
    )
    for place in places:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(SOURCE.format(canary=str(canary)))
    monkeypatch.chdir(folder)
    return folder
