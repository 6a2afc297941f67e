"""Rewrites one or many models, and verifies each before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from ..api import RewriteResult, rewrite_request
from ..debug.trace_writer import TraceWriter, trace_file
from ..request import Settings
from ..rewrite.engine.trace import Event
from ..rewrite.errors import LoopliftError, ModelError
from ..rewrite.running.cases import limited_effort
from ..rewrite.running.child_process import ChildDied, ChildProcess, RemoteObject
from ..rewrite.running.verify import verify
from ..rewrite.storage.files import given_name, place_of, save
from ..rewrite.storage.function_conflicts import after_difference
from ..rewrite.storage.summary import ModelSummary, summarize
from ..rewrite.storage.validate import check_runtime

WRITTEN, DIFFERENT, FAILED = "written", "different", "failed"


@dataclass(frozen=True)
class Job:
    """One model to rewrite."""

    source: Path
    target: Path
    settings: Settings = field(default_factory=Settings)
    step_limit: int | None = None
    verifies: bool = True
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The sizes to verify with, for some open dimensions."""
    seed: int = 0
    seconds: float | None = None
    """The most seconds that verification may take; None for the default."""
    trace: Path | None = None
    """The trace file to write, if any."""
    traces_in_full: bool = False


@dataclass
class Outcome:
    """The result for one model."""

    source: str
    target: str
    status: str
    """`written`, `different` (and not written), or `failed`."""
    error: str = ""
    """Why it failed."""
    before: dict[str, int] = field(default_factory=dict)
    """Operators by name, including those in bodies."""
    after: dict[str, int] = field(default_factory=dict)
    original: ModelSummary | None = None
    """The model, unless it could not be rewritten."""
    rewritten: ModelSummary | None = None
    rules: dict[str, int] = field(default_factory=dict)
    """How often each rule fired."""
    notes: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """The time of rewriting, without reading, verifying and writing."""
    verification: str = ""
    """What was compared, in words; empty if the job does not verify."""
    differences: list[str] = field(default_factory=list)
    remedy: str = ""
    """What to do about the differences."""


def run_job(job: Job, on_event: Callable[[Event], None] | None = None) -> Outcome:
    """Rewrites, verifies and writes one model. Raises LoopliftError and then writes nothing."""
    request = job.settings.request(job.source)
    with _trace_writer(job) as observer:
        result = rewrite_request(
            request, step_limit=job.step_limit, on_event=on_event, observer=observer
        )
    outcome = _outcome(job, result)
    if job.verifies:
        check_runtime(result.proto)
        verification = verify(
            request.proto,
            result.proto,
            base_dir=result.base_dir,
            assumptions=result.engine.assertions,
            sizes=job.sizes,
            seed=job.seed,
            effort=limited_effort(job.seconds),
        )
        if verification.rejected:
            raise ModelError(
                f"The model cannot be verified, because {verification.reason}",
                where=place_of(job.source),
                remedy="If the model is meant for another runtime, add --no-verify",
            )
        outcome.verification = str(verification)
        outcome.differences = [str(difference) for difference in verification.differences]
        outcome.notes += verification.notes()
        if verification.differences:
            outcome.status = DIFFERENT
            outcome.remedy = after_difference(request.proto)
            return outcome
    job.target.parent.mkdir(parents=True, exist_ok=True)
    save(result.proto, job.target, base_dir=result.base_dir)
    return outcome


@contextmanager
def _trace_writer(job: Job) -> Iterator[TraceWriter | None]:
    """Opens the trace file of a job that has one."""
    if job.trace is None:
        yield None
        return
    with (
        trace_file(job.trace) as file,
        TraceWriter(
            file, job.settings, source=given_name(job.source), in_full=job.traces_in_full
        ) as writer,
    ):
        yield writer


def _outcome(job: Job, result: RewriteResult) -> Outcome:
    report = result.report
    return Outcome(
        given_name(job.source),
        str(job.target),
        WRITTEN,
        before=dict(report.before),
        after=dict(report.after),
        original=summarize(result.request.proto),
        rewritten=summarize(result.proto),
        rules=dict(report.commits),
        notes=list(report.notes),
        defects=list(report.defects),
        seconds=report.seconds,
    )


# --- many models ---


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[Outcome]:
    """Runs jobs and yields their outcomes in order; an error of one does not stop the others."""
    if processes <= 1 or len(jobs) == 1:
        yield from map(_run_catching, jobs)
        return
    with ExitStack() as stack, ThreadPoolExecutor(processes) as pool:
        idle: SimpleQueue[ChildProcess] = SimpleQueue()
        for _ in range(processes):
            idle.put(stack.enter_context(ChildProcess()))
        yield from pool.map(lambda job: _run_in_process(job, idle), jobs)


def _run_catching(job: Job) -> Outcome:
    try:
        return run_job(job)
    except LoopliftError as error:
        return Outcome(given_name(job.source), str(job.target), FAILED, str(error))


def _run_in_process(job: Job, idle: SimpleQueue[ChildProcess]) -> Outcome:
    process = idle.get()
    try:
        outcome: Outcome = RemoteObject(process, _Worker).call("run", job)
    except ChildDied as death:
        return Outcome(
            given_name(job.source), str(job.target), FAILED, f"Rewriting failed: {death}."
        )
    finally:
        idle.put(process)
    return outcome


class _Worker:
    """The side of the child process."""

    def run(self, job: Job) -> Outcome:
        return _run_catching(job)
