"""The code of pages that needs Ray runs."""

import pytest
from written import PAGES, blocks, name_of, run

pytestmark = pytest.mark.usefixtures("local_ray")

LONG = "tuning.md"  # starts several actors
PARTS = [
    pytest.param(page, marks=[pytest.mark.long] if page.name == LONG else [], id=name_of(page))
    for page in PAGES
    if any(block.mark == "ray" for block in blocks(page))
]


@pytest.mark.parametrize("page", PARTS)
def test_the_code_of_a_page_for_ray_runs_block_after_block(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # results of Tune go to ~/ray_results
    namespace: dict = {}
    for block in blocks(page):
        if block.mark == "ray":
            run(block, namespace, request.config.getoption("--whole"))
