import io

from events_of_a_run import estimated

from etude.report import EventLines


def test_a_line_of_estimates_has_their_intervals_and_gains():
    stream = io.StringIO()
    EventLines(stream)(estimated(100))
    assert stream.getvalue() == ("step 100  Estimated  wis 30 [25, 35], gain 1.5, 12.5 effective episodes  notes far\n")
