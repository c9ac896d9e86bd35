import io

from events_of_a_run import a_run, collected, estimated, evaluated_of_two, of_two, started
from rich.console import Console

from etude.base.events import Adjusted, Evaluated, Finished, Learned, Warned
from etude.report import Progress, Table
from etude.training.evaluate import Evaluation


def console(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, highlight=False, color_system=None)


class Clock:
    """Goes on by `seconds` each time it is read."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, seconds

    def __call__(self):
        self.now += self.seconds
        return self.now


def shown(events, terminal=False, seconds=1.0):
    screen = console(terminal)
    progress = Progress(screen, Clock(seconds))
    for event in events:
        progress(event)
    progress.close()
    progress.close()
    return screen.file.getvalue()


def test_the_bar_shows_step_return_evaluation_losses_rate_and_time_left():
    events = [
        started(total=1_000),
        collected(100, 10.0, 20.0),
        Learned(100, 1, {"actor": 0.25}, {}, 0.1, compile_seconds=71.0),
        Evaluated(100, (30.0, 50.0), (1, 1), True),
        estimated(100),
    ]
    text = shown(events, terminal=True)
    for part in (
        "dqn on CartPole-v1", "seed 0", "100/1,000", "10%", "15 (last 2 episodes)", "40 at step 100, best 40",
        "wis 30 at step 100", "actor 0.25",
        # the clock stood at 1 at the start and at 4 at the evaluation: 100 steps in 3 s, 900 left
        "33", "0:27", "compiled", "1:11",
    ):  # fmt: skip
        assert part in text


def test_the_time_left_of_a_resumed_run_counts_this_session_only():
    text = shown([started(step=5_000, total=10_000), Evaluated(6_000, (1.0,), (1,), True)])
    assert "steps/s 1,000" in text
    assert "left 0:04" in text


def test_the_return_is_the_mean_of_the_last_hundred_episodes():
    text = shown(
        [started(), collected(10, *[0.0] * 50), collected(20, *[4.0] * 100), Evaluated(20, (1.0,), (1,), True)]
    )
    assert "return 4 (last 100 episodes)" in text


def test_the_returns_of_several_agents_are_shown_beside_their_sum():
    text = shown([started(), of_two(10, (3.0, -3.0), (1.0, -1.0)), evaluated_of_two(20, (4.0, -4.0))])
    assert "return 0 (ann 2, bob -2; last 2 episodes)" in text
    assert "evaluated 0 (ann 4, bob -4) at step 20, best 0" in text


def test_the_first_of_a_thousand_agents_stand_for_all_in_a_line():
    returns = {f"ant_{i}": (1.0,) for i in range(1_000)}
    text = shown([started(), Evaluated(20, (1_000.0,), (10,), True, returns_by_agent=returns)])
    evaluation = str(Evaluation((1_000.0,), (10,), returns_by_agent=returns))
    assert "ant_11 1 and 988 more) at step 20" in text and "ant_12" not in text
    assert evaluation.endswith("ant_11 1.0 ± 0.0 and 988 more")


def test_without_a_terminal_there_are_lines_at_evaluations_and_every_ten_seconds_and_no_control_codes():
    text = shown(a_run(), seconds=0.01)
    lines = text.splitlines()
    assert [line.split()[1] for line in lines[1:]] == [
        "2,000/10,000",
        "4,000/10,000",
        "6,000/10,000",
        "8,000/10,000",
        "10,000/10,000",
    ]
    assert "\x1b" not in text
    slow = shown((collected(step, 1.0) for step in range(10, 1_000, 10)), seconds=1.0)
    assert 8 <= len(slow.splitlines()) <= 10


def test_the_bar_is_redrawn_at_most_four_times_a_second():
    screen = console(terminal=True)
    progress = Progress(screen, Clock(0.001))
    progress(started())
    before = len(screen.file.getvalue())
    for step in range(1, 240):
        progress(collected(step, 1.0))
    assert screen.file.getvalue()[before:].count("steps/s") <= 1


def test_warnings_and_changed_hyperparameters_are_told_as_they_are():
    events = [started(), Warned(5, "worker 1 [red] died"), Adjusted(6, "learning_rate", 0.1, 0.05, "plateau")]
    text = shown(events)
    assert "step 5: worker 1 [red] died" in text
    assert "step 6: learning_rate 0.1 -> 0.05 (plateau)" in text


def test_the_terminal_is_given_back_when_the_run_ends():
    text = shown([started(), Finished(10_000, "steps", 1.0, {})], terminal=True)
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert text.count(hide) == text.count(show) == 1


def test_the_table_shows_every_number_of_an_interval():
    screen = console(terminal=False)
    table = Table(every=5_000, console=screen)
    for event in a_run():
        table(event)
    text = screen.file.getvalue()
    assert "step 5,000" in text
    for tag in ("rollout/ep_rew_mean", "eval/mean_reward", "train/q", "time/fps"):
        assert tag in text
