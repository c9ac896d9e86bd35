import struct
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from events_of_a_run import a_run
from tensorboardX.proto import event_pb2

from etude.base.errors import MissingExtra
from etude.report import TensorBoard, WandB


def points(folder):
    """What the event files of a folder hold, file by file, as (tag, step), and the steps that sessions began with."""
    written, begun = [], []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack("Q", content[at : at + 8])
            event = event_pb2.Event.FromString(content[at + 12 : at + 12 + size])
            written += [(value.tag, event.step) for value in event.summary.value]
            begun += [event.step] if event.session_log.status else []
            at += 16 + size
    return written, begun


def test_tensorboard_gets_the_standard_tags_at_the_environment_steps(tmp_path):
    reporter = TensorBoard(tmp_path / "tensorboard")
    for event in a_run():
        reporter(event)
    reporter.close()
    written, begun = points(tmp_path / "tensorboard")
    assert {"rollout/ep_rew_mean", "rollout/ep_len_mean", "eval/mean_reward", "train/q", "time/fps"} <= {
        tag for tag, _ in written
    }
    assert [step for tag, step in written if tag == "eval/mean_reward"] == [2_000, 4_000, 6_000, 8_000, 10_000]
    assert begun == []


def test_tensorboard_hides_what_came_after_the_checkpoint_of_a_resumed_run(tmp_path):
    reporter = TensorBoard(tmp_path)
    for event in a_run(start=7_000):
        reporter(event)
    assert points(tmp_path)[1] == [7_001], "written when the run has finished, though nobody closed the reporter"


def test_tensorboard_keeps_the_sessions_that_begin_within_one_second(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1.0)
    reporter = TensorBoard(tmp_path)
    for start in (0, 2_000, 4_000):
        for event in a_run(start=start, until=start + 2_000):
            reporter(event)
    reporter.close()
    assert [step for tag, step in points(tmp_path)[0] if tag == "eval/mean_reward"] == [2_000, 4_000, 6_000]


def test_tensorboard_on_a_full_disk_is_an_error_and_keeps_no_run_waiting():
    """In a process of its own, which is killed where it waits for a thread that has ended."""
    script = "\n".join(
        [
            "from pathlib import Path; from etude.base.events import Learned; from etude.report import TensorBoard",
            "import sys; sys.path.insert(0, sys.argv[1]); from events_of_a_run import a_run",
            "import tensorboardX.record_writer as writer; writer.open_file = lambda path: open('/dev/full', 'wb')",
            "reporter, errors = TensorBoard('.'), 0",
            "for event in a_run(until=100_000):",
            "    try: reporter(event)",
            "    except OSError: errors += 1",
            "reporter.close(); print(errors > 0)",
        ]
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.stdout, found.stderr) == ("True\n", "")


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
