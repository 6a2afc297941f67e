"""Linear attention: recurrences over outer products become matrix products over chunks of time.

    S_t = a_t * S_(t-1) + k_t ⊗ v_t        o_t = q_t · S_t

Retention, gated linear attention, RWKV and Mamba 2 carry such a matrix S. Within a chunk,

    o_i = sum over j <= i of (q_i · p_ij k_j) v_j  +  (p_i q_i) · S

Here S is the carried value before the chunk, p_ij is the product of the factors a after iteration j
up to iteration i, and p_i is the product of all factors of the chunk up to iteration i. The sums are
matrix products over all chunks at once; a Scan over the chunks computes each S from the one before
(Sun et al.: Retentive network, 2023; Yang et al.: Gated linear attention transformers with
hardware-efficient training, 2024). The products p are computed factor by factor, without divisions
or logarithms. They cannot grow, because the factors are between -1 and 1.
"""

from __future__ import annotations

from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ..loops.counted_loop_checks import need_counted_loop
from ..vectorization.independent_work import need_independent_work
from .linear_attention_chunks import ChunkedProducts
from .linear_attention_matching import LinearAttention, LinearAttentionMatcher

_MIN_ITERATIONS = 16


class ChunkLinearAttention(Rule[LinearAttention]):
    """Computes a recurrence over outer products that is read by contractions as matrix products."""

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="sums and products in another order",
        nonfinite="an infinite or NaN slice reaches earlier iterations of its chunk, and so does a "
        "product of a query and a later key that overflows",
        accepts="those that read past the end of the sequence",
    )
    fires = """g (float[T,16] q, float[T,16] k, float[T,16] v, float[T,1,1] f, float[16,16] s0) => (float[16,16] s, float[T,1,16] y)
      <int64[1] first = {0}, int64[1] last = {1}> {
      a = Sigmoid(f)
      s, y = Scan <num_scan_inputs=4, body = b (float[16,16] u, float[16] qt, float[16] kt, float[16] vt, float[1,1] at) => (float[16,16] un, float[1,16] o) {
        kc = Unsqueeze(kt, last) vr = Unsqueeze(vt, first) kv = Mul(kc, vr)
        d = Mul(at, u) un = Add(d, kv) qr = Unsqueeze(qt, first) o = MatMul(qr, un) }> (s0, q, k, v, a) }"""
    spares = {
        "may grow": """g (float[T,16] q, float[T,16] k, float[T,16] v, float[T,1,1] a, float[16,16] s0) => (float[16,16] s, float[T,1,16] y)
      <int64[1] first = {0}, int64[1] last = {1}> {
      s, y = Scan <num_scan_inputs=4, body = b (float[16,16] u, float[16] qt, float[16] kt, float[16] vt, float[1,1] at) => (float[16,16] un, float[1,16] o) {
        kc = Unsqueeze(kt, last) vr = Unsqueeze(vt, first) kv = Mul(kc, vr)
        d = Mul(at, u) un = Add(d, kv) qr = Unsqueeze(qt, first) o = MatMul(qr, un) }> (s0, q, k, v, a) }""",
        "varies along every axis": """g (float[T,16] q, float[T,16] k, float[T,16] v, float[T,16,16] f, float[16,16] s0) => (float[16,16] s, float[T,1,16] y)
      <int64[1] first = {0}, int64[1] last = {1}> {
      a = Sigmoid(f)
      s, y = Scan <num_scan_inputs=4, body = b (float[16,16] u, float[16] qt, float[16] kt, float[16] vt, float[16,16] at) => (float[16,16] un, float[1,16] o) {
        kc = Unsqueeze(kt, last) vr = Unsqueeze(vt, first) kv = Mul(kc, vr)
        d = Mul(at, u) un = Add(d, kv) qr = Unsqueeze(qt, first) o = MatMul(qr, un) }> (s0, q, k, v, a) }""",
        "no carried value is read by contractions only": """g (float[T,3] xs, float[3] s0) => (float[3] y) {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so) {
        p = Mul(s, xt) so = Sin(p) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> LinearAttention:
        loop = need_counted_loop(m)
        m.need(m.facts.opset >= EMPTY_RESHAPES, NO_EMPTY_RESHAPES)
        few = "it has {} iterations, too few for chunks"
        enough = not isinstance(loop.count, int) or loop.count >= _MIN_ITERATIONS
        m.need(enough, few, loop.count)
        nodes = [m.producer(c.output, "Add") for c in loop.carried]
        none = "no carried value is read by contractions only"
        m.need(any(nodes), none)
        work = need_independent_work(m)

        def attention(number: int) -> LinearAttention | None:
            node = nodes[number]
            return None if node is None else LinearAttentionMatcher(m, work, number).find(node)

        return m.first(attention, range(len(nodes)), none)

    def apply(self, patch: Patch, found: LinearAttention) -> None:
        loop, carried = found.loop, found.carried
        edit = patch.loop(loop.node)
        edit.declare_scan_outputs(loop)
        results, final = ChunkedProducts(patch, found).build()
        edit.read_slices([(read.result, r) for read, r in zip(found.reads, results)])
        for read in found.reads:
            patch.remove(read.node)
        if carried.final is not None and patch.index.use_count(carried.final):
            patch.replace(carried.final, final)
        # The update is dead code that reads the initial value until EliminateDeadNode removes it.
        patch.replace(carried.input, carried.initial)
        edit.drop_carried([found.number])
        patch.split_loop()
