"""Section `fidelity:` of a search space file, which refers to parameters, stages and the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sweeps.errors import SpaceError
from sweeps.space import space_checks
from sweeps.space.definition import Choice, Fidelity, Space, Value, is_number, same_value
from sweeps.space.fidelity import Ladder, target_values
from sweeps.space.sections import FidelitySection, read
from sweeps.space.yaml_cursor import Cursor, nearest, yaml_text


def with_fidelity(section: Cursor, space: Space, file: Mapping[str, Cursor]) -> Space:
    """Return the space with its fidelities, and with a first trial at the target if it has one.

    Args:
        space: all that the other sections say.
        file: the file's sections.

    Raises:
        SpaceError: the section is wrong, or the search cannot use it.
    """
    _check_search(section, space)
    found: list[Fidelity] = []
    for key, body in section.pairs():
        found.append(_fidelity(key, body, space, found))
    if not found:
        raise section.refusal("names no parameter; take it out")
    space = replace(space, fidelity=tuple(found))
    if space.program.kind != "trainer":  # whose stages, and so their costs, are known only later
        try:
            Ladder(space)
        except SpaceError as error:
            raise section.refusal(error.problem) from None
    if space.baseline is None:
        return space
    targets = target_values(space)
    written = {key.text(): value for key, value in file["baseline"].pairs()} if "baseline" in file else {}
    for name, target in targets.items():
        if name in written and not same_value(space.baseline[name], target):
            raise written[name].refusal(f"the first trial is one at the target; write {yaml_text(target)}")
    return replace(space, baseline={**space.baseline, **targets})


def _check_search(section: Cursor, space: Space) -> None:
    """Refuse fidelities in a sweep whose search has no use for them."""
    if section.kind() != "a mapping":
        raise section.refusal("write {model.width: {cost: [0.3, 1, 3.3]}}, with its values under parameters:")
    if space.search.method != "bayes":
        raise section.refusal(f"has no effect with method: {space.search.method}; take it out")
    if space.early_terminate is not None:
        raise section.refusal(
            "does not go with early_terminate, which would compare trials of different sizes; keep one"
        )
    if space.transfer:
        raise section.refusal("does not go with transfer, as both say where the target begins; keep one")


def _fidelity(key: Cursor, body: Cursor, space: Space, earlier: list[Fidelity]) -> Fidelity:
    name, written = key.text(), read(body, FidelitySection)
    names = [each.name for each in space.parameters]
    if name not in names:
        raise key.refusal(f"not among the parameters; {nearest(name, names)}")
    values = _values(key, name, space)
    if "target" in written.model_fields_set:
        target = space_checks.inside(body.at("target"), space.parameter(name))
        if not same_value(target, values[-1]):
            raise body.at("target").refusal(
                f"the target is the last of the values, {yaml_text(values[-1])}; take larger ones out there"
            )
    if written.cost and len(written.cost) != len(values):
        raise body.at("cost").refusal(f"must have {len(values)} numbers, one for each value of `{name}`")
    if earlier and len(values) != (count := len(_values(key, earlier[0].parameter, space))):
        raise key.refusal(
            f"has {len(values)} values, and `{earlier[0].parameter}` {count}: both go up together, so write "
            "as many"
        )
    return Fidelity(parameter=name, cost=written.cost)


def _values(key: Cursor, name: str, space: Space) -> tuple[Value, ...]:
    """Return the values of a parameter, the target last. Raises SpaceError: it has no levels."""
    parameter = space.parameter(name)
    if not isinstance(parameter, Choice):
        raise key.refusal("has no levels; give the parameter values: [...], the target last")
    numbers = [value for value in parameter.values if is_number(value)]
    if len(numbers) < len(parameter.values) and not parameter.ordered:
        raise key.refusal("has no order; give the parameter ordered: true, and values from cheap to dear")
    if sorted(numbers) != numbers:
        raise key.refusal("the parameter's values must ascend: the last is the target")
    if parameter.when or name in space.parents():
        raise key.refusal("the parameter must not depend on another, nor another on it; take when: out")
    return parameter.values
