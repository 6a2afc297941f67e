from __future__ import annotations
import pytest
from ..small_models import parse
from .fact_oracle import Feeds, check, SIZES
C = {
"reshape0": ("g (float[A,B] x, float[N] n) => (z) <int64[1] f={2}> { s = Shape(n) t = Concat<axis=0>(s,f) z = Reshape(x,t) }", {}),
"loop_stale_high": ("g (float[5] x, int64 m, int64[1] k) => (y) <int64[1] k0={0}> { y = Loop(m,,x) <body = b (int64 i, bool ci, float[S] s) => (bool co, float[K] so) { co = Identity(ci) t = Slice(s, k0, k) n = Shape(t) so=Concat<axis=0>(s,t) }> }", {"m":[0,1,3],"k":[[20],[3],[-1]]}),
}
@pytest.mark.parametrize("k", list(C))
def test(k: str) -> None:
    t, v = C[k]
    m = parse(t, 8 if k=="drop7" else 21, 10)
    for f in Feeds(values=v).of(m): print({k:v.shape for k,v in f.items()})
    check(m, Feeds(values=v))
