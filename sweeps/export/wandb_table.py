"""Export of the trials as a table in a run of Weights & Biases: `sweep export --wandb PROJECT`.

The run belongs to the sweep's group, like the runs of its trials (`wandb.mode` of the trainer). wandb's own
environment variables apply: WANDB_MODE=offline writes a folder that `wandb sync` uploads later.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sweeps.errors import InputError, StoreUnavailable
from sweeps.export.table import columns, flat_rows
from sweeps.space.definition import Space
from sweeps.trials.record import Trial


def log(project: str, space: Space, url: str, records: Sequence[Trial]) -> str:
    """Log the table.

    Returns:
        The run's URL, or the folder of an offline run.

    Raises:
        InputError: there is no trial yet, or the project's name is empty.
        StoreUnavailable: wandb cannot be reached, or nobody is logged in.
    """
    if not project.strip():
        raise InputError("--wandb is empty; give the project's name")
    rows = flat_rows(space, records)
    if not rows:
        raise InputError("there are no trials to log yet; start some with `sweep worker`")
    import wandb

    names = columns(rows)
    mode: Any = os.environ.get("WANDB_MODE")
    try:
        run = wandb.init(
            project=project,
            name=f"{space.name}-trials",
            group=space.name,
            job_type="trials",
            config={"url": url, "objectives": {o.metric: o.goal for o in space.objectives}},
            settings=wandb.Settings(silent=True),
            # wandb reads the variables once per process, at its first use; their present values count.
            mode=mode if mode in ("online", "offline", "disabled", "shared") else None,
            dir=os.environ.get("WANDB_DIR"),
        )
        # Cells of other types become text, missing ones stay empty.
        data = [
            [x if isinstance(x, bool | int | float | str | None) else str(x) for x in map(row.get, names)]
            for row in rows
        ]
        run.log({"trials": wandb.Table(columns=names, data=data, allow_mixed_types=True)})
        run.finish()
    except wandb.Error as error:
        raise StoreUnavailable(f"wandb: {' '.join(str(error).split())}") from None
    return str(run.url or run.dir)
