"""The rules, in the order in which they run: this page is the table of contents."""

from __future__ import annotations

from ..rewrite.rule import Phase
from .constants import FoldConstant, MergeConstants, StoreConstant
from .dead import DropUnreadResults, RemoveCopy, RemoveUnread
from .decided_if import InlineDecidedIf, InlineOnlyPossibleBranch
from .demanded_if import InlineDemandedBranch
from .equal import MergeEqualNodes
from .float_counts import CountInIntegers
from .if_to_where import IfToWhere
from .loop_buffers import CollectScatteredRows
from .loop_count import CountIterations
from .loop_growing import CollectConcatenatedRows
from .loop_induction import CounterFromIteration
from .loop_none import RunLoopOnce, RunScanOnce, SkipLoop
from .loop_normal import ConditionHoldsInside, ConstantConditionOut, DropTrueCondition
from .loop_reads import ReadAtIteration, ReadOneSlice
from .loop_sequences import CollectInsertedRows
from .loop_shapes import ShapeFromOutside
from .loop_states import (
    DropDeadStates,
    DropUnreadRows,
    ForwardInvariantStates,
    MergeEqualStates,
)
from .loop_to_scan import LoopToScan
from .loop_unroll import UnrollShortLoop
from .loop_work import HoistInvariantWork
from .reshapes import DropReshape
from .same_condition import AbsorbNot, CollapseNestedIf, MergeSiblingIfs
from .shared_work import ForwardEqualResults, HoistSharedWork
from .split_sequences import (
    ConstructFromInserts,
    CountFromSplit,
    JoinConstructed,
    JoinSplit,
    ReadConstructed,
    ReadFromSplit,
)
from .step_batch import BatchInFront
from .step_map import RowsWithoutLoop

PHASES: tuple[Phase, ...] = (
    Phase(
        "constants",
        (RemoveUnread, RemoveCopy, StoreConstant, FoldConstant, MergeConstants, MergeEqualNodes),
        "What is known before the run is computed now, and everything once.",
    ),
    Phase(
        "branches",
        (
            RemoveUnread,
            RemoveCopy,
            StoreConstant,
            InlineDecidedIf,
            CollapseNestedIf,
            InlineOnlyPossibleBranch,
            AbsorbNot,
            DropUnreadResults,
            HoistSharedWork,
            ForwardEqualResults,
            IfToWhere,
            MergeSiblingIfs,
            FoldConstant,
            MergeEqualNodes,
        ),
        "Ifs whose branch is known or that need none go; the rest get smaller.",
    ),
    Phase(
        "loops",
        (
            RemoveUnread,
            ConditionHoldsInside,
            DropTrueCondition,
            ConstantConditionOut,
            SkipLoop,
            RunLoopOnce,
            RunScanOnce,
            CountInIntegers,
            CountIterations,
            DropUnreadRows,
            DropDeadStates,
            ForwardInvariantStates,
            MergeEqualStates,
            CounterFromIteration,
            HoistInvariantWork,
            ShapeFromOutside,
            DropReshape,
            ReadFromSplit,
            CountFromSplit,
            JoinSplit,
            ConstructFromInserts,
            JoinConstructed,
            ReadConstructed,
            ReadAtIteration,
            ReadOneSlice,
            CollectInsertedRows,
            CollectScatteredRows,
            CollectConcatenatedRows,
        ),
        "Loops that never run or run once go; the others count, and carry only what they must.",
    ),
    Phase(
        "steps",
        (BatchInFront, RowsWithoutLoop),
        "Work that no state reaches is done for all iterations at once, outside the loop.",
    ),
    Phase(
        "unrolling",
        (UnrollShortLoop,),
        "Loops of a few light iterations become straight code.",
    ),
    Phase(
        "demand",
        (InlineDemandedBranch,),
        "Ifs go of which only one branch lets the run succeed.",
    ),
    Phase(
        "scans",
        (LoopToScan,),
        "Loops over slices that surely run take the form that says so.",
    ),
)
