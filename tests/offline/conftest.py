"""What tests of recordings share."""

import pytest

from etude.offline import shards


@pytest.fixture
def quick_shards(monkeypatch):
    """Hundreds of shards do not wait for the disk; processes that are killed write as they always do."""
    monkeypatch.setattr(shards, "_sync", lambda path: None)
