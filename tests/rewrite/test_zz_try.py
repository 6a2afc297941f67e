from __future__ import annotations
import pytest
from ..small_models import parse
from .fact_oracle import Feeds, check, SIZES
C = {
"concat_empty": ("g (float[A,D] x, float[B,C] y) => (z) { z = Concat<axis=0>(x,y) }", {}),
"concat_empty_fail": ("g (float[A,4] x, float[B,3] y) => (z) { z = Concat<axis=0>(x,y) }", {}),
"squeeze_empty_axes": ("g (float[1,D] x) => (z) <int64[0] ax = {}> { z = Squeeze(x,ax) }", {}),
"reshape0": ("g (float[A,B] x, float[N] n) => (z) <int64[1] f={2}> { s = Shape(n) t = Concat<axis=0>(s,f) z = Reshape(x,t) }", {}),
"allow-1": ("g (float[A,B] x, int64[2] s) => (z) { z = Reshape<allowzero=1>(x,s) }", {"s":[[-1,2],[2,7]]}),
"resize": ("g (float[10] x) => (z) <float[1] sc = {0.7}> { z = Resize<mode=\"nearest\">(x,,sc) }", {}),
"pool": ("g (float[1,1,L] x) => (z) { z = MaxPool<kernel_shape=[3],strides=[2]>(x) }", {}),
"seqat": ("g (float[A] x, float[B] y) => (u,v) <int64 i={0}, int64 j={1}> { s = SequenceConstruct(x,y) u=SequenceAt(s,i) v=SequenceAt(s,j) }", {}),
"s2s": ("g (float[N] x, int64 k) => (s) { s = SplitToSequence<axis=0,keepdims=0>(x,k) }", {"k":[1,2]}),
"uint32": ("g (uint32 x) => (c) <uint32 k={5}> { z = Sub(x,k) c = Less(z,x) }", {"x":[3,7]}),
"reshape_values": ("g (int64[1] k) => (z) <int64[2,3] x={1,2,3,4,5,6}, int64[1] t={3}> { s = Concat<axis=0>(k,t) y = Reshape(x,s) z = Add(y,y) }", {"k":[[2]]}),
"pow": ("g (float[1] x, int64 z) => (y) { a = com.microsoft.Gelu(x) y = Pow(a,z) }", {}),
"range": ("g () => (y) <float s={0.1},float e={1.0}, float d={0.1}> { y = Range(s,e,d) }", {}),
"castbig": ("g () => (y) <float s={9223372036854775807}> { y = Cast<to=7>(s) z=Identity(y) }", {}),
"loop_stale_high": ("g (float[5] x, int64 m, int64[1] k) => (y) { y = Loop(m,,x) <body = b (int64 i, bool ci, float[S] s) => (bool co, float[K] so) { co = Identity(ci) t = Slice(s, k0, k) n = Shape(t) so=Concat<axis=0>(s,s) }> }".replace("{ y = Loop","<int64[1] k0={0}> { y = Loop"), {"m":[0,1,3],"k":[[20],[3],[-1]]}),
"stopwords": ('g (string[2] x) => (y) { y = StringNormalizer<stopwords: strings=[]>(x) }', {}),
"overflow": ("g (int64 x) => (c) <int64 k={1}> { z = Add(x,k) c = Less(x,z) }", {"x":[3,2**63-1]}),
"drop7": ("g (float[N] x) => (c,d) { c,d = Dropout(x) }", {}),
}
@pytest.mark.parametrize("k", list(C))
def test(k: str) -> None:
    t, v = C[k]
    m = parse(t, 8 if k=="drop7" else 21, 10)
    m.opset_import.add(domain="com.microsoft", version=1)
    check(m, Feeds(values=v))
