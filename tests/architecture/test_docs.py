"""The docs name things that exist, and their examples run."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

from triplee.cli import app
from triplee.recipes import RECIPES

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
EXAMPLES = [
    pytest.param(example, id=f"{page.stem} {number}")
    for page in PAGES
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), 1)
    if "checked = " in example  # the others need a run or a file of the reader's
]


def test_paper_to_code_names_existing_symbols() -> None:
    names = re.findall(r"`(triplee[\w.]*):(\w+)`", (ROOT / "docs" / "paper-to-code.md").read_text())
    assert len(names) > 15
    for module, symbol in names:
        assert hasattr(import_module(module), symbol), f"{module}:{symbol}"


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example: str) -> None:
    namespace: dict[str, object] = {}
    exec(compile(example, "example", "exec"), namespace)
    assert namespace["checked"] is True


def test_links_lead_somewhere() -> None:
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\((?!http)([^)#]+)", prose):
            assert (page.parent / link).exists(), f"{page.name} → {link}"


def test_commands_and_recipes_in_the_docs_exist() -> None:
    verbs = set(get_command(app).commands)  # type: ignore[attr-defined]
    for page in PAGES:
        text = page.read_text()
        # A verb stands in a code block or in backquotes; what is planned is written without them.
        assert set(re.findall(r"(?:^|`)triplee ([a-z]+)", text, re.MULTILINE)) <= verbs, page.name
        assert set(re.findall(r"--recipe ([\w-]+)", text)) <= set(RECIPES), page.name
