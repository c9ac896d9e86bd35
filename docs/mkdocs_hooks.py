"""Hooks of MkDocs: the pages at the root of the repository become pages of the site, commands get a prompt, pictures a
caption, and search finds pages by words that they do not say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
AT_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LICENCE = "LICENSE"
SYNONYMS = {  # further words to find a page by
    "getting-started.md": "quickstart tutorial install tensorboard wandb",
    "which-algorithm.md": "choose compare",
    "does-not-learn.md": "debug troubleshooting diverge nan stuck",
    "environments.md": "custom environment gymnasium wrapper",
    "multi-agent.md": "multi-agent multiagent marl multi agent pettingzoo self-play",
    "offline.md": "pandas polars csv dataset d4rl minari demonstrations",
    "checkpoints.md": "load model restore resume continue",
    "metrics.md": "logging",
    "scaling.md": "gpu distributed multi-gpu cluster",
    "tuning.md": "hyperparameter optimisation optimization search",
    "rewriting.md": "curiosity intrinsic reward shaping exploration",
}
LOW = ("changelog", "contributing", "design", "benchmarks", "reliability", "coming-from", "reference/", "gallery")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    for source, page in AT_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked_from_root(text)))
    files.append(File.generated(config, LICENCE, abs_src_path=str(ROOT / LICENCE)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links out of docs/ to the pages above, give code blocks that need one engine its name as their title, and
    commands a prompt."""
    path = page.file.src_uri
    page.meta["tags"] = SYNONYMS.get(path, "").split()
    page.meta["search"] = {"boost": 0.5 if path.startswith(LOW) else 1}
    for source, target in AT_ROOT.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{source}", rf"](\1{target}", markdown)
    markdown = re.sub(r"^```(\w+) (\w+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)
    return re.sub(r"(?<=^```console\n).*?(?=^```$)", _prompted, markdown, flags=re.MULTILINE | re.DOTALL)


def _prompted(commands: re.Match[str]) -> str:
    """Commands with a prompt, but for lines that continue the one before."""
    return re.sub(r"(?<!\\\n)^(?=\S)", "$ ", commands[0], flags=re.MULTILINE)


def on_page_content(html: str, **_: Any) -> str:
    """Pictures with captions, in groups; code with spaces in tables may break there."""
    picture = r"<p>(?:<a [^>]*>)?<img [^>]*>(?:</a>)?</p>\s*"
    html = re.sub(f"(?:{picture})+", lambda found: f'<div class="figures">{found[0]}</div>\n', html)
    html = re.sub(
        r'<p>((?:<a [^>]*>)?<img alt="([^"]*)")([^>]*>(?:</a>)?)</p>',
        r'<figure>\1 loading="lazy"\3<figcaption>\2</figcaption></figure>',
        html,
    )
    return re.sub(r"<code>(?=[^<]* )", '<code class="phrase">', html)


def linked_from_root(text: str) -> str:
    """A page of the root with its links as they are from within docs/."""
    text = re.sub(r"\]\(docs/", "](", text)
    for source, target in AT_ROOT.items():
        text = text.replace(f"]({source}", f"]({target}")
    return text
