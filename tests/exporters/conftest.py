"""Give the exporters' tests a cache that they share."""

from __future__ import annotations

import pytest

from exporters.cache import Cache


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))
