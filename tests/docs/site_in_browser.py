"""The built site as readers see it, opened from its folder in Chromium: `make docs-check`.

Every page at the width of a desktop and of a phone, every link, and what search finds. Not a part of `make test`.
"""

from __future__ import annotations

import functools
import html
import re
from urllib.parse import unquote

import pytest
from chromium import WIDTHS, chromium
from written import ROOT

SITE = ROOT / "build" / "site"
PAGES = sorted(path for path in SITE.rglob("*.html") if path.name != "404.html")
each_width = pytest.mark.parametrize("width", WIDTHS)
FAULTS = """() => {
  const texts = found => [...found].map(each => each.textContent.trim().slice(0, 60));
  const all = selector => [...document.querySelectorAll('article ' + selector)];
  const broken = code => !/\\s/.test(code.textContent) && code.getClientRects().length > 1;
  return {
    page: document.documentElement.scrollWidth > window.innerWidth ? ['wider than the window'] : [],
    code: texts(all('pre > code').filter(code => code.scrollWidth > code.clientWidth)),
    names: texts(all('table code').filter(broken)),
    captions: all('img').filter(img => !img.closest('figure')?.querySelector('figcaption')).map(img => img.src),
    pictures: all('img').filter(img => img.complete && !img.naturalWidth).map(img => img.src),
  };
}"""
FIRST_FOUND = {
    "multi-agent": "multi-agent.html",
    "custom environment": "environments.html",
    "load a model": "checkpoints.html",
    "pandas": "offline.html",
    "tensorboard": "getting-started.html",
    "resume": "checkpoints.html",
    "hyperparameters": "hyperparameters.html",
    "does not learn": "does-not-learn.html",
    "curriculum": "curricula.html",
    "ppo": "algorithms/ppo.html",
}


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def faults_of(browser):
    """What is wrong on the pages at a width, by kind."""

    @functools.cache
    def measured(width):
        found: dict[str, list[tuple[str, str]]] = {}
        with browser.new_context(viewport={"width": WIDTHS[width], "height": 900}) as context:
            tab = context.new_page()
            for page in PAGES:
                tab.goto(page.as_uri())
                for kind, faults in tab.evaluate(FAULTS).items():
                    found.setdefault(kind, []).extend((str(page.relative_to(SITE)), fault) for fault in faults)
        return found

    return measured


@each_width
@pytest.mark.parametrize("kind", ["page", "code", "names", "captions", "pictures"])
def test_no_page_overflows_breaks_a_name_or_lacks_a_caption(faults_of, width, kind):
    assert faults_of(width)[kind] == []


def test_the_site_asks_no_server_for_anything(browser):
    asked = []
    tab = browser.new_page()
    tab.on("request", lambda request: asked.append(request.url))
    for name in ("index.html", "getting-started.html", "gallery.html"):
        tab.goto((SITE / name).as_uri())
        tab.wait_for_load_state("networkidle")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize("words", FIRST_FOUND)
def test_search_finds_the_page_first_without_a_server(browser, words):
    tab = browser.new_page()
    tab.goto((SITE / "licences.html").as_uri())
    tab.locator(".md-search__input").fill(words)
    first = tab.locator(".md-search-result__link").first
    assert first.get_attribute("href", timeout=20_000).partition("?")[0].endswith("/" + FIRST_FOUND[words])


def test_a_prompt_is_shown_and_not_copied(browser):
    tab = browser.new_page()
    tab.goto((SITE / "getting-started.html").as_uri())
    code = tab.locator("code:has(.gp)").first
    assert code.inner_text().startswith("$ etude train")
    code.evaluate("code => code.setAttribute('data-md-copying', '')")  # as the button does that copies
    assert code.inner_text().startswith("etude train")


def test_every_link_leads_to_a_file_and_a_place_that_exist():
    @functools.cache
    def places(path):
        return set(re.findall(r'\b(?:id|name)="([^"]*)"', path.read_text(encoding="utf-8")))

    dead = []
    for page in PAGES:
        for link in re.findall(r'<[a-z][^<>]*\b(?:href|src)="([^"]*)"', page.read_text(encoding="utf-8")):
            target, _, place = unquote(html.unescape(link)).partition("#")
            if re.match(r"[a-z]+:|//", target):
                continue
            leads_to = (page.parent / target).resolve() if target else page
            leads_to = leads_to / "index.html" if leads_to.is_dir() else leads_to
            if not leads_to.is_file() or (place and leads_to.suffix == ".html" and place not in places(leads_to)):
                dead.append((str(page.relative_to(SITE)), link))
    assert PAGES and dead == []
