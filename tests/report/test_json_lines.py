import json

import pytest
from events_of_a_run import a_run, collected, started

from etude.base.errors import ConfigError
from etude.base.events import Learned
from etude.report import JsonLines, read_records


def write(path, events):
    reporter = JsonLines(path)
    for event in events:
        reporter(event)
    reporter.close()


def measured(path):
    """The records that have numbers, without the time they took."""
    records = [{k: v for k, v in r.items() if k != "time/fps"} for r in read_records(path)]
    return [r for r in records if any("/" in key for key in r)]


def test_a_run_that_was_killed_after_a_checkpoint_resumes_without_a_gap_or_a_repetition(tmp_path):
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    write(whole, a_run())
    events = a_run()
    write(broken, (event for event, _ in zip(events, range(70), strict=False)))  # dies well after the save at 3,500
    assert read_records(broken)[-1]["step"] > 3_500
    write(broken, a_run(start=3_500))
    assert measured(broken) == measured(whole)
    steps = [record["step"] for record in measured(broken)]
    assert steps == sorted(steps)


def test_training_on_after_the_end_continues_the_axis(tmp_path):
    write(tmp_path / "m.jsonl", a_run(until=7_000))
    write(tmp_path / "m.jsonl", a_run(start=7_000, until=10_000))
    write(tmp_path / "whole.jsonl", a_run())
    assert measured(tmp_path / "m.jsonl") == measured(tmp_path / "whole.jsonl")


def test_a_new_run_starts_the_file_anew(tmp_path):
    write(tmp_path / "m.jsonl", a_run(until=7_000))
    write(tmp_path / "m.jsonl", a_run(until=1_000))
    assert max(record["step"] for record in read_records(tmp_path / "m.jsonl")) == 1_000


def test_every_line_is_strict_json_also_when_a_loss_is_not_finite(tmp_path):
    events = [
        started(),
        Learned(10, 1, {"q": float("nan"), "v": float("inf")}, {}, 0.1),
        collected(1_000, 1.0),
        collected(1_010),
    ]
    write(tmp_path / "m.jsonl", events)

    def refuse(constant):
        raise AssertionError(constant)

    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert (lines[1]["train/q"], lines[1]["train/v"]) == (None, None)


def test_each_record_is_on_disk_when_its_event_is_over(tmp_path):
    reporter = JsonLines(tmp_path / "m.jsonl")
    reporter(started())
    reporter(collected(1_000, 1.0))
    reporter(Learned(1_000, 1, {"q": 1.0}, {}, 0.1))
    assert len(read_records(tmp_path / "m.jsonl")) == 2
    reporter.close()
    reporter.close()


def test_a_last_line_that_a_crash_cut_off_is_left_out(tmp_path):
    write(tmp_path / "m.jsonl", a_run())
    text = (tmp_path / "m.jsonl").read_text()
    (tmp_path / "m.jsonl").write_text(text[:-20])
    assert len(read_records(tmp_path / "m.jsonl")) == len(text.splitlines()) - 1


@pytest.mark.parametrize("text", ['{"study": {}}\n', "[1]\n", "3\n"])
def test_a_file_of_something_else_is_refused(text, tmp_path):
    path = tmp_path / "study.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="holds no metrics of a run"):
        read_records(path)
