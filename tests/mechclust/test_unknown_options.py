"""Options that a command does not have are answered with the nearest it has."""

import pytest

from mechclust.cli import main


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (
            ["clusters", "model", "--prompts", "p.jsonl", "--nperm", "9"],
            "no option '--nperm'; did you mean '--n-permutations'?",
        ),
        (["check", "model", "--sead", "3"], "no option '--sead'; did you mean '--seed'?"),
    ],
)
def test_the_nearest_option_is_named(argv, meant, capsys):
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert f"mechclust: {meant}" in capsys.readouterr().err
