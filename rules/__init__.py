"""The rules, in the order in which they run: this page is the table of contents."""

from __future__ import annotations

from ..rewrite.engine.rule import Phase
from .branches.common_code import ForwardEqualBranchOutputs, HoistCommonBranchCode
from .branches.decided_if import InlineDecidedIf, InlineOnlyPossibleBranch
from .branches.demanded_branch import InlineDemandedBranch
from .branches.if_to_where import IfToWhere
from .branches.same_condition import AbsorbNegatedCondition, CollapseNestedIf, MergeSiblingIfs
from .loops.carried_values import (
    EliminateDeadCarriedValues,
    EliminateDeadScanOutputs,
    ForwardInvariantCarriedValues,
    MergeEqualCarriedValues,
)
from .loops.concat_accumulation import ConcatToScanOutput
from .loops.fixed_length_sequences import EraseToConstruct, SplitToConstruct, UnpackCarriedSequence
from .loops.float_counters import FloatCounterToInteger
from .loops.induction_variables import InductionVariableFromIteration
from .loops.loop_condition import (
    ConditionIsTrueInBody,
    EliminateTrueCondition,
    EliminateUnreachableTripCount,
    FoldLoopCondition,
)
from .loops.loop_invariant_code_motion import HoistLoopInvariantCode
from .loops.loop_invariant_shapes import HoistLoopInvariantShape
from .loops.loop_to_scan import LoopToScan
from .loops.padded_scan import LoopToPaddedScan
from .loops.scatter_accumulation import ScatterToScanOutput
from .loops.sequence_accumulation import SequenceInsertToScanOutput
from .loops.slice_reads import GatherAtIteration
from .loops.slice_to_gather import SliceToGather
from .loops.split_sequences import (
    ConcatOfConstructedSequence,
    ConcatOfSplitSequence,
    ElementOfConstructedSequence,
    GatherFromSplitSequence,
    InsertsToConstruct,
    LengthOfSplitSequence,
)
from .loops.squeezed_slices import SqueezedSliceToGather
from .loops.trip_count import InferTripCount
from .loops.trivial_trip_counts import (
    EliminateZeroTripLoop,
    InlineSingleTripLoop,
    InlineSingleTripScan,
)
from .loops.unrolling import UnrollShortLoop
from .loops.unswitching import UnswitchLoop
from .recurrence import (
    AbsorbInputProjection,
    AbsorbReversal,
    AbsorbReversalOfWholeSequence,
    ConcatOfSlices,
    FuseRecurrence,
    RerollRecurrence,
    SplitCarriedValue,
)
from .reductions.closed_form_rules import (
    DelayLineToShift,
    LoopToAll,
    LoopToAny,
    LoopToMaximum,
    LoopToMinimum,
    LoopToProduct,
    LoopToSum,
)
from .reductions.linear_recurrence import SimplifyLinearRecurrence
from .reductions.linear_recurrence_chunks import ChunkLinearRecurrence
from .values.cast_like import CastLikeToCast
from .values.common_subexpressions import EliminateCommonSubexpression
from .values.constants import ConstantToInitializer, DeduplicateConstants, FoldConstants
from .values.dead_nodes import EliminateDeadBranchOutputs, EliminateDeadNode, EliminateIdentity
from .values.reshapes import EliminateRedundantReshape
from .values.squeeze_axes import InferSqueezeAxes
from .vectorization.after_loop import VectorizeAfterLoop
from .vectorization.before_loop import VectorizeBeforeLoop
from .vectorization.independent_scan_outputs import VectorizeScanOutputs
from .vectorization.ragged_repeat import RaggedRepeat
from .vectorization.sliding_windows import VectorizeSlidingWindows

PHASES: tuple[Phase, ...] = (
    Phase(
        "constants",
        (
            EliminateDeadNode,
            EliminateIdentity,
            ConstantToInitializer,
            CastLikeToCast,
            FoldConstants,
            DeduplicateConstants,
            EliminateCommonSubexpression,
        ),
        "What is known before the run is computed now, and everything once.",
    ),
    Phase(
        "branches",
        (
            EliminateDeadNode,
            EliminateIdentity,
            ConstantToInitializer,
            InlineDecidedIf,
            CollapseNestedIf,
            InlineOnlyPossibleBranch,
            AbsorbNegatedCondition,
            EliminateDeadBranchOutputs,
            HoistCommonBranchCode,
            ForwardEqualBranchOutputs,
            IfToWhere,
            MergeSiblingIfs,
            FoldConstants,
            EliminateCommonSubexpression,
        ),
        "Ifs whose branch is known or that need none go; the rest get smaller.",
    ),
    Phase(
        "loops",
        (
            EliminateDeadNode,
            ConditionIsTrueInBody,
            EliminateTrueCondition,
            FoldLoopCondition,
            EliminateUnreachableTripCount,
            EliminateZeroTripLoop,
            InlineSingleTripLoop,
            InlineSingleTripScan,
            FloatCounterToInteger,
            InferTripCount,
            EliminateDeadScanOutputs,
            EliminateDeadCarriedValues,
            ForwardInvariantCarriedValues,
            MergeEqualCarriedValues,
            InductionVariableFromIteration,
            HoistLoopInvariantCode,
            HoistLoopInvariantShape,
            EliminateRedundantReshape,
            GatherFromSplitSequence,
            LengthOfSplitSequence,
            ConcatOfSplitSequence,
            InsertsToConstruct,
            EraseToConstruct,
            SplitToConstruct,
            UnpackCarriedSequence,
            ConcatOfConstructedSequence,
            ElementOfConstructedSequence,
            SliceToGather,
            SqueezedSliceToGather,
            GatherAtIteration,
            SequenceInsertToScanOutput,
            ScatterToScanOutput,
            ConcatToScanOutput,
        ),
        "Loops that never run or run once go; the others count, and carry only what they must.",
    ),
    Phase(
        "recurrences",
        (
            SplitCarriedValue,
            FuseRecurrence,
            RerollRecurrence,
            ConcatOfSlices,
            AbsorbReversal,
            AbsorbReversalOfWholeSequence,
            AbsorbInputProjection,
        ),
        "Loops around a cell become LSTM, GRU and RNN.",
    ),
    Phase(
        "steps",
        (
            VectorizeSlidingWindows,
            RaggedRepeat,
            SimplifyLinearRecurrence,
            VectorizeBeforeLoop,
            LoopToSum,
            LoopToProduct,
            LoopToMaximum,
            LoopToMinimum,
            LoopToAny,
            LoopToAll,
            DelayLineToShift,
            VectorizeScanOutputs,
            VectorizeAfterLoop,
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
        (InlineDemandedBranch, InferSqueezeAxes),
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
