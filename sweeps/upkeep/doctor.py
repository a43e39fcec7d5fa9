"""Diagnosis of this machine, the store and the sweep in it, for `sweep doctor`.

The checks are in `machine` and `diagnostics`; one that cannot be made is itself a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sweeps.errors import EnvironmentFault, SweepNotFound
from sweeps.experiment import Experiment
from sweeps.export.table import counts
from sweeps.upkeep import diagnostics, machine
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.repair import Finding, Level


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Facts by name, in the order to show them, and findings, problems first."""

    facts: Mapping[str, str]
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Return whether nothing is wrong; notes do not count."""
        return all(finding.level == "note" for finding in self.findings)


def examine(open_sweep: Callable[[], Experiment], *, expected: bool, checksums: bool = False) -> Diagnosis:
    """Run all checks.

    Args:
        expected: whether the user named a sweep; otherwise a missing sweep is only a note.
        checksums: whether to read every stored checkpoint, gigabytes, to compare its checksums.
    """
    facts, findings = machine.examine()
    try:
        experiment = open_sweep()
        store_facts, store_findings = machine.examine_store(experiment.store)
        facts |= store_facts
        findings += store_findings
        found = survey(experiment.store, checksums=checksums)
        by_status = [f"{count} {status}" for status, count in counts(found.trials).items() if count]
        facts["trials"] = ", ".join(by_status) or "none"
        findings += diagnostics.examine(experiment, found)
    except SweepNotFound as error:
        findings.append(_error_finding("sweep", error, level="problem" if expected else "note"))
    except EnvironmentFault as error:
        findings.append(_error_finding("store", error))
    findings.sort(key=lambda finding: finding.level == "note")
    return Diagnosis(facts=facts, findings=tuple(findings))


def _error_finding(kind: str, error: Exception, *, level: Level = "problem") -> Finding:
    """Return one of our errors as a finding; its message says where, what, and what to do."""
    return Finding(kind=kind, level=level, what=str(error), where=kind)
