"""Write docs/figures/board-*.png: the board in Chromium, with the curves of the benchmarks as its runs. It needs
Playwright, and trains C51 for half a minute."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "tests" / "board")]

from boards import served  # noqa: E402

import etude  # noqa: E402

SHOWN = ("dqn", "ppo", "qr_dqn", "rainbow")
PICTURES = {"light": (1280, 800), "dark": (1280, 1000), "phone": (390, 844)}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for algorithm in SHOWN:
            (path,) = (ROOT / "benchmarks" / "curves" / algorithm).glob("CartPole-v1_*.csv")
            for seed, rows in by_seed(path).items():
                write_run(folder / f"{algorithm}-{seed}", algorithm, seed, rows)
        with etude.Run("c51", "CartPole-v1", seed=1, run_dir=folder / "c51") as run:
            run.train(15_000)
        with served(folder) as port, sync_playwright() as playwright:
            options = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
            for name, (width, height) in PICTURES.items():
                scheme = "dark" if name == "dark" else "light"
                with chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme) as context:
                    page = context.new_page()
                    page.goto(f"http://127.0.0.1:{port}/")
                    show(page, name)
                    write(page, ROOT / "docs" / "figures" / f"board-{name}.png")


def by_seed(path: Path) -> dict[int, list[dict[str, float]]]:
    found: dict[int, list[dict[str, float]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            record = {"step": int(row["step"]), "rollout/ep_rew_mean": float(row["return"])}
            found.setdefault(int(row["seed"]), []).append(record | {"rollout/episodes": int(row["episodes"])})
    return found


def write_run(folder: Path, algorithm: str, seed: int, rows: list[dict[str, float]]) -> None:
    folder.mkdir()
    last = rows[-1]["step"]
    about = {"algorithm": algorithm, "environment": "CartPole-v1", "setup": {"seed": seed}, "total": last}
    records = [{"step": 0, "started": about}, *rows, {"step": last, "finished": "steps"}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def show(page: Page, name: str) -> None:
    """Bring the page into the state that is pictured."""
    page.locator("#panels canvas").wait_for()
    if name == "dark":
        page.fill("#filter", "c51")
        page.locator("td.name", has_text="c51").click()
        page.get_by_role("button", name="First observation").click()
        page.locator(".bars").first.wait_for(timeout=120_000)
        page.get_by_role("button", name="Record a video").click()
        page.locator("#video video, #video img").wait_for(timeout=120_000)
        page.locator("#filmed").evaluate("element => element.textContent = ''")  # a temporary folder
    if name == "phone":
        page.fill("#filter", "rainbow")
    page.locator("h1").click()
    page.wait_for_timeout(3_000)


def write(page: Page, path: Path) -> None:
    page.screenshot(path=path)
    with Image.open(path) as picture:
        picture.convert("RGB").save(path, optimize=True)


if __name__ == "__main__":
    main()
