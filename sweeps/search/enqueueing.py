"""Trials of a user's own, stored as pending: workers run them before candidates of the search.

`Experiment.enqueue` calls it. They are written while `ask.lock` is held, so that workers may go on meanwhile,
and the run cap holds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from sweeps.errors import AlreadyExists, InputError, StoreUnavailable
from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.space.fidelity import is_at_target
from sweeps.storage.base import Store
from sweeps.text.counted import counted
from sweeps.trials import budget
from sweeps.trials.lease import PATIENCE_S, ObjectLease
from sweeps.trials.record import Trial
from sweeps.trials.repository import Records, free_index

log = logging.getLogger(__name__)


def enqueue(
    store: Store,
    space: Space,
    records: Records,
    lease: ObjectLease,
    configurations: Sequence[Mapping[str, Value]],
    *,
    worker: str,
    skip_if_exists: bool,
) -> list[Trial]:
    """Store the configurations as pending trials, all or none of them, and return their trials in order.

    Args:
        configurations: the active parameters of each, checked against the space.
        skip_if_exists: take the trial that has the same parameters already, if there is one.

    Raises:
        InputError: the run cap leaves no room for them.
        StoreUnavailable: others held the lease all the time; or the lease was lost after some of them were
            stored, and the run cap leaves no room for the rest.
    """
    with lease.hold_in_turn(worker, patience_s=PATIENCE_S, then="enqueue again when they are done"):
        domain = Domain(space)
        keys = [domain.identity(configuration) for configuration in configurations]
        counts = [is_at_target(space, configuration) for configuration in configurations]
        present = records.all()
        known = {domain.identity(record.parameters): record for record in present} if skip_if_exists else {}
        found: list[Trial] = []

        def require_room() -> None:
            rest = zip(keys[len(found) :], counts[len(found) :], strict=True)
            new = [key for key, is_counted in rest if is_counted and key not in known]
            wanted = len(dict.fromkeys(new)) if skip_if_exists else len(new)
            own = budget.run_cap_count(space, present)
            if wanted and space.run_cap is not None and own + wanted > space.run_cap:
                problem = (
                    f"{store.url}: {counted(wanted, 'more trial')} would be {own + wanted}, and run_cap is "
                    f"{space.run_cap}; enqueue fewer, or raise the cap with `sweep extend`"
                )
                if not found:
                    raise InputError(problem)
                raise StoreUnavailable(f"{problem}; {len(found)} of {len(keys)} are enqueued already")

        require_room()
        for key, configuration in zip(keys, configurations, strict=True):
            while key not in known or not skip_if_exists:
                fresh = Trial(
                    trial=free_index(store, present),
                    status="pending",
                    parameters=dict(configuration),
                    generator="enqueued",
                    created=store.now(),
                )
                try:
                    known[key] = records.create(fresh)
                    present.append(known[key])
                    break
                except AlreadyExists:
                    log.info("trial %d was created by a worker that took the lease over", fresh.trial)
                    present = records.all()
                    if skip_if_exists:
                        known |= {domain.identity(record.parameters): record for record in present}
                    require_room()
            found.append(known[key])
        return found
