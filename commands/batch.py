"""One or many models through `rewrite`, verified before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from ..api import RewriteResult, rewrite
from ..debug.recording import Recorder, trace_file
from ..plugins import all_phases
from ..rewrite.engine.engine import Observer
from ..rewrite.engine.trace import Event
from ..rewrite.errors import LoopliftError
from ..rewrite.running.child_process import ChildDied, ChildProcess, RemoteObject
from ..rewrite.running.verify import Verification, verify
from ..rewrite.storage.files import save
from ..rewrite.storage.validate import check_runtime
from .arguments import Assertions

WRITTEN, DIFFERENT, FAILED = "written", "different", "failed"


@dataclass(frozen=True)
class Job:
    """One model to rewrite."""

    source: Path
    target: Path
    assertions: Assertions = field(default_factory=Assertions)
    rules: tuple[str, ...] = ()
    """Modules with phases that run after looplift's."""
    step_limit: int | None = None
    verifies: bool = True
    seed: int = 0
    trace: Path | None = None
    """Where the trace goes, if one is wanted."""
    traces_in_full: bool = False


@dataclass
class Outcome:
    """What became of one model."""

    source: str
    target: str
    status: str
    """`written`, `different` (and not written), or `failed`."""
    error: str = ""
    """Why it failed."""
    before: dict[str, int] = field(default_factory=dict)
    """Operators by name, those in bodies included."""
    after: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)
    """How often each rule fired."""
    notes: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """How long the rewriting took, without reading, verifying and writing."""
    verification: str = ""
    """What was compared, in words; empty if nothing was asked for."""
    differences: list[str] = field(default_factory=list)


def run_job(job: Job, on_event: Callable[[Event], None] | None = None) -> Outcome:
    """Rewrite, verify and write one model. Raises LoopliftError; then nothing is written."""
    with _recorder(job) as observer:
        result = _rewritten(job, on_event, observer)
    outcome = _describe(job, result)
    if job.verifies:
        check_runtime(result.model)
        verification = verify_result(job, result)
        outcome.verification = str(verification)
        outcome.differences = [str(found) for found in verification.differences]
        outcome.notes += verification.notes()
        if verification.differences:
            outcome.status = DIFFERENT
            return outcome
    job.target.parent.mkdir(parents=True, exist_ok=True)
    save(result.model, job.target, base_dir=result.base_dir)
    return outcome


@contextmanager
def _recorder(job: Job) -> Iterator[Recorder | None]:
    """Writes the trace of a job, if one is wanted."""
    if job.trace is None:
        yield None
        return
    with (
        trace_file(job.trace) as file,
        Recorder(
            file,
            source=job.source,
            assertions=job.assertions,
            rules=job.rules,
            in_full=job.traces_in_full,
        ) as recorder,
    ):
        yield recorder


def _rewritten(
    job: Job, on_event: Callable[[Event], None] | None, observer: Observer | None
) -> RewriteResult:
    return rewrite(
        job.source,
        inputs=job.assertions.inputs,
        dims=job.assertions.dims,
        shapes=job.assertions.shapes,
        prefix_masks=job.assertions.prefix_masks,
        strict=job.assertions.strict,
        rules=all_phases(job.rules),
        step_limit=job.step_limit,
        on_event=on_event,
        observer=observer,
    )


def verify_result(job: Job, result: RewriteResult) -> Verification:
    """Hold a rewritten model against its file."""
    return verify(
        job.source,
        result.model,
        base_dir=result.base_dir,
        inputs=job.assertions.inputs,
        assumptions=result.engine.assumptions,
        seed=job.seed,
    )


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[Outcome]:
    """The outcomes in the order of the jobs; an error of one does not keep the others."""
    if processes <= 1 or len(jobs) == 1:
        yield from map(_run_guarded, jobs)
        return
    with ExitStack() as stack, ThreadPoolExecutor(processes) as pool:
        idle: SimpleQueue[ChildProcess] = SimpleQueue()
        for _ in range(processes):
            idle.put(stack.enter_context(ChildProcess()))
        yield from pool.map(lambda job: _run_elsewhere(job, idle), jobs)


def _run_guarded(job: Job) -> Outcome:
    try:
        return run_job(job)
    except LoopliftError as error:
        return Outcome(str(job.source), str(job.target), FAILED, str(error))


def _run_elsewhere(job: Job, idle: SimpleQueue[ChildProcess]) -> Outcome:
    process = idle.get()
    try:
        outcome: Outcome = RemoteObject(process, _Worker).call("run", job)
    except ChildDied as death:
        return Outcome(str(job.source), str(job.target), FAILED, f"It is not rewritten: {death}.")
    finally:
        idle.put(process)
    return outcome


class _Worker:
    def run(self, job: Job) -> Outcome:
        return _run_guarded(job)


def _describe(job: Job, result: RewriteResult) -> Outcome:
    report = result.report
    return Outcome(
        str(job.source),
        str(job.target),
        WRITTEN,
        before=dict(report.before),
        after=dict(report.after),
        rules=dict(report.commits),
        notes=list(report.notes),
        defects=list(report.defects),
        seconds=report.seconds,
    )
