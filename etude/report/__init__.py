"""Reporters: callbacks that show or write the events of a run. Give them to `run.train(steps, [...])`.

Those that hold files or the terminal have `close()`. What draws or prints is imported when a reporter is made.
"""

from etude.report.charts import TensorBoard, WandB
from etude.report.filming import Film, Text, Video, watch, write_film, write_gif, write_video
from etude.report.plasticity import Plasticity
from etude.report.plots import Curve, draw_episodes, draw_estimates, draw_run, draw_runs, plot
from etude.report.records import JsonLines, RunHistory
from etude.report.series import read_records, read_run
from etude.report.studies import EvolutionTable, StudyTable, SweepProgress, draw_importance, draw_parallel_coordinates
from etude.report.terminal import EpisodeLines, EventLines, Progress, Table

__all__ = [
    "Curve", "EpisodeLines", "EventLines", "EvolutionTable", "Film", "JsonLines", "Plasticity", "Progress",
    "RunHistory", "StudyTable", "SweepProgress", "Table", "TensorBoard", "Text", "Video", "WandB", "draw_episodes",
    "draw_estimates", "draw_importance", "draw_parallel_coordinates", "draw_run", "draw_runs", "plot", "read_records",
    "read_run", "watch", "write_film", "write_gif", "write_video",
]  # fmt: skip
