"""Invalid graphs: names, cycles, operators, bodies, types."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from .case import PLAIN, edited, text

# Names.

text(
    "a dangling input",
    "g (float[2] x) => (float[2] y) { [add] y = Add(x, nowhere) }",
    "'nowhere' is not defined",
    "Add 'add'",
)
text(
    "a dangling output",
    "g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x) }",
    "'z' is not defined",
    "graph 'g'",
)
text(
    "a dangling name in a branch",
    """g (bool c, float[2] x) => (float[2] y) {
        [choice] y = If (c) <
            then_branch = t () => (float[2] a) { a = Neg(ghost) },
            else_branch = e () => (float[2] b) { b = Identity(x) }>
    }""",
    "'ghost'",
    "Neg giving 'a', in then_branch of If 'choice'",
)
text(
    "a name of a sibling branch",
    """g (bool c, float[2] x) => (float[2] y) {
        [choice] y = If (c) <
            then_branch = t () => (float[2] a) { a = Neg(x) },
            else_branch = e () => (float[2] b) { b = Identity(a) }>
    }""",
    "'a' is not defined",
    "else_branch of If 'choice'",
)
text(
    "an output of a body that nothing defines",
    """g (bool c, float[2] x) => (float[2] y) {
        [choice] y = If (c) <
            then_branch = t () => (float[2] gone) { a = Neg(x) },
            else_branch = e () => (float[2] b) { b = Identity(x) }>
    }""",
    "'gone' is not defined",
    "then_branch of If 'choice'",
)
text(
    "two nodes with one output",
    "g (float[2] x) => (float[2] y) { y = Neg(x) [second] y = Abs(x) }",
    "'y' is defined twice",
    "Abs 'second'",
)
text(
    "a node that redefines an input",
    "g (float[2] x) => (float[2] y) { x = Neg(x) y = Abs(x) }",
    "'x' is defined twice",
    "Neg giving 'x'",
)
text(
    "a node that redefines an initializer",
    "g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { w = Neg(x) y = Abs(w) }",
    "'w' is defined twice",
    "Neg giving 'w'",
)
text(
    "two inputs with one name",
    "g (float[2] x, float[2] x) => (float[2] y) { y = Neg(x) }",
    "'x' is defined twice",
    "graph input 'x'",
)
text(
    "a repeated name deep inside",
    """g (bool c, float[2] x) => (float[2] y) {
        [outer] y = If (c) <
            then_branch = t () => (float[2] a) {
                [inner] a = If (c) <
                    then_branch = tt () => (float[2] p) { p = Neg(x) [again] p = Abs(x) },
                    else_branch = te () => (float[2] q) { q = Neg(x) }>
            },
            else_branch = e () => (float[2] b) { b = Identity(x) }>
    }""",
    "'p' is defined twice",
    "Abs 'again', in then_branch of If 'inner', in then_branch of If 'outer'",
)


@edited("two initializers with one name", PLAIN, "'w' is defined twice", "initializer 'w'")
def _two_initializers(model: onnx.ModelProto) -> None:
    for value in (1.0, 2.0):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.float32), "w"))


# Cycles.

text(
    "a cycle of two nodes",
    "g (float[2] x) => (float[2] y) { [one] a = Add(x, b) [two] b = Neg(a) y = Abs(b) }",
    "cycle",
    "Add 'one'",
    "Neg 'two'",
)
text(
    "a node that reads itself",
    "g (float[2] x) => (float[2] y) { [self] y = Add(x, y) }",
    "cycle",
    "Add 'self' -> Add 'self'",
)
text(
    "a cycle through a capture",
    """g (bool c, float[2] x) => (float[2] y) {
        [choice] y = If (c) <
            then_branch = t () => (float[2] a) { a = Neg(z) },
            else_branch = e () => (float[2] b) { b = Identity(x) }>
        [after] z = Abs(y)
    }""",
    "cycle",
    "If 'choice'",
    "Abs 'after'",
)
text(
    "a cycle in a loop body",
    """g (int64 n, bool c, float[2] x) => (float[2] y) {
        [loop] y = Loop (n, c, x) <
            body = b (int64 i, bool ci, float[2] s) => (bool ci, float[2] t) {
            [p] t = Add(s, u) [q] u = Neg(t)
        }>
    }""",
    "cycle",
    "Add 'p'",
    "body of Loop 'loop'",
)

# Operators.

text(
    "an unknown operator",
    "g (float[2] x) => (float[2] y) { [odd] y = Sigmod(x) }",
    "no operator Sigmod",
    "Perhaps Sigmoid",
    "Sigmod 'odd'",
)
text(
    "an operator of a later opset",
    "g (float[2] x) => (float[2] y) { y = Gelu(x) }",
    "Gelu was added to ai.onnx in opset 20",
    "opset 20 or higher",
)
text(
    "an operator that was removed",
    "g (float[1,1,2,2] x, float[4] s) => (float[1,1,4,4] y) { y = Upsample(x, s) }",
    "Upsample was removed",
    "opset 9 or lower",
)
text(
    "an unknown operator in a body",
    """g (bool c, float[2] x) => (float[2] y) {
        [choice] y = If (c) <
            then_branch = t () => (float[2] a) { [odd] a = Fancy(x) },
            else_branch = e () => (float[2] b) { b = Identity(x) }>
    }""",
    "no operator Fancy",
    "Fancy 'odd', in then_branch of If 'choice'",
)
text(
    "too few inputs",
    "g (float[2] x) => (float[2] y) { [add] y = Add(x) }",
    "Add lacks its input 'B' (number 2)",
    "Add 'add'",
)


@edited(
    "a required input left out",
    "g (float[2,2] x) => (float[2,2] y) { [mm] y = MatMul(x, x) }",
    "MatMul lacks its input 'A' (number 1)",
    "MatMul 'mm'",
)
def _omitted_input(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = ""


text(
    "too many inputs",
    "g (float[2] x) => (float[2] y) { [neg] y = Neg(x, x) }",
    "Neg has 2 inputs",
    "at most 1",
)
text(
    "too many outputs",
    "g (float[2] x) => (float[2] y) { [neg] y, z = Neg(x) }",
    "Neg has 2 outputs",
    "at most 1",
)
text(
    "an attribute the operator does not have",
    "g (float[2] x) => (float[2] y) { [neg] y = Neg <axis = 1> (x) }",
    "attribute 'axis'",
    "Neg 'neg'",
)
text(
    "an attribute that is missing",
    "g (float[2] x) => (int64[2] y) { [cast] y = Cast (x) }",
    "Cast lacks its attribute 'to'",
    "Cast 'cast'",
)
text(
    "an attribute of the wrong type",
    "g (float[2,2] x) => (float[2,2] y) { [soft] y = Softmax <axis = 1.5> (x) }",
    "'axis' of Softmax is FLOAT",
    "takes INT",
)
text(
    "an equation that onnx reads for ever",
    """g (float[2,2] x, float[2,2] y) => (float[2,2] z) {
    [sum] z = Einsum <equation = "......ii,...jj->...ij"> (x, y) }""",
    "'......ii,...jj->...ij' of Einsum",
    "Einsum 'sum'",
)
text(
    "an equation with a digit",
    """g (float[2,2] x) => (float[2,2] z) { [sum] z = Einsum <equation = "i1->1i"> (x) }""",
    "'i1->1i' of Einsum",
)
text(
    "an equation whose result has a letter of no operand",
    """g (float[N] x, float[M] y) => (float[N,M] z) { [sum] z = Einsum <equation = "i,j->ik"> (x, y) }""",
    "'i,j->ik' of Einsum",
)
text(
    "an equation whose result has a letter twice",
    """g (float[2,2] x) => (float[2,2] z) { [sum] z = Einsum <equation = "ij->ii"> (x) }""",
    "'ij->ii' of Einsum",
)
text(
    "an equation for another number of operands",
    """g (float[2] x, float[2] y) => (float[2] z) { [sum] z = Einsum <equation = "i->i"> (x, y) }""",
    "'i->i' of Einsum",
)
text(
    "a permutation that names an axis twice",
    "g (float[2,2] x) => (float[2,2] y) { [turn] y = Transpose <perm = [1, 1]> (x) }",
    "'perm' of Transpose is [1, 1]",
    "Transpose 'turn'",
)
text(
    "an element type that ONNX does not have",
    "g (float[2] x) => (float[2] y) { [cast] y = Cast <to = 99> (x) }",
    "'to' of Cast is 99",
    "Cast 'cast'",
)
text(
    "weights of another hidden size",
    """g (float[T,B,2] x) => (float[T,1,B,3] y)
        <float[1,3,2] w = {1,2,3,4,5,6}, float[1,3,3] r = {1,2,3,4,5,6,7,8,9}> {
        [cell] y = RNN <hidden_size = 4> (x, w, r) }""",
    "weights W of RNN have shape [1, 3, 2], where the operator needs [1, 4, features]",
    "RNN 'cell'",
)
text(
    "recurrent weights that are no square",
    """g (float[T,B,2] x) => (float[T,1,B,3] y)
        <float[1,3,2] w = {1,2,3,4,5,6}, float[1,3,2] r = {1,2,3,4,5,6}> {
        [cell] y = RNN <hidden_size = 3> (x, w, r) }""",
    "weights R of RNN have shape [1, 3, 2], where the operator needs [1, 3, 3]",
    "RNN 'cell'",
)
text(
    "weights of another number of gates",
    """g (float[T,B,1] x, float[1,3,1] w) => (float[T,1,B,1] y) <float[1,4,1] r = {1,2,3,4}> {
        [cell] y = GRU (x, w, r) }""",
    "weights R of GRU have shape [1, 4, 1], where the operator needs [1, 3, 1]",
)
text(
    "weights of another number of directions",
    """g (float[T,B,1] x, float[2,4,1] r) => (float[T,2,B,1] y) <float[1,4,1] w = {1,2,3,4}> {
        [cell] y = LSTM <direction = "bidirectional", hidden_size = 1> (x, w, r) }""",
    "weights W of LSTM have shape [1, 4, 1], where the operator needs [2, 4, features]",
)
text(
    "no element type",
    "g (float[2,2] x) => (float[2,2] y) { [eye] y = EyeLike <dtype = 0> (x) }",
    "'dtype' of EyeLike is 0, which is no element type",
)
text(
    "an element type that came later",
    """<ir_version: 8, opset_import: ["" : 13]>
    g (float[2] x) => (float[2] y) { [cast] c = Cast <to = 17> (x) y = Cast <to = 1> (c) }""",
    "its result would be tensor(float8e4m3fn), which the operator does not give in this opset",
    "Cast 'cast'",
)
text(
    "a window of an element type that no window has",
    "g (int64 n) => (bool[K] y) { [window] y = HannWindow <output_datatype = 9> (n) }",
    "'output_datatype' of HannWindow is 9, so that its result would be tensor(bool)",
    "HannWindow 'window'",
)
text(
    "an element type that the operator never gives",
    "g (float[2,2] x) => (bool[2,2] y) { [random] y = RandomNormalLike <dtype = 9> (x) }",
    "its result would be tensor(bool)",
    "RandomNormalLike 'random'",
)
text(
    "weights of another rank",
    """g (float[T,B,1] x, float[1,1,1] r) => (float[T,1,B,1] y) <float[4] w = {1,2,3,4}> {
        [cell] y = LSTM (x, w, r) }""",
    "weights W of LSTM have shape [4]",
    "LSTM 'cell'",
)
text(
    "an operator of onnxruntime without an attribute",
    """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[B,S,8] x) => (float[B,S,8] y) {
        [heads] y = com.microsoft.MultiHeadAttention (x, x, x) }""",
    "lacks its attribute 'num_heads'",
    "MultiHeadAttention 'heads'",
)
text(
    "an operator of onnxruntime without an input",
    """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[B,S,8] x) => (float[B,S,8] y) { [norm] y = com.microsoft.SkipLayerNormalization (x) }""",
    "SkipLayerNormalization lacks its input 'skip'",
    "SkipLayerNormalization 'norm'",
)
text(
    "an operator of onnxruntime with an attribute of the wrong type",
    """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[2,2] x) => (float[2,2] y) { [gemm] y = com.microsoft.FusedGemm <alpha = "x"> (x, x) }""",
    "'alpha' of FusedGemm is STRING",
    "takes FLOAT",
)
text(
    "an operator of onnxruntime with an attribute that it does not have",
    """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[2] x) => (float[2] y) { [gelu] y = com.microsoft.Gelu <steep = 3> (x) }""",
    "Gelu has an attribute 'steep'",
    "Gelu 'gelu'",
    "install the onnxruntime",
)
text(
    "an operator of onnxruntime with too many inputs",
    """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[2] x) => (float[2] y) { [gelu] y = com.microsoft.Gelu (x, x) }""",
    "Gelu has 2 inputs, the operator has at most 1",
    "Gelu 'gelu'",
)

# Control flow.

text(
    "an If without else",
    """g (bool c, float[2] x) => (float[2] y) {
        [choice] y = If (c) <then_branch = t () => (float[2] a) { a = Neg(x) }>
    }""",
    "lacks its attribute 'else_branch'",
    "If 'choice'",
)
text(
    "branches with different numbers of outputs",
    """g (bool c, float[2] x) => (float[2] y) {
        [choice] y = If (c) <
            then_branch = t () => (float[2] a, float[2] b) { a = Neg(x) b = Abs(x) },
            else_branch = e () => (float[2] d) { d = Identity(x) }>
    }""",
    "then_branch has 2 outputs",
    "the If has 1",
)
text(
    "a branch with an input",
    """g (bool c, float[2] x) => (float[2] y) {
        [choice] y = If (c) <
            then_branch = t (float[2] p) => (float[2] a) { a = Neg(p) },
            else_branch = e () => (float[2] b) { b = Identity(x) }>
    }""",
    "then_branch has 1 inputs",
    "If 'choice'",
)
text(
    "a Loop whose body lacks a carried value",
    """g (int64 n, bool c, float[2] x) => (float[2] y) {
        [loop] y = Loop (n, c, x) <body = b (int64 i, bool ci) => (bool ci, float[2] t) {
            t = Neg(x)
        }>
    }""",
    "body has 2 inputs, but 3 are needed",
    "body of Loop 'loop'",
)
text(
    "a Loop whose body returns too little",
    """g (int64 n, bool c, float[2] x) => (float[2] y, float[n,2] z) {
        [loop] y, z = Loop (n, c, x) <
            body = b (int64 i, bool ci, float[2] s) => (bool ci, float[2] t) { t = Neg(s) }>
    }""",
    "body has 2 outputs, but 3 are needed",
    "1 scan outputs",
)
text(
    "a Scan with too many scan inputs",
    """g (float[3,2] x) => (float[3,2] y) {
        [scan] y = Scan <num_scan_inputs = 2,
            body = b (float[2] s) => (float[2] t) { t = Neg(s) }> (x)
    }""",
    "num_scan_inputs is 2",
    "Scan 'scan'",
)
text(
    "a Scan whose body has another arity",
    """g (float[3,2] x) => (float[3,2] y) {
        [scan] y = Scan <num_scan_inputs = 1,
            body = b (float[2] s, float[2] r) => (float[2] t) { t = Add(s, r) }> (x)
    }""",
    "body has 2 inputs, but the Scan has 1",
    "body of Scan 'scan'",
)

# Types.

text(
    "operands of different types",
    "g (float[2] x, int64[2] k) => (float[2] y) { [add] y = Add(x, k) }",
    "tensor(float)",
    "tensor(int64)",
    "Add 'add', value 'k'",
    "Cast",
)
text(
    "a type the operator does not take",
    "g (string[2] x) => (string[2] y) { [neg] y = Neg(x) }",
    "Neg does not take tensor(string)",
    "Neg 'neg'",
)
text(
    "a condition that is not a bool",
    """g (float c, float[2] x) => (float[2] y) {
        [choice] y = If (c) <
            then_branch = t () => (float[2] a) { a = Neg(x) },
            else_branch = e () => (float[2] b) { b = Identity(x) }>
    }""",
    "If does not take tensor(float) as its input 'cond'",
)
text(
    "an output declared with another type",
    "g (float[2] x) => (int64[2] y) { [neg] y = Neg(x) }",
    "tensor(float), but is declared as tensor(int64)",
    "output 'y' of Neg 'neg'",
)
text(
    "branches of different types",
    """g (bool c, float[2] x, int64[2] k) => (float[2] y) {
        [choice] y = If (c) <
            then_branch = t () => (float[2] a) { a = Neg(x) },
            else_branch = e () => (int64[2] b) { b = Neg(k) }>
    }""",
    "tensor(float)",
    "tensor(int64)",
    "If 'choice'",
)
text(
    "a carried value of another type",
    """g (int64 n, bool c, float[2] x) => (float[2] y) {
        [loop] y = Loop (n, c, x) <
            body = b (int64 i, bool ci, double[2] s) => (bool ci, double[2] t) { t = Neg(s) }>
    }""",
    "tensor(float)",
    "tensor(double)",
    "input 's' of the body of Loop 'loop'",
)
text(
    "types that clash inside a body",
    """g (bool c, float[2] x, int64[2] k) => (float[2] y) {
        [choice] y = If (c) <
            then_branch = t () => (float[2] a) { [mul] a = Mul(x, k) },
            else_branch = e () => (float[2] b) { b = Identity(x) }>
    }""",
    "Mul 'mul', value 'k', in then_branch of If 'choice'",
)


@edited("an initializer of a negative size", PLAIN, "negative size", "initializer 'w'")
def _negative_size(model: onnx.ModelProto) -> None:
    model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[2, -3])


@edited("an initializer of an unknown type", PLAIN, "element type 99", "initializer 'w'")
def _unknown_type(model: onnx.ModelProto) -> None:
    model.graph.initializer.add(name="w", data_type=99, dims=[1])
