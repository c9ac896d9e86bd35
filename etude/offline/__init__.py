"""Recorded data: files of episodes, read into what agents learn from and written from what they did. See `files`."""

from etude.offline.blocks import EpisodeRecorder
from etude.offline.dataset import Dataset, to_steps
from etude.offline.files import read, write
from etude.offline.reader import Reader
from etude.offline.writer import Builder, Writer

__all__ = ["Builder", "Dataset", "EpisodeRecorder", "Reader", "Writer", "read", "to_steps", "write"]
