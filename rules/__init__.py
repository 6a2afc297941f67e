"""The rules, in the order in which they run: this page is the table of contents."""

from __future__ import annotations

from ..rewrite.rule import Phase
from .branches.decided import InlineDecidedIf, InlineOnlyPossibleBranch
from .branches.demanded import InlineDemandedBranch
from .branches.same_condition import AbsorbNot, CollapseNestedIf, MergeSiblingIfs
from .branches.shared_work import ForwardEqualResults, HoistSharedWork
from .branches.to_where import IfToWhere
from .loops.buffers import CollectScatteredRows
from .loops.conditions import (
    ConditionHoldsInside,
    ConstantConditionOut,
    DropEndlessTripCount,
    DropTrueCondition,
)
from .loops.count import CountIterations
from .loops.float_counts import CountInIntegers
from .loops.growing import CollectConcatenatedRows
from .loops.induction import CounterFromIteration
from .loops.invariant_motion import HoistInvariantWork
from .loops.known_sequences import ConstructFromErase, ConstructFromSplit, SplitListState
from .loops.reads import ReadAtIteration
from .loops.sequences import CollectInsertedRows
from .loops.shapes import ShapeFromOutside
from .loops.slices import ReadOneSlice
from .loops.split_sequences import (
    ConstructFromInserts,
    CountFromSplit,
    JoinConstructed,
    JoinSplit,
    ReadConstructed,
    ReadFromSplit,
)
from .loops.states import (
    DropDeadStates,
    DropUnreadRows,
    ForwardInvariantStates,
    MergeEqualStates,
)
from .loops.trivial_trips import RunLoopOnce, RunScanOnce, SkipLoop
from .loops.unroll import UnrollShortLoop
from .loops.unswitch import UnswitchLoop
from .recurrence import (
    AbsorbLinear,
    FuseRecurrence,
    JoinSlices,
    Reroll,
    ReverseDirection,
    ReverseWhole,
    SplitState,
)
from .steps.batch import BatchInFront
from .steps.batch_rows import BatchBehind
from .steps.closed_forms_fold import (
    AllWithoutLoop,
    AnyWithoutLoop,
    MaximumWithoutLoop,
    MinimumWithoutLoop,
    ProductWithoutLoop,
)
from .steps.closed_forms_shift import DelayWithoutState
from .steps.closed_forms_sum import SumWithoutLoop
from .steps.linear_recurrence import SimplifyLinearRecurrence
from .steps.linear_recurrence_chunks import ChunkLinearRecurrence
from .steps.padded_scan import LoopToPaddedScan
from .steps.repeats import RepeatWithoutLoop
from .steps.rows import RowsWithoutLoop
from .steps.sliding_windows import WindowsInFront
from .steps.squeezed_slices import GatherSqueezedSlice
from .steps.to_scan import LoopToScan
from .values.casts import NameCastType
from .values.constants import FoldConstant, MergeConstants, StoreConstant
from .values.dead import DropUnreadResults, RemoveCopy, RemoveUnread
from .values.demanded_axes import NameDemandedAxes
from .values.equal import MergeEqualNodes
from .values.reshapes import DropReshape

PHASES: tuple[Phase, ...] = (
    Phase(
        "constants",
        (
            RemoveUnread,
            RemoveCopy,
            StoreConstant,
            NameCastType,
            FoldConstant,
            MergeConstants,
            MergeEqualNodes,
        ),
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
            DropEndlessTripCount,
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
            ConstructFromErase,
            ConstructFromSplit,
            SplitListState,
            JoinConstructed,
            ReadConstructed,
            ReadOneSlice,
            GatherSqueezedSlice,
            ReadAtIteration,
            CollectInsertedRows,
            CollectScatteredRows,
            CollectConcatenatedRows,
        ),
        "Loops that never run or run once go; the others count, and carry only what they must.",
    ),
    Phase(
        "recurrences",
        (
            SplitState,
            FuseRecurrence,
            Reroll,
            JoinSlices,
            ReverseDirection,
            ReverseWhole,
            AbsorbLinear,
        ),
        "Loops around a cell become LSTM, GRU and RNN.",
    ),
    Phase(
        "steps",
        (
            WindowsInFront,
            RepeatWithoutLoop,
            SimplifyLinearRecurrence,
            BatchInFront,
            SumWithoutLoop,
            ProductWithoutLoop,
            MaximumWithoutLoop,
            MinimumWithoutLoop,
            AnyWithoutLoop,
            AllWithoutLoop,
            DelayWithoutState,
            RowsWithoutLoop,
            BatchBehind,
        ),
        "Work that no state reaches is done for all iterations at once, outside the loop.",
    ),
    Phase(
        "unrolling",
        (UnrollShortLoop,),
        "Loops of a few light iterations become straight code.",
    ),
    Phase(
        "demand",
        (InlineDemandedBranch, NameDemandedAxes),
        "Of branches and squeezed axes, those stay with which the run can succeed.",
    ),
    Phase(
        "unswitching",
        (UnswitchLoop,),
        "What a loop asks in every iteration, with the same answer, is asked before it.",
    ),
    Phase(
        "scans",
        (ChunkLinearRecurrence, LoopToScan, LoopToPaddedScan),
        "Loops over slices that surely run take the form that says so.",
    ),
)
