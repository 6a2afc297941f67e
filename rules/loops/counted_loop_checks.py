"""Checks that a Loop or Scan is a counted loop, with the reasons why it is not."""

from __future__ import annotations

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.rule import Match
from ...rewrite.facts.counted_loop import CountedLoop, counted_loop
from ...rewrite.graph.views import ScanOutput


def need_counted_loop(m: Match) -> CountedLoop:
    """The root as a counted loop that may run; raises Miss if it is not one.

    Also raises Miss, with --strict, if an iteration may read past the end of a sequence: the loop
    fails there, while an operator that reads all slices at once reads fewer of them.
    """
    return m.once(_find_counted_loop)


def _find_counted_loop(m: Match) -> CountedLoop:
    if m.node.op == "Loop":
        need_trip_count(m)
    unknown_rank = (
        "the rank of a sequence that it reads, or of a slice that it writes, is not known"
    )
    loop = m.need(counted_loop(m.facts, m.node), unknown_rank)
    m.need(not isinstance(loop.count, int) or loop.count > 0, "it never runs")
    if m.options.strict:
        _need_reads_in_range(m, loop)
    return loop


def need_trip_count(m: Match) -> None:
    """Raises Miss if the trip count of the root, a Loop, is not known before the first iteration."""
    loop = m.loop()
    ends = loop.condition_out
    early = "it may end early: {} is computed in each iteration"
    m.need(loop.never_stops_early(m.facts), early, ends, at=ends)
    if loop.trip is None:
        raise Miss("it never ends: it has no trip count", at=m.node)
    failure = m.facts.failure(m.node)
    m.need(failure is None, f"it always fails: {failure}")
    if loop.iteration_shape != ():
        raise Miss("its body takes the iteration number {} as a vector", loop.iteration, at=m.node)


def _need_reads_in_range(m: Match, loop: CountedLoop) -> None:
    """Raises Miss if a sequence may have fewer slices than there are iterations."""
    for read in loop.reads:
        length = m.facts.known_shape(read.sequence)[read.axis]
        enough = loop.count is not None and symbolic.le(loop.count, length) is True
        m.need(
            loop.trip is None or enough,
            "--strict: {} may have fewer slices than there are iterations",
            read.sequence,
            at=read.sequence,
        )


def need_declared_sizes(m: Match, loop: CountedLoop, output: ScanOutput) -> None:
    """Raises Miss if the sizes declared for an empty scan output may not be those of its slices.

    onnxruntime takes the sizes of an empty scan output from the declaration in the body, which
    nothing checks unless there is an iteration. A declaration that is proven to be false does not
    count: the end of the rewrite corrects it.
    """
    info = loop.body.output_info.get(output.slice, output.slice.info)
    if loop.runs_at_least_once or info is None or not info.type.tensor_type.HasField("shape"):
        return
    # The facts about a copy that the body returns follow from the declaration.
    declared, shape = info.type.tensor_type.shape.dim, m.facts.shape(m.index.original(output.slice))
    if shape is None:
        return
    known = len(shape) != len(declared) or all(
        not dim.HasField("dim_value") or symbolic.eq(size, dim.dim_value) is not None
        for size, dim in zip(shape, declared)
    )
    sentence = "{} has the shape ({}), the body declares other sizes, and the loop may not run"
    m.need(known, sentence, output.slice, shape, at=output.slice)
