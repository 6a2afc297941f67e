"""Facts by onnx's own inference hold on onnxruntime."""

from __future__ import annotations

from ...fact_cases import Case, cases

OTHER = {
    "text": Case("g (string[2] x) => (y) { y = StringNormalizer<stopwords: strings = []>(x) }"),
    "unique": Case("g (float[N] x) => (y, i) { y, i = Unique(x) }", {"y": "(None,)"}),
    "compress": Case("g (float[N] x, bool[N] c) => (y) { y = Compress<axis=0>(x, c) }"),
    "cumulative": Case("g (float[N,M] x) => (y) { y = Trilu<upper=0>(x) }", {"y": "(N, M)"}),
    "window": Case("g () => (y) <int64 n = {5}> { y = HannWindow(n) }"),
    "non_max": Case(
        """g (float[1,N,4] b, float[1,2,N] s) => (y) <int64[1] k = {3}> {
        y = NonMaxSuppression(b, s, k) }"""
    ),
    "local_domain": Case("g (float[N,3] x) => (y, z) { y = com.microsoft.Trilu(x) z = Exp(y) }"),
}  # fmt: skip


@cases(OTHER)
def test_by_schema(case: Case) -> None:
    case.check()
