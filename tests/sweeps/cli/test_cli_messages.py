"""What wrong command lines are answered with: a section of the page of messages, and one line each with status 2."""

from __future__ import annotations

import shlex
from pathlib import Path

import golden_messages

WRONG = """
no-such-command
status --no-such-option
status --storage s3://bucket/x
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
abandon 0
abandon 99
tell 0 --metric loss=nan
tell 0 --metric loss
tell 0 --metric =3
tell 0
enqueue
enqueue y=1
enqueue x=2
enqueue --from none.yaml
extend
extend --run-cap more
extend --run-cap 0
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
confirm --budget 0
confirm --budget 5 --top 3
confirm --objective accuracy
confirm --max effective_steps
confirm --max effective_steps=few
export t.txt
import none.csv
snapshots --delete xyz!
snapshots --delete 0000
snapshots --delete 0000 --prune
launch nomad
launch local --devices 0,1 --workers 3
launch local --devices 0,0
launch local --devices tpu:0,x
launch local --spot
launch local --accelerator A100:2
launch local --env 'A B=1'
launch local --env A
launch local --secret NOT_SET_HERE
launch local --option 'a=[1'
pool scale some
pool scale 3
show 99
delete
"""


def test_wrong_command_lines_are_answered_as_the_page_says(
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
    for line in WRONG.split("\n")[1:-1]:
        ran = sweep(*shlex.split(line))
        assert ran.status == 2, line
        assert ran.err.startswith("sweep: "), line
        answers.append((f"`sweep {line}`", ran.err))
    golden_messages.compare("Wrong command lines", answers)
