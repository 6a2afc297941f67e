from __future__ import annotations
import pytest
from ..small_models import parse
from ..equivalence import rewritten, ops
from ..rewrite.fact_oracle import Feeds
C = {
"where_guard": ("g (float[3] x, float[N] z, bool c) => (float[3] y) { y = If(c) <then_branch = t () => (float[3] a) { a = Add(x,z) }, else_branch = e () => (float[3] b) { b = Identity(x) }> }", {}),
"where_cast": ("g (string[1] s, bool c) => (float[1] y) <float[1] k={1}> { y = If(c) <then_branch = t () => (float[1] a) { a = Cast<to=1>(s) }, else_branch = e () => (float[1] b) { b = Identity(k) }> }", {}),
"pow_cast": ("g (float[1] x, int64 z) => (float[1] y) { a = com.microsoft.Gelu(x) p = Pow(a,z) c = Cast<to=7>(p) y = Cast<to=1>(c) }", {}),
"concat_empty": ("g (float[A,2] x, float[B,3] y, bool c) => (float[Z,K] z) { v = If (c) <then_branch = t () => (float[P,Q] a) { a = Identity(x) }, else_branch = e () => (float[P,Q] b) { b = Identity(y) }> z = Concat<axis=0>(v, y) }", {}),
"seqat": ("g (float[A] x, float[B] y) => (bool c) <int64 i={0}, int64 j={1}> { s = SequenceConstruct(x,y) u=SequenceAt(s,i) v=SequenceAt(s,j) su=Shape(u) sv=Shape(v) e=Equal(su,sv) ax=Constant<value_ints=[0]>() c=Squeeze(e,ax) }", {}),
"uint32": ("g (uint32 x) => (bool c) <uint32 k={5}> { z = Sub(x,k) d = Less(z,x) c=Not(d) }", {"x":[3,7]}),
"stale":  ("g (float[5] x, int64 m, int64[1] k) => (float[Y] y, bool[B] d) <int64[1] k0={0}, int64[1] five={5}, bool[1] d0={0}> { y, d = Loop(m,,x,d0) <body = b (int64 i, bool ci, float[S] s, bool[1] di) => (bool co, float[K] so, bool[1] do) { co = Identity(ci) t = Slice(s, k0, k) n = Shape(t) do = Greater(n, five) so=Concat<axis=0>(s,t) }> }", {"m":[0,1,3],"k":[[20],[3],[-1]]}),
}
@pytest.mark.parametrize("k", list(C))
def test(k: str) -> None:
    t, v = C[k]
    m = parse(t, 21, 10)
    m.opset_import.add(domain="com.microsoft", version=1)
    r=rewritten(m, Feeds(values=v))
    print(ops(r.model), r.report.commits)
