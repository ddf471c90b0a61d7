"""What people see of work that takes a while."""

import pytest

from triplee.cli import printing


def test_work_that_takes_long_says_so_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(printing.time, "monotonic", lambda: now[0])
    with printing.image_bar("decoding images") as tell:
        for done, seconds in ((1, 1.0), (2_000, 31.0), (2_001, 32.0), (9_000, 62.0)):
            now[0] = seconds
            tell(done, 10_000)
    said = capsys.readouterr()
    assert said.err == "decoding images: 2,000 of 10,000\ndecoding images: 9,000 of 10,000\n"
    assert said.out == ""
