"""What the cache's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lazy_backend import cache


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own, for this process."""
    monkeypatch.setenv("LAZY_CACHE_DIR", str(tmp_path))
    cache.folder.cache_clear()
    yield tmp_path / "kernels"
    cache.folder.cache_clear()
