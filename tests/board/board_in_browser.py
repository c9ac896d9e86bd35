"""The board as people see it, in Chromium: `make docs-check`. Not a part of `make test`."""

from __future__ import annotations

import json

import pytest
from boards import served, write_run
from chromium import WIDTHS, chromium

import etude

EVIL = "<img src=x onerror=document.title=1>"


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with etude.Run("dqn", "CartPole-v1", seed=4, engine="torch", run_dir=folder / "trained") as run:
        run.train(300, evaluate_every=150)
    for seed in range(3):
        write_run(folder / f"seed-{seed}", seed, environment=EVIL)
    write_run(folder / EVIL.replace("/", ""), learning_rate=0.5, algorithm=EVIL)
    write_run(folder / "growing", finished=None)
    (folder / "damaged").mkdir()
    (folder / "damaged" / "metrics.jsonl").write_bytes(b"\x00\xff\n")
    return folder


@pytest.fixture(params=WIDTHS)
def tab(browser, folder, request):
    """A page of the board, and what it has complained of."""
    with (
        served(folder) as port,
        browser.new_context(viewport={"width": WIDTHS[request.param], "height": 900}) as context,
    ):
        page, faults = context.new_page(), []
        page.on("console", lambda message: "status of 422" in message.text or faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        address = f"http://127.0.0.1:{port}/"
        page.on("request", lambda asked: asked.url.startswith(address) or faults.append(asked.url))
        page.goto(address)
        page.wait_for_selector("#table tbody tr")
        yield page
        assert faults == []
        assert page.title() == "etude board", "a name was taken for HTML"


def names(tab):
    return tab.locator("#table tbody td.name").all_inner_texts()


def test_the_table_is_sorted_filtered_and_followed(tab, folder):
    assert len(names(tab)) == 7 and names(tab) == sorted(names(tab))
    assert tab.locator("tr", has_text="damaged").locator("td.state").inner_text() == "unreadable"
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.get_by_role("button", name="step", exact=True).click()
    tab.get_by_role("button", name="step", exact=True).click()
    assert names(tab)[0] == "trained" and tab.locator("[aria-sort=descending]").inner_text() == "step"
    tab.fill("#filter", "growing")
    assert names(tab) == ["growing"]
    with (folder / "growing" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 77, "rollout/ep_rew_mean": 5.0, "rollout/episodes": 1}) + "\n")
    tab.locator("td", has_text="77").wait_for(timeout=10_000)


def test_seeds_are_a_line_with_titles_and_units(tab):
    tab.fill("#filter", "seed-")
    tab.get_by_text("ppo, 3 seeds").wait_for()
    tab.locator("#panels figure:nth-child(2)").wait_for(state="detached")  # of the other environments
    chart = tab.locator("#panels [role=img]")
    assert (
        chart.get_attribute("aria-label") == f"ppo on {EVIL}: smoothed training return over environment steps; 1 lines"
    )
    tab.select_option("#across", "time")
    tab.locator("[aria-label*='seconds of training']").wait_for()
    tab.select_option("#metric", "time/fps")
    tab.locator("[aria-label*='time/fps']").wait_for()


def test_the_keyboard_is_enough(tab):
    tab.fill("#filter", "seed-")
    tab.get_by_text("ppo, 3 seeds").wait_for()
    tab.locator("#table tbody tr").first.focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press(" ")
    tab.keyboard.press("End")
    tab.keyboard.press(" ")
    assert tab.locator("tr[aria-selected=true] td.name").all_inner_texts() == ["seed-1", "seed-2"]
    tab.get_by_text("ppo, 2 seeds").wait_for()
    assert tab.locator("#differing tbody th").all_inner_texts() == ["seed"]
    tab.keyboard.press("Enter")
    tab.locator("#run-title", has_text="seed-2").wait_for()
    assert tab.locator("#warnings li").inner_text() == "step 10: a <b>warning</b>"


def test_a_trained_run_acts_and_is_filmed(tab):
    tab.locator("td.name", has_text="trained").click()
    tab.get_by_role("button", name="First observation of an episode").click()
    tab.get_by_text("action values").wait_for(timeout=60_000)
    assert len(json.loads(tab.input_value("#observation"))) == 4
    tab.fill("#observation", "[1, 2]")
    tab.get_by_role("button", name="Act", exact=True).click()
    tab.locator("#acted .fault").wait_for()
    tab.get_by_role("button", name="Record a video").click()
    tab.locator("#filmed", has_text="frames").wait_for(timeout=60_000)
    tab.locator("#video video, #video img").wait_for()


def test_colours_follow_the_system(browser, folder):
    with served(folder) as port:
        for scheme, dark in (("light", False), ("dark", True)):
            with browser.new_context(color_scheme=scheme) as context:
                page = context.new_page()
                page.goto(f"http://127.0.0.1:{port}/")
                ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert (sum(map(int, ground[4:-1].split(","))) < 300) == dark
