"""The shape of the house: imports point one way, files stay small, names say something."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "triplee"
FILES = sorted(SOURCE.rglob("*.py"), key=lambda path: (len(path.parts), path))  # the package itself comes first

# A room may import from rooms before it, never from one behind it.
ORDER = (
    "settings recipes seeding runfolder data plan augment nets engine export results sweep demo progress cli".split()  # noqa: SIM905
)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def imports_of(path: Path) -> set[str]:
    """Modules of ours that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "triplee":
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "triplee"}
    return found


@pytest.mark.parametrize(
    "path", [f for f in FILES if f != SOURCE / "__init__.py"], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in ORDER, f"{path} is in no known room"
    for module in imports_of(path) - {"triplee"}:  # the package itself holds only the version
        assert ORDER.index(room_of(module)) <= ORDER.index(own), f"{path} imports {module}"


def test_augmentation_knows_neither_data_nor_members() -> None:
    for path in (SOURCE / "augment").glob("*.py"):
        assert {room_of(m) for m in imports_of(path)} <= {"augment", "settings"}, path


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_stay_small_and_say_what_they_are(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    assert path.stem not in {"utils", "misc", "common", "helpers", "v2"}
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring and docstring.count("\n") <= 5
