"""The report of a finished run, called by `pipeline`, and its writing, called by `__main__`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from trainer import result
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.stage_snapshot import origin
from trainer.config import Config
from trainer.config.evaluation import hook_name
from trainer.config.run import step_weights
from trainer.cost.flops import usd
from trainer.data.encoder import Encoder
from trainer.data.inputs import Inputs
from trainer.errors import TrainerError
from trainer.evaluations import hooks
from trainer.evaluations.student import FinishedStudent, write_samples
from trainer.layout import HELD_OUT_FILE, MODEL_FOLDER, RESULT_FILE
from trainer.models import student_folder
from trainer.result import Metrics, Result, StageResult
from trainer.stages import distill, layerwise, pretrain, recover
from trainer.telemetry.run import Telemetry
from trainer.training.context import StageContext
from trainer.training.evaluation import HeldOutLoss, Measured, bits_per_byte
from trainer.training.loop import StageTrace


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run.

    Args:
        student: with lambda at 1.
        held_out: losses on the selection text.
        test: losses on the test text, if `eval.test` asked for them.
    """

    result: Result
    student: nn.Module
    tokenizer: Path
    held_out: Measured
    test: Measured | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """The numbers of a run, finished or under way.

    A stage that was taken from a snapshot counts as if it had been computed here.

    Args:
        context: device and checkpoints.
        traces: of the stages so far, by name, those without steps included.
        flops: operations of training in each of them.
        start: the held-out loss before Stage 2.
        model_parameters: of the student, without adapters.
        keys: of the ends of stages that runs can share.
    """

    config: Config
    inputs: Inputs
    context: StageContext
    traces: Mapping[str, StageTrace]
    flops: Mapping[str, float]
    start: HeldOutLoss
    keys: Mapping[str, str]
    model_parameters: int

    def stages(self) -> list[StageResult]:
        """Return the stages so far, those without steps included."""
        return [self._stage(name, trace) for name, trace in self.traces.items()]

    def of_alignment(self) -> dict[str, float | None]:
        """Return the metrics of a result that Stage 1.9 decides, by their names there."""
        name = layerwise.NAME
        trace, stage = self.traces[name], self._stage(name, self.traces[name])
        return {
            **_alignment(trace),
            "stage2_start_loss": self.start.mean,
            "effective_steps": stage.cost,
            "train_flops": float(self.flops[name]),
            "train_seconds": trace.seconds,
            "tokens": trace.tokens,
            "usd": stage.usd,
            "eval_seconds": trace.eval_seconds,
        }

    def metrics(
        self, held_out: Measured, test: Measured | None, unaveraged: float | None, frozen: float | None
    ) -> Metrics:
        """Return the metrics of a finished run.

        Args:
            held_out: losses at the end.
            test: likewise on the test text; None: it was not asked for.
            unaveraged: held-out loss of the last step's weights; None: the student has these.
            frozen: held-out loss of the ternary student without adapters; None: it has none.
        """
        traces, device, checkpoints = self.traces, self.context.device, self.context.checkpoints
        trained, distilled, recovered = (traces[each.NAME] for each in (pretrain, distill, recover))
        tokens = sum(trace.tokens for trace in traces.values())
        seconds = sum(trace.seconds for trace in traces.values())
        final, scored_bytes = held_out.final, self.inputs.held_out_bytes
        stages = self.stages()
        return Metrics(
            final_loss=final.mean,
            final_loss_sem=held_out.paired_sem,
            final_loss_text_sem=held_out.text_sem,
            perplexity=final.perplexity,
            bits_per_byte=scored_bytes and bits_per_byte(final.mean, self.inputs.held_out, scored_bytes),
            **_alignment(traces[layerwise.NAME]),
            stage2_start_loss=self.start.mean,
            stage2_train_loss=trained.final("ce" if self.config.stage2.distill.enabled else "loss"),
            stage3_final_loss=distilled.final_loss,
            effective_steps=sum(stage.cost for stage in stages),
            train_flops=float(sum(self.flops.values())),
            train_seconds=seconds,
            tokens=tokens,
            tokens_per_second=tokens / seconds if seconds else 0.0,
            peak_memory_gib=device.ranks.all_reduce_max(checkpoints.peak(device.peak_memory_bytes())) / 2**30,
            usd=_total(stage.usd for stage in stages),
            compile_seconds=checkpoints.compiled(device.compile_seconds()),
            eval_seconds=sum(trace.eval_seconds for trace in traces.values()),
            test_loss=None if test is None else test.final.mean,
            test_loss_sem=None if test is None else test.paired_sem,
            test_loss_text_sem=None if test is None else test.text_sem,
            unaveraged_loss=unaveraged,
            recovery_start_loss=frozen,
            recovery_train_loss=recovered.final("ce" if self.config.recovery.distill.enabled else "loss"),
            model_parameters=self.model_parameters,
        )

    def _stage(self, name: str, trace: StageTrace) -> StageResult:
        taken, weight = origin(self.context.checkpoints, name), step_weights(self.config)[name]
        return StageResult(
            name=name,
            key=self.keys.get(name, ""),
            reused=taken.reused,
            cost=weight * len(trace.losses),
            seconds=trace.seconds,
            usd=stage_usd(self.config, self.context, name, trace.seconds),
            branched_at=taken.steps or None,
            saved=weight * taken.steps,
        )


def stage_usd(config: Config, context: StageContext, name: str, seconds: float) -> float | None:
    """Return the dollars of a stage, those for what was taken from a snapshot included; None: not known."""
    taken, price = origin(context.checkpoints, name), config.device
    dollars = [taken.usd] if taken.reused or taken.steps else []
    if not taken.reused:
        own, spot = seconds - taken.seconds, price.pricing == "spot"
        dollars.append(usd(context.device, price.usd_per_hour, own, spot=spot))
    return _total(dollars)


def save(
    outcome: Outcome,
    config: Config,
    folder: Path,
    telemetry: Telemetry,
    checkpoints: Checkpoints,
    context: StageContext,
    warn: Callable[[str], None],
) -> None:
    """Write the result, save the student, call the evaluation hooks, and remove the checkpoints.

    A student that cannot be saved is a warning, as the run has its result. The checkpoints are kept then: the
    same command goes on from there. Processes that share the run leave each other here.

    Raises:
        TrainerError: the disk refuses the result.
        PreemptedError: a signal came while a hook scored the student.
    """
    ranks = context.device.ranks
    resumable = checkpoints.resumable  # asked in all processes: they write until then, perhaps together
    if ranks.first:
        measured = {("final", "teacher"): outcome.held_out, ("test", "test_teacher"): outcome.test}
        sequences = {
            name: loss.by_sequence
            for names, on_text in measured.items()
            if on_text is not None
            for name, loss in zip(names, (on_text.final, on_text.reference), strict=True)
        }
        documents = {
            names[0]: on_text.documents
            for names, on_text in measured.items()
            if on_text is not None and on_text.documents
        }
        path = folder / HELD_OUT_FILE
        result.write_held_out(sequences, documents, path, resumable=resumable)
        result.write(outcome.result, folder / RESULT_FILE, resumable=resumable)
    saved = True
    if config.save_model:
        try:
            with telemetry.during("saving", "the student"):
                student_folder.save(
                    outcome.student,
                    folder / MODEL_FOLDER,
                    tokenizer=outcome.tokenizer,
                    config_sha256=outcome.result.provenance.config_sha256,
                    ranks=ranks,
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, the result was worth the training
            saved = False
            again = "goes on from its checkpoint" if resumable else "trains anew"
            why = error if isinstance(error, TrainerError) else f"{type(error).__name__}: {error}"
            warn(
                f"{RESULT_FILE} is written, but the student could not be saved ({why}); once that is mended, "
                f"the same command {again}"
            )
    if config.hooks.names and not ranks.alone:
        checkpoints.leave()
    ranks.leave()  # hooks may take longer than the others wait in a collective
    context.stop.unshare()
    if ranks.first:
        scored = _score_student(outcome, config, folder, telemetry, context, warn)
        if scored.hooks:
            result.write(scored, folder / RESULT_FILE, resumable=resumable)
        if saved:
            checkpoints.discard()
        telemetry.finish(scored)


def _score_student(
    outcome: Outcome,
    config: Config,
    folder: Path,
    telemetry: Telemetry,
    context: StageContext,
    warn: Callable[[str], None],
) -> Result:
    """Write the samples and call the hooks; return the result with their scores."""
    device = context.device
    can_sample = device.torch_device.type != "xla" and config.device.parallel != "fsdp"
    if not (config.hooks.names or (config.samples.enabled and can_sample)):
        return outcome.result
    encoder = Encoder.open(outcome.tokenizer)
    student = FinishedStudent(
        model=outcome.student.eval(),
        tokenizer=encoder.backend,
        end=encoder.end,
        device=device,
        config=config,
        folder=folder,
        tokenizer_folder=outcome.tokenizer,
    )
    if config.samples.enabled and can_sample:
        try:
            write_samples(student)
        except Exception as error:  # noqa: BLE001 - whatever it is, the result was worth the training
            warn(f"no samples: {type(error).__name__}: {error}")
    if not config.hooks.names:
        return outcome.result
    with telemetry.during("evaluating", "hooks"), context.stop.interrupting():
        found = hooks.run(student)
    for name, reason in found.failed.items():
        warn(f"the hook {name} gave no scores ({reason})")
    called = {name: found.failed.get(name) for name in map(hook_name, config.hooks.names)}
    return replace(outcome.result, scores=found.metrics, hooks=called)


def _alignment(trace: StageTrace) -> dict[str, float | None]:
    return {
        "stage1_9_final_loss": trace.final_loss,
        "stage1_9_distill_loss": trace.final("distill"),
        "stage1_9_ce_loss": trace.final("ce"),
        "stage1_9_kl_loss": trace.final("kl"),
    }


def _total(dollars: Iterable[float | None]) -> float | None:
    """Return the sum; None where one is not known."""
    amounts = list(dollars)
    return None if None in amounts else sum(each for each in amounts if each is not None)
