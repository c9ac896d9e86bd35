"""The code of pages that needs Ray runs."""

import pytest
from written import PAGES, blocks, name_of, run

PARTS = [page for page in PAGES if any(block.mark == "ray" for block in blocks(page))]


@pytest.mark.parametrize("page", PARTS, ids=name_of)
def test_the_code_of_a_page_for_ray_runs_block_after_block(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AIR_LOCAL_CACHE_DIR", str(tmp_path))
    namespace: dict = {}
    for block in blocks(page):
        if block.mark == "ray":
            run(block, namespace)
