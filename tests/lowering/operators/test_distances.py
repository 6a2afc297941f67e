"""CDist against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from looplift.rewrite.errors import UnsupportedError

from .inputs import Load, random

CONTRIB = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_distances_of_rows(imported: Load, metric: str, dtype: str) -> None:
    """No two rows are equal: those have a distance that is not 0 in onnxruntime."""
    model = imported(f"""{CONTRIB}
        g ({dtype}[m, k] x, {dtype}[n, k] z) => ({dtype}[m, n] y) {{
            y = com.microsoft.CDist <metric = "{metric}"> (x, z) }}""")
    kind = np.float32 if dtype == "float" else np.float64
    for rows, others, width in ((5, 3, 4), (1, 1, 1), (33, 17, 20)):
        model.check(random(rows, width).astype(kind), random(others, width).astype(kind) + 1)
    (result,) = model.run(np.zeros((0, 3), kind), np.zeros((2, 3), kind))
    assert result.shape == (0, 2)


def test_rows_of_different_sizes(imported: Load) -> None:
    """A run with them fails instead of reading other memory."""
    model = imported(f"""{CONTRIB}
        g (float[m, k] x, float[n, l] z) => (float[m, n] y) {{
            y = com.microsoft.CDist (x, z) }}""")
    with pytest.raises(Exception, match="mismatch"):
        model.run(random(2, 3), random(2, 2))


def test_another_metric_is_refused(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="cosine"):
        imported(f"""{CONTRIB}
        g (float[m, 3] x) => (float[m, m] y) {{
            y = com.microsoft.CDist <metric = "cosine"> (x, x) }}""")
