import subprocess
import sys
import types

import pytest
from events_of_a_run import a_run

from etude.base.errors import MissingExtra
from etude.report import TensorBoard, WandB


@pytest.fixture
def writer(monkeypatch):
    """Stands in for tensorboardX's writer; holds what was written."""

    class Writer:
        def __init__(self, directory, purge_step, flush_secs):
            self.points, self.purge_step, self.closed = [], purge_step, False
            written.append(self)

        def add_scalar(self, tag, value, step):
            self.points.append((tag, step, value))

        def close(self):
            self.closed = True

    written = []
    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=Writer))
    return written


def test_tensorboard_gets_the_standard_tags_at_the_environment_steps(writer, tmp_path):
    reporter = TensorBoard(tmp_path)
    for event in a_run():
        reporter(event)
    reporter.close()
    (session,) = writer
    assert session.closed
    tags = {tag for tag, _, _ in session.points}
    assert {"rollout/ep_rew_mean", "rollout/ep_len_mean", "eval/mean_reward", "train/q", "time/fps"} <= tags
    assert [step for tag, step, _ in session.points if tag == "eval/mean_reward"] == [
        2_000,
        4_000,
        6_000,
        8_000,
        10_000,
    ]


def test_tensorboard_hides_what_came_after_the_checkpoint_of_a_resumed_run(writer, tmp_path):
    reporter = TensorBoard(tmp_path)
    for event in a_run(start=7_000):
        reporter(event)
    assert [session.purge_step for session in writer] == [7_001]


def test_tensorboard_writes_event_files(tmp_path):
    reporter = TensorBoard(tmp_path / "tensorboard")
    for event in a_run(until=2_000):
        reporter(event)
    reporter.close()
    (file,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    assert b"rollout/ep_rew_mean" in file.read_bytes()


WRITES = """
import sys
from etude.report import TensorBoard
reporter = TensorBoard(sys.argv[1])
reporter._open(0)
assert "torch" not in sys.modules and "tensorboardX" in sys.modules
sys.modules["torch"] = sys  # stands in for one that a program imported
reporter._open(0)
assert sys.modules["torch"] is sys
reporter.close()
"""


def test_tensorboard_writes_without_importing_torch_and_leaves_one_that_is_there(tmp_path):
    found = subprocess.run([sys.executable, "-c", WRITES, str(tmp_path)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_wandb_that_is_not_installed_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"pip install 'etude\[wandb\]'"):
        WandB(project="p")


def test_wandb_gets_the_description_once_and_the_numbers_by_step(monkeypatch):
    calls = []
    session = types.SimpleNamespace(
        log=lambda values, step: calls.append(("log", step, values)), finish=lambda: calls.append(("finish",))
    )
    fake = types.SimpleNamespace(init=lambda **options: (calls.append(("init", options)), session)[1])
    monkeypatch.setitem(sys.modules, "wandb", fake)
    reporter = WandB(project="p", every=1_000)
    for event in a_run(until=2_000):
        reporter(event)
    reporter.close()
    name, options = calls[0]
    assert name == "init"
    assert options["project"] == "p"
    assert options["config"]["algorithm"] == "dqn"
    assert [call[0] for call in calls[1:]] == ["log"] * (len(calls) - 2) + ["finish"]
    assert {step for call, step, _ in calls[1:-1]} == {1_000, 2_000}
