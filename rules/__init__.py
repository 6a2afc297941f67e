"""The table of contents: all rules, in the order in which they run.

The engine runs the rules of a phase until none of them fires, and all phases again until nothing
changes. The first line of each rule's docstring says what the rule does; `looplift rules` prints
the phases and rules with these lines.
"""

from __future__ import annotations

from ..rewrite.engine.rule import Phase
from .branches.branch_outputs import EliminateDeadBranchOutputs, ForwardEqualBranchOutputs
from .branches.common_code import HoistCommonBranchCode
from .branches.copying_branch import InlineBranchThatCopiesOtherwise
from .branches.decided_if import InlineDecidedIf, InlineOnlyPossibleBranch
from .branches.demanded_branch import InlineDemandedBranch
from .branches.empty_guard import InlineBranchRightForEmpty
from .branches.if_to_where import IfToWhere
from .branches.same_condition import AbsorbNegatedCondition, CollapseNestedIf, MergeSiblingIfs
from .contrib.attention import DecomposeAttention, DecomposeMultiHeadAttention
from .contrib.experimental import DecomposeAffine, DecomposeCrop
from .contrib.fused_operators import DecomposeFusedConv, DecomposeFusedGemm, DecomposeFusedMatMul
from .contrib.gelu import DecomposeGelu
from .contrib.grouped_attention import DecomposeGroupQueryAttention
from .contrib.integer_products import DecomposeIntegerProduct
from .contrib.normalization import (
    DecomposeEmbedLayerNormalization,
    DecomposeRmsNormalization,
    DecomposeSkipLayerNormalization,
)
from .contrib.quantised_attention import DecomposeQAttention
from .contrib.quantised_embeddings import DecomposeQEmbedLayerNormalization
from .contrib.rotary_embedding import DecomposeRotaryEmbedding
from .loops.appended_reads import CarryAppendedElement
from .loops.buffer_reads import CarryWrittenSlice, ReadInitialBuffer
from .loops.carried_values import (
    EliminateDeadCarriedValues,
    EliminateDeadScanOutputs,
    ForwardInvariantCarriedValues,
    MergeEqualCarriedValues,
)
from .loops.concat_accumulation import ConcatToScanOutput
from .loops.concat_slices import SliceOperandOfConcat
from .loops.concat_writes import ConcatToScatter
from .loops.constructed_sequences import (
    ConcatOfConstructedSequence,
    ElementOfConstructedSequence,
    EraseToConstruct,
    InsertsToConstruct,
    SplitToConstruct,
    UnpackCarriedSequence,
)
from .loops.first_iteration import SplitFirstIteration
from .loops.float_counters import FloatCounterToInteger
from .loops.induction_variables import InductionVariableFromIteration
from .loops.iteration_number import IterationNumberToScalar
from .loops.loop_condition import (
    ConditionIsTrueInBody,
    ConditionToTripCount,
    EliminateTrueCondition,
    EliminateUnreachableTripCount,
    FoldLoopCondition,
)
from .loops.loop_invariant_code_motion import HoistLoopInvariantCode
from .loops.loop_invariant_shapes import HoistLoopInvariantShape
from .loops.loop_to_scan import LoopToPaddedScan, LoopToScan
from .loops.pointwise_convolution import PointwiseConvToProduct
from .loops.projected_states import CarryUnprojectedState
from .loops.scatter_accumulation import ScatterToScanOutput
from .loops.sequence_accumulation import SequenceInsertToScanOutput
from .loops.slice_reads import GatherAtIteration, SliceToGather, SqueezedSliceToGather
from .loops.split_carried_value import SplitCarriedValue
from .loops.split_sequences import (
    ConcatOfSplitSequence,
    GatherFromSplitSequence,
    LengthOfSplitSequence,
)
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
    CancelReversals,
    ConcatOfSlices,
    FuseRecurrence,
    MergeRecurrentChunks,
    RerollRecurrence,
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
from .reductions.linear_attention import ChunkLinearAttention
from .reductions.linear_recurrence import SimplifyLinearRecurrence
from .reductions.linear_recurrence_chunks import ChunkLinearRecurrence
from .reductions.shift_buffers import ShiftBufferToWindows
from .values.cast_comparisons import CompareBeforeCast
from .values.cast_like import CastLikeToCast
from .values.common_subexpressions import EliminateCommonSubexpression
from .values.constants import ConstantToInitializer, DeduplicateConstants, FoldConstants
from .values.dead_nodes import EliminateDeadNode, EliminateIdentity
from .values.padding import FoldPadIntoConv
from .values.reshapes import EliminateRedundantReshape
from .values.squeeze_axes import InferSqueezeAxes
from .values.traps import FailingNodeToTrap
from .vectorization.after_loop import VectorizeAfterLoop
from .vectorization.before_loop import VectorizeBeforeLoop
from .vectorization.concat_products import SplitProductOfConcat
from .vectorization.independent_scan_outputs import VectorizeScanOutputs
from .vectorization.loop_distribution import DistributeLoop
from .vectorization.one_step_lstm import DecomposeOneStepLstm
from .vectorization.ragged_repeat import RaggedRepeat
from .vectorization.sliding_windows import VectorizeSlidingWindows

PHASES: tuple[Phase, ...] = (
    Phase(
        "contrib operators",
        (
            DecomposeGelu,
            DecomposeFusedMatMul,
            DecomposeFusedConv,
            DecomposeFusedGemm,
            DecomposeIntegerProduct,
            DecomposeSkipLayerNormalization,
            DecomposeRmsNormalization,
            DecomposeEmbedLayerNormalization,
            DecomposeQEmbedLayerNormalization,
            DecomposeMultiHeadAttention,
            DecomposeAttention,
            DecomposeQAttention,
            DecomposeGroupQueryAttention,
            DecomposeRotaryEmbedding,
            DecomposeAffine,
            DecomposeCrop,
        ),
        "Decomposes operators of com.microsoft, and experimental ones, into standard ones.",
    ),
    Phase(
        "constants",
        (
            EliminateDeadNode,
            EliminateIdentity,
            ConstantToInitializer,
            CastLikeToCast,
            CompareBeforeCast,
            FailingNodeToTrap,
            FoldConstants,
            FoldPadIntoConv,
            DeduplicateConstants,
            EliminateCommonSubexpression,
        ),
        "Folds constants and padding, and removes dead and repeated nodes.",
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
            InlineBranchRightForEmpty,
            InlineBranchThatCopiesOtherwise,
            AbsorbNegatedCondition,
            EliminateDeadBranchOutputs,
            HoistCommonBranchCode,
            ForwardEqualBranchOutputs,
            IfToWhere,
            MergeSiblingIfs,
            FoldConstants,
            EliminateCommonSubexpression,
        ),
        "Removes Ifs whose branch is known or that need no branch, and shrinks the others.",
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
            ConditionToTripCount,
            IterationNumberToScalar,
            FloatCounterToInteger,
            InferTripCount,
            EliminateDeadScanOutputs,
            EliminateDeadCarriedValues,
            ForwardInvariantCarriedValues,
            MergeEqualCarriedValues,
            InductionVariableFromIteration,
            HoistLoopInvariantCode,
            HoistLoopInvariantShape,
            PointwiseConvToProduct,
            EliminateRedundantReshape,
            SliceOperandOfConcat,
            GatherFromSplitSequence,
            LengthOfSplitSequence,
            ConcatOfSplitSequence,
            InsertsToConstruct,
            EraseToConstruct,
            SplitToConstruct,
            UnpackCarriedSequence,
            ConcatOfConstructedSequence,
            ElementOfConstructedSequence,
            CarryAppendedElement,
            SliceToGather,
            SqueezedSliceToGather,
            GatherAtIteration,
            SequenceInsertToScanOutput,
            ConcatToScatter,
            ReadInitialBuffer,
            CarryWrittenSlice,
            ScatterToScanOutput,
            ConcatToScanOutput,
        ),
        "Brings loops to their canonical form: a trip count, slice reads, and minimal carried values.",
    ),
    Phase(
        "recurrences",
        (
            SplitCarriedValue,
            CarryUnprojectedState,
            FuseRecurrence,
            MergeRecurrentChunks,
            RerollRecurrence,
            ConcatOfSlices,
            CancelReversals,
            AbsorbReversal,
            AbsorbReversalOfWholeSequence,
            AbsorbInputProjection,
        ),
        "Turns loops around a recurrent cell into LSTM, GRU and RNN.",
    ),
    Phase(
        "vectorization",
        (
            VectorizeSlidingWindows,
            RaggedRepeat,
            ChunkLinearAttention,
            SimplifyLinearRecurrence,
            DecomposeOneStepLstm,
            SplitProductOfConcat,
            VectorizeBeforeLoop,
            LoopToSum,
            LoopToProduct,
            LoopToMaximum,
            LoopToMinimum,
            LoopToAny,
            LoopToAll,
            DelayLineToShift,
            ShiftBufferToWindows,
            VectorizeScanOutputs,
            VectorizeAfterLoop,
            DistributeLoop,
        ),
        "Computes what depends on no carried value for all iterations at once, outside the loop.",
    ),
    Phase(
        "unrolling",
        (UnrollShortLoop,),
        "Unrolls loops of a few light iterations.",
    ),
    Phase(
        "demand",
        (InlineDemandedBranch, InferSqueezeAxes),
        "Selects the branches and squeezed axes with which later operators can succeed.",
    ),
    Phase(
        "unswitching",
        (UnswitchLoop,),
        "Loop unswitching: moves Ifs with loop-invariant conditions before the loop.",
    ),
    Phase(
        "first iteration",
        (SplitFirstIteration,),
        "Index set splitting: a loop whose first iteration differs becomes two loops.",
    ),
    Phase(
        "scans",
        (ChunkLinearRecurrence, LoopToScan, LoopToPaddedScan),
        "Turns the remaining loops over slices into Scans.",
    ),
)
