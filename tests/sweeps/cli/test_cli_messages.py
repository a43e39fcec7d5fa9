"""Wrong command lines: one line each with status 2, which stands on the page of messages, and nothing is written."""

from __future__ import annotations

import shlex
from pathlib import Path

import golden_messages

WRONG = """
no-such-command
status --no-such-option
status --storage ftp://host/x
status --name ../x
status --name nothing
status --storage ./sweep-store/toy --name other
status --storage ''
status --name ''
status --storage file://relative/folder
status --spot
status --device abacus
init
init none.yaml
init misspelt.yaml
init reversed.yaml
init function.yaml
init cap.yaml
worker --max-trials 0
retry 0
retry 99
retry
retry --failed 1
retry 1 --reason lost
retry --reason lost
abandon 0
abandon 99
tell 0 --metric loss=nan
tell 0 --metric loss
tell 0 --metric =3
tell 0
tell 3 --metric n=3
tell 3 --metric loss=1 --metric loss=1
tell 3 --metric loss=1 --result x.json
tell 9 --metric loss=1
enqueue
enqueue y=1
enqueue x=2
enqueue x=1 --from own.yaml
enqueue --from none.yaml
extend
extend --run-cap more
extend --run-cap 0
extend --run-cap -3
extend --run-cap 1e3
extend --run-cap +0
extend --run-cap ++2
extend --budget usd=+2
extend --budget usd
extend --budget usd=nan
extend --budget usd=inf
extend --budget usd=1 --budget usd=2
extend --wall-hours -1
extend --budget wall_hours=1 --wall-hours 1
extend --until tomorrow
extend --budget gpu_hours=3
extend --expected-gain 0
extend --expected-gain little
extend --expected-gain 0.1
pareto --table t.csv --x cots --y loss
pareto --table none.csv --x a --y b
pareto --table t.csv
pareto --table t.csv --x cost --y loss --baseline nan
confirm --top 1
confirm --seeds 1
confirm --seeds many
confirm --budget 0
confirm --budget 5 --top 3
confirm --budget 5 --top 3 --seed-name s
confirm --seed-name 'a b'
confirm --seed-name x
confirm --again
confirm --storage nowhere
confirm --objective accuracy
confirm --max effective_steps
confirm --max effective_steps=few
confirm --max effective_steps=nan
confirm --max =3
confirm --max effective_steps=0 --seed-name s
plan
plan toy
plan toy --at many
plan toy --at 0
plan toy toy --at size=
plan toy toy --at mode=3
plan toy toy --at 3
plan toy toy --at 3 --size 1
plan toy toy --at 3 --size 1 --size 1
plan toy toy --at 3 --size one
plan toy toy --at 3 --speed nan
plan toy nothing --at 3
plan toy nowhere/toy --at 3
plan toy toy --at 3 --write none/plan.yaml
plan toy toy --at 3 --figure .
plan toy toy --at 3 --spot
export t.txt
import none.csv
snapshots --delete xyz!
snapshots --delete ''
snapshots --delete abc
snapshots --delete 0000
snapshots --delete 0000 --prune
launch nomad
launch local --devices 0,1 --workers 3
launch local --devices 0,0
launch local --devices 0,
launch local --devices tpu:0,x
launch local --spot
launch local --workers 0
launch local --accelerator A100:2
launch local --env 'A B=1'
launch local --env A
launch local --secret NOT_SET_HERE
launch local --option 'a=[1'
pool scale some
pool scale 3
pool scale 3 local
pool scale 3 slurm
show 99
copy sweep-store/toy
copy sweep-store there
copy nowhere there
copy sweep-store/toy sweep-store/toy
copy sweep-store/toy sweep-store/toy/runs
copy sweep-store/toy .
copy sweep-store/toy t.csv
copy sweep-store/toy gs://bucket
copy sweep-store/toy ftp://host/toy
delete
"""


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_they_change_nothing_and_are_answered_as_the_page_says(
    sweep, finished, space_file, tmp_path: Path
) -> None:
    text = space_file.read_text()
    for name, old, new in (
        ("misspelt", "name: toy", "nam: toy"),
        ("reversed", "min: 0.0, max: 1.0", "min: 1.0, max: 0.0"),
        ("function", "paraboloid", "parabloid"),
        ("cap", "run_cap: 5", "run_cap: .inf"),
    ):
        (tmp_path / f"{name}.yaml").write_text(text.replace(old, new))
    (tmp_path / "t.csv").write_text("cost,loss\n1,3\n")
    answers = []
    before = contents(tmp_path / "sweep-store")
    for line in WRONG.split("\n")[1:-1]:
        ran = sweep(*shlex.split(line))
        assert ran.status == 2, line
        assert ran.out == "", line
        assert ran.err.startswith("sweep: "), line
        assert ran.err.count("\n") == 1, line
        assert contents(tmp_path / "sweep-store") == before, line
        answers.append((f"`sweep {line}`", ran.err))
    golden_messages.compare("Wrong command lines", answers)


def test_printed_commands_quote_the_storage(sweep, space_file) -> None:
    sweep("init", str(space_file), "--storage", "my sweeps")
    for words in (("trials",), ("best",), ("extend", "--run-cap", "9")):
        ran = sweep(*words, "--storage", "my sweeps")
        assert "sweep worker --storage 'my sweeps/toy'" in ran.out + ran.err, words
