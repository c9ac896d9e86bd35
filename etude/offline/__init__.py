"""Recorded data: files of episodes, read into what agents learn from and written from what they did. See `files`."""

from etude.offline.builder import Builder
from etude.offline.dataset import Dataset, to_steps
from etude.offline.files import read, write
from etude.offline.reader import Reader
from etude.offline.recorder import EpisodeRecorder
from etude.offline.writer import Writer

__all__ = ["Builder", "Dataset", "EpisodeRecorder", "Reader", "Writer", "read", "to_steps", "write"]
