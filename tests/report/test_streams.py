import errno
import io

import pytest
from rich.console import Console

from etude.base.events import Finished, Started, Warned
from etude.base.text import Lasting
from etude.report import EventLines, Progress, Table


class Closed(io.StringIO):
    """Text written to it is never read."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def write(self, text):
        raise OSError(self.number, "no")


@pytest.mark.parametrize("number", [errno.EIO, errno.EPIPE])
@pytest.mark.parametrize("terminal", [True, False])
def test_progress_goes_on_when_its_terminal_is_closed(number, terminal, monkeypatch):
    stream = Closed(number)
    stream.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    progress = Progress()
    for event in (Started(0, {"algorithm": "dqn"}), Warned(1, "careful"), Finished(2, "steps", 1.0, {})):
        progress(event)
    progress.close()


@pytest.mark.parametrize("reporter", [Progress, Table, EventLines])
def test_a_program_without_streams_reports_to_nobody(reporter, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", None)
    told = reporter()
    for event in (Started(0, {"algorithm": "dqn"}), Warned(1, "careful"), Finished(2, "steps", 1.0, {})):
        told(event)


def test_a_full_disk_is_no_closed_terminal():
    with pytest.raises(OSError, match="no"):
        Lasting(Closed(errno.ENOSPC)).write("text")


def test_what_can_be_read_is_written():
    stream = io.StringIO()
    Console(file=Lasting(stream)).print("text")
    assert stream.getvalue() == "text\n"
