"""Reporters: callbacks that show or write the events of a run. Give them to `run.train(steps, [...])`.

Those that hold files or the terminal have `close()`. What draws or prints is imported when a reporter is made.
"""

from etude.report.charts import TensorBoard, WandB
from etude.report.curve import Curve
from etude.report.episodes import EpisodeLines
from etude.report.event_lines import EventLines
from etude.report.filming import Film, Text, Video, watch
from etude.report.history import RunHistory
from etude.report.json_lines import JsonLines, read_records
from etude.report.plots import draw_episodes, draw_estimates, draw_run, draw_runs, plot
from etude.report.series import read_run
from etude.report.studies import EvolutionTable, StudyTable, draw_importance, draw_parallel_coordinates
from etude.report.sweeps import SweepProgress
from etude.report.terminal import Progress, Table
from etude.report.video import write_film, write_gif, write_video

__all__ = [
    "Curve", "EpisodeLines", "EventLines", "EvolutionTable", "Film", "JsonLines", "Progress", "RunHistory",
    "StudyTable", "SweepProgress", "Table", "TensorBoard", "Text", "Video", "WandB", "draw_episodes", "draw_estimates",
    "draw_importance", "draw_parallel_coordinates", "draw_run", "draw_runs", "plot", "read_records", "read_run",
    "watch", "write_film", "write_gif", "write_video",
]  # fmt: skip
