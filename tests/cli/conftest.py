import pytest


@pytest.fixture
def drawn_curves():
    """A session draws the curve of its run, as it does for users."""


@pytest.fixture(autouse=True)
def no_other_curves(request, monkeypatch):
    """To draw one takes a third of the time of a short session."""
    if "drawn_curves" not in request.fixturenames:
        monkeypatch.setattr("etude.report.plots.draw_run", lambda run, path: None)
