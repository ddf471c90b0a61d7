"""What the tests of downloads look through: an observer that keeps what it was told."""


class Watcher:
    """An observer that keeps what it was told."""

    def __init__(self) -> None:
        self.bars: list[tuple[str, int | None, int]] = []
        self.notes: list[str] = []

    def start(self, what: str, total: int | None) -> None:
        self.bars.append((what, total, 0))

    def advance(self, num: int) -> None:
        what, total, done = self.bars[-1]
        self.bars[-1] = (what, total, done + num)

    def note(self, line: str) -> None:
        assert "\n" not in line
        self.notes.append(line)
