"""What tests of recordings share."""

import pytest

from etude.offline import writer


@pytest.fixture
def quick_shards(monkeypatch):
    """Hundreds of shards do not wait for the disk; processes that are killed write as they always do."""
    monkeypatch.setattr(writer, "_sync", lambda path: None)
