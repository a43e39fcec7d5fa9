"""`sweep doctor`: everything that is wrong with this machine, with the store and with the sweep in it.

The parts are in `machine`, `access` and `ailments`; a part that cannot be looked at is itself a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sweeps.errors import EnvironmentFault, SweepNotFound
from sweeps.experiment import Experiment
from sweeps.export.table import counts
from sweeps.upkeep import access, diagnostics, machine
from sweeps.upkeep.finding import Finding, Level
from sweeps.upkeep.inventory import survey


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Facts by name, in the order to be shown, and findings, problems first."""

    facts: Mapping[str, str]
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong; notes do not count."""
        return all(finding.level == "note" for finding in self.findings)


def examine(open_sweep: Callable[[], Experiment], *, expected: bool) -> Diagnosis:
    """Look at everything.

    Args:
        open_sweep: opens the sweep that is meant.
        expected: whether somebody named a sweep; without one, a missing sweep is only worth a note.
    """
    facts, findings = machine.examine()
    try:
        experiment = open_sweep()
        store_facts, store_findings = access.examine(experiment.store)
        facts |= store_facts
        findings += store_findings
        found = survey(experiment.store)
        told = [f"{count} {status}" for status, count in counts(found.trials()).items() if count]
        facts["trials"] = ", ".join(told) or "none"
        findings += diagnostics.examine(found, experiment.space, experiment.store.location)
    except SweepNotFound as error:
        findings.append(_about("sweep", error, level="problem" if expected else "note"))
    except EnvironmentFault as error:
        findings.append(_about("store", error))
    findings.sort(key=lambda finding: finding.level == "note")
    return Diagnosis(facts=facts, findings=tuple(findings))


def _about(kind: str, error: Exception, *, level: Level = "problem") -> Finding:
    """An error of ours as a finding: its message says where, what, and what to do."""
    return Finding(kind=kind, level=level, what=str(error), where=kind)
