"""The rules, in the order in which they run: this page is the table of contents."""

from __future__ import annotations

from ..rewrite.rule import Phase
from .casts import NameCastType
from .closed_forms_fold import (
    AllWithoutLoop,
    AnyWithoutLoop,
    MaximumWithoutLoop,
    MinimumWithoutLoop,
    ProductWithoutLoop,
)
from .closed_forms_shift import DelayWithoutState
from .closed_forms_sum import SumWithoutLoop
from .constants import FoldConstant, MergeConstants, StoreConstant
from .dead import DropUnreadResults, RemoveCopy, RemoveUnread
from .decided_if import InlineDecidedIf, InlineOnlyPossibleBranch
from .demanded_axes import NameDemandedAxes
from .demanded_if import InlineDemandedBranch
from .equal import MergeEqualNodes
from .float_counts import CountInIntegers
from .if_to_where import IfToWhere
from .known_sequences import ConstructFromErase, ConstructFromSplit, SplitListState
from .linear_recurrence import SimplifyLinearRecurrence
from .linear_recurrence_chunks import ChunkLinearRecurrence
from .loop_buffers import CollectScatteredRows
from .loop_count import CountIterations
from .loop_growing import CollectConcatenatedRows
from .loop_induction import CounterFromIteration
from .loop_none import RunLoopOnce, RunScanOnce, SkipLoop
from .loop_normal import (
    ConditionHoldsInside,
    ConstantConditionOut,
    DropEndlessTripCount,
    DropTrueCondition,
)
from .loop_reads import ReadAtIteration
from .loop_sequences import CollectInsertedRows
from .loop_shapes import ShapeFromOutside
from .loop_slices import ReadOneSlice
from .loop_states import (
    DropDeadStates,
    DropUnreadRows,
    ForwardInvariantStates,
    MergeEqualStates,
)
from .loop_to_scan import LoopToScan
from .loop_unroll import UnrollShortLoop
from .loop_unswitch import UnswitchLoop
from .loop_work import HoistInvariantWork
from .recurrence import (
    AbsorbLinear,
    FuseRecurrence,
    JoinSlices,
    Reroll,
    ReverseDirection,
    ReverseWhole,
    SplitState,
)
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
from .step_batch_rows import BatchBehind
from .step_map import RowsWithoutLoop
from .step_map_repeat import RepeatWithoutLoop
from .step_padded import LoopToPaddedScan
from .step_squeezed import GatherSqueezedSlice
from .step_windows import WindowsInFront

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
            ReadAtIteration,
            ReadOneSlice,
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
            GatherSqueezedSlice,
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
