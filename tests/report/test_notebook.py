"""The progress of a run in a notebook, on a stand-in for IPython."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from events_of_a_run import a_run, collected, started
from matplotlib.figure import Figure

from etude.base.events import Evaluated, Finished, Warned
from etude.report import Progress
from etude.report.pictures import picture


class ZMQInteractiveShell:
    """The shell of a kernel, by the name that Jupyter's has."""


class GoogleShell(ZMQInteractiveShell):
    """One that is built on it, as on Colab."""


class TerminalInteractiveShell:
    """IPython at a terminal."""


class Outputs:
    """The outputs of a cell, each with all that it has shown."""

    def __init__(self):
        self.shown = []

    def display(self, data, *, raw, display_id):
        assert raw
        assert display_id is True
        self.shown.append([data])
        return self.Handle(self.shown[-1])

    class Handle:
        def __init__(self, shown):
            self.shown = shown

        def update(self, data, *, raw):
            assert raw
            self.shown.append(data)


@pytest.fixture
def outputs(monkeypatch):
    """Takes the kind of shell that runs; returns what a cell shows from then on."""

    def running(shell):
        ipython, display, found = ModuleType("IPython"), ModuleType("IPython.display"), Outputs()
        ipython.get_ipython, display.display = lambda: shell and shell(), found.display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)
        return found.shown

    return running


def show(events):
    clock = iter(range(1_000_000))
    progress = Progress(clock=lambda: float(next(clock)))
    for event in events:
        progress(event)
    progress.close()


@pytest.mark.parametrize("shell", [ZMQInteractiveShell, GoogleShell])
def test_a_run_is_one_output_that_is_updated(outputs, capsys, shell):
    shown = outputs(shell)
    show(a_run())
    (bar,) = shown
    texts = [data["text/plain"] for data in bar]
    assert len(texts) > 10
    assert all(text.startswith("dqn on CartPole-v1 (engine jax, seed 0)\n") for text in texts)
    assert " 0%" in texts[0]
    assert "10,000/10,000" in texts[-1]
    assert "took" in texts[-1]
    assert bar[-1]["text/html"].startswith("<pre")
    assert capsys.readouterr() == ("", "")


def test_every_run_of_a_reporter_has_an_output_of_its_own(outputs):
    shown = outputs(ZMQInteractiveShell)
    show([started(), Finished(10, "steps", 1.0, {}), started(step=10), Finished(20, "steps", 1.0, {})])
    assert len(shown) == 2


def test_names_with_angle_brackets_and_warnings_are_shown_as_they_are(outputs, capsys):
    shown = outputs(ZMQInteractiveShell)
    show([started(env="<class 'Duel'>"), Warned(5, "worker 1 [red] died")])
    (bar,) = shown
    assert "&lt;class" in bar[0]["text/html"]
    assert "step 5: worker 1 [red] died" in capsys.readouterr().err


@pytest.mark.parametrize("shell", [TerminalInteractiveShell, None])
def test_elsewhere_in_ipython_lines_are_printed(outputs, capsys, shell):
    shown = outputs(shell)
    show([started(), collected(10, 1.0), Evaluated(20, (1.0,), (1,), True)])
    assert shown == []
    assert "evaluated 1 at step 20" in capsys.readouterr().err


def test_ipython_is_not_imported_where_it_does_not_run(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "IPython", None)  # an import raises
    show([started(), Evaluated(20, (1.0,), (1,), True)])
    assert "evaluated 1 at step 20" in capsys.readouterr().err


@pytest.mark.parametrize("known, chosen", [({}, [{"png"}]), ({Figure: "by pyplot"}, [])])
def test_a_cell_shows_figures_also_where_pyplot_is_not_imported(monkeypatch, known, chosen):
    class Shell(ZMQInteractiveShell):
        display_formatter = SimpleNamespace(formatters={"image/png": SimpleNamespace(type_printers=known)})

    ipython, tools, formats = ModuleType("IPython"), ModuleType("IPython.core.pylabtools"), []
    ipython.get_ipython, tools.select_figure_formats = Shell, lambda shell, given: formats.append(given)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.core.pylabtools", tools)
    with picture(None) as figure:
        figure.subplots()
    assert formats == chosen
