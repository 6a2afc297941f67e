"""ArrayFeatureExtractor, Binarizer and TfIdfVectorizer against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from looplift.rewrite.errors import UnsupportedError

from .inputs import Load, random

LEARNING = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>\n'


def test_array_feature_extractor_and_binarizer(imported: Load) -> None:
    model = imported(
        LEARNING
        + """g (float[n, m] x, float[m] v, int64[k] at) => (float[?, ?] y, float[?, ?] z, float[n, m] b) {
            y = ai.onnx.ml.ArrayFeatureExtractor (x, at)
            z = ai.onnx.ml.ArrayFeatureExtractor (v, at)
            b = ai.onnx.ml.Binarizer <threshold = 0.5> (x)
        }"""
    )
    model.check(random(3, 4), random(4), np.array([3, 0, 3]))
    (_, _, bits) = model.run(np.array([[0.5, 0.6]], np.float32), random(2), np.array([0]))
    np.testing.assert_array_equal(bits, [[0, 1]])


VECTORIZE = """TfIdfVectorizer <mode = "{}", min_gram_length = 1, max_gram_length = 2,
    max_skip_count = 2, ngram_counts = [0, 2], ngram_indexes = [3, 0, 1, 2],
    pool_int64s = [2, 5, 5, 6, 7, 5] {}>"""
WEIGHTS = ", weights = [1.5, 2.0, 3.0, 4.0]"


def test_tf_idf_vectorizer(imported: Load) -> None:
    model = imported(
        f"""g (int64[b, n] x, int64[n] v) =>
          (float[?, ?] y, float[?, ?] z, float[?, ?] w, float[?] u) {{
            y = {VECTORIZE.format("TF", "")} (x)
            z = {VECTORIZE.format("IDF", WEIGHTS)} (x)
            w = {VECTORIZE.format("TFIDF", WEIGHTS)} (x)
            u = {VECTORIZE.format("IDF", "")} (v)
        }}"""
    )
    x = np.array([[5, 6, 7, 5, 2, 2], [1, 5, 1, 6, 5, 5]])
    model.check(x, x[0])
    model.check(np.array([[5]]), np.array([2]))


def test_another_number_of_weights_and_strings_are_refused(imported: Load) -> None:
    text = "g (int64[n] x) => (float[?] y) {{ y = {} (x) }}"
    one = VECTORIZE.format("IDF", ", weights = [1.5]")
    with pytest.raises(UnsupportedError, match="there are 1 weights for 4 n-grams"):
        imported(text.format(one))
    strings = one.replace("pool_int64s = [2, 5, 5, 6, 7, 5]", 'pool_strings = ["a"]')
    with pytest.raises(UnsupportedError, match="the n-grams are strings"):
        imported(text.format(strings))
