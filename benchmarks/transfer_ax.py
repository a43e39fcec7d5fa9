"""Ax's own transfer learning (`ax.adapter.transfer_learning`, Ax 1.3), as a peer for `benchmarks.transfer`.

A multi-task Gaussian process over the source's results and the target's proposes each trial after the first
ones, or a Gaussian process over the target's alone where its cross-validated rank correlation is higher: the
specifications that Ax's `transfer_learning_generator_specs_constructor` gives, in a generation strategy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.pipelines import FIRST, METRIC, SECOND
from benchmarks.samplers import ax_parameter, safe, unsafe
from sweeps.search.determinism import one_thread, seeded, silence, stable_seed
from sweeps.space.definition import Source, Value

FIRST_TRIALS = 3
"""The middle and Sobol points: with fewer results there is no rank correlation to compare by."""


def search(source: Source, seed: int, trials: int, run: Callable[[dict[str, Value]], float | None]) -> None:
    """Run a sweep that begins from a source.

    Args:
        run: returns a trial's loss, or None to end the sweep without it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ax.adapter.registry import Generators
        from ax.adapter.transfer_learning.adapter import transfer_learning_generator_specs_constructor
        from ax.core.auxiliary import AuxiliaryExperimentPurpose
        from ax.core.auxiliary_source import AuxiliarySource
        from ax.generation_strategy.center_generation_node import CenterGenerationNode
        from ax.generation_strategy.generation_node import GenerationNode
        from ax.generation_strategy.generation_strategy import GenerationStrategy
        from ax.generation_strategy.generator_spec import GeneratorSpec
        from ax.generation_strategy.transition_criterion import MinTrials

        specs, selector = transfer_learning_generator_specs_constructor()
        first = GenerationNode(
            name="sobol",
            generator_specs=[GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": seed})],
            transition_criteria=[
                MinTrials(threshold=FIRST_TRIALS, transition_to="transfer", use_all_trials_in_exp=True)
            ],
        )
        strategy = GenerationStrategy(
            name="transfer",
            nodes=[
                CenterGenerationNode(next_node_name="sobol"),
                first,
                GenerationNode(name="transfer", generator_specs=specs, best_model_selector=selector),
            ],
        )
        with one_thread(), silence("ax"):
            earlier = _experiment("source")
            for result in source.results:
                _complete(earlier, result.parameters, result.value)
            experiment = _experiment("target")
            experiment.add_auxiliary_experiment(
                purpose=AuxiliaryExperimentPurpose.TRANSFERABLE_EXPERIMENT,
                auxiliary_experiment=AuxiliarySource(experiment=earlier),
            )
            for index in range(trials):
                with seeded(stable_seed(seed, index, "ax")):
                    (((proposed,),),) = (strategy.gen(experiment=experiment, n=1),)
                parameters = unsafe(proposed.arms[0].parameters)
                if (loss := run(parameters)) is None:
                    return
                _complete(experiment, parameters, loss)


def _experiment(name: str) -> Any:
    from ax.api.utils.instantiation.from_string import optimization_config_from_string
    from ax.api.utils.instantiation.from_struct import experiment_from_struct
    from ax.api.utils.structs import ExperimentStruct
    from ax.core.map_metric import MapMetric

    parameters = [ax_parameter(each) for each in FIRST + SECOND]
    experiment = experiment_from_struct(ExperimentStruct(parameters, [], name, None, None, None))
    experiment.add_tracking_metric(MapMetric(name=METRIC, lower_is_better=True))
    experiment.optimization_config = optimization_config_from_string(f"-{METRIC}", [])
    return experiment


def _complete(experiment: Any, parameters: Mapping[str, Value], loss: float) -> None:
    """Attach a completed trial with its result."""
    from ax.core.arm import Arm
    from ax.core.data import Data, DataRow
    from ax.core.generator_run import GeneratorRun

    arm = Arm(parameters={safe(name): value for name, value in parameters.items()})
    trial = experiment.new_trial(GeneratorRun([arm])).mark_running(no_runner_required=True)
    row = DataRow(trial.index, trial.arm.name, METRIC, METRIC, loss, math.nan)
    experiment.attach_data(Data(data_rows=[row]))
    trial.mark_completed()
