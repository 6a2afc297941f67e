"""Operators of ai.onnx.ml and TfIdfVectorizer against onnxruntime."""

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


def test_scaler_and_normalizer(imported: Load) -> None:
    model = imported(
        LEARNING
        + """g (float[n, 3] x, int64[n, 3] k) => (float[n, 3] s, float[n, 3] t, float[n, 3] a, float[n, 3] b, float[n, 3] c) {
            s = ai.onnx.ml.Scaler <offset = [1.0, 2.0, 3.0], scale = [0.5, 2.0, -1.0]> (x)
            t = ai.onnx.ml.Scaler <offset = [1.0], scale = [0.5]> (k)
            a = ai.onnx.ml.Normalizer <norm = "MAX"> (x)
            b = ai.onnx.ml.Normalizer <norm = "L1"> (x)
            c = ai.onnx.ml.Normalizer <norm = "L2"> (x)
        }"""
    )
    model.check(random(4, 3), np.arange(12).reshape(4, 3))
    model.check(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_linear_models(imported: Load, transform: str) -> None:
    weights = "coefficients = [0.5, -1.0, 2.0, 0.25, 1.5, -0.5, -2.0, 1.0, 0.0]"
    model = imported(
        LEARNING
        + f"""g (float[n, 3] x, int64[n, 3] k) => (float[n, 3] y, float[n, 1] z, int64[n] l, float[n, 3] s, int64[n] m, float[n, 3] t) {{
            y = ai.onnx.ml.LinearRegressor <{weights}, intercepts = [0.5, 0.0, -1.0], targets = 3> (x)
            z = ai.onnx.ml.LinearRegressor <coefficients = [0.5, -1.0, 2.0]> (x)
            l, s = ai.onnx.ml.LinearClassifier <{weights}, intercepts = [0.5, 0.0, -1.0],
                classlabels_ints = [7, 3, 5], post_transform = "{transform}"> (x)
            m, t = ai.onnx.ml.LinearClassifier <{weights}, intercepts = [0.0, 0.0, 0.0],
                classlabels_ints = [0, 1, 2], post_transform = "{transform}"> (k)
        }}"""
    )
    model.check(random(4, 3), np.arange(12).reshape(4, 3) % 5)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ('classlabels_strings = ["a", "b"], coefficients = [1.0, 2.0]', "labels are strings"),
        ("classlabels_ints = [0, 1], coefficients = [1.0, 2.0, 3.0]", "3 coefficients for 2"),
        ("classlabels_ints = [0, 1], coefficients = [1.0]", "1 coefficients for 2"),
        (
            "classlabels_ints = [0, 1], coefficients = [1.0, 2.0], intercepts = [1.0]",
            "1 intercepts",
        ),
        (
            'classlabels_ints = [0, 1], coefficients = [1.0, 2.0], post_transform = "PROBIT"',
            "must be NONE",
        ),
    ],
)
def test_other_classifiers_are_refused(imported: Load, attributes: str, words: str) -> None:
    text = f"""g (float[n, 1] x) => (int64[n] l, float[n, 2] s) {{
        l, s = ai.onnx.ml.LinearClassifier <{attributes}> (x) }}"""
    with pytest.raises(UnsupportedError, match=words):
        imported(LEARNING + text)


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


def test_gaps_longer_than_a_row(imported: Load) -> None:
    many = VECTORIZE.format("TF", "").replace("max_skip_count = 2", "max_skip_count = 4000000000")
    model = imported(f"g (int64[6] x) => (float[?] y) {{ y = {many} (x) }}")
    model.check(np.array([5, 6, 7, 5, 2, 2]))
    with pytest.raises(UnsupportedError, match="may be skipped, more than 255"):
        imported(f"g (int64[n] x) => (float[?] y) {{ y = {many} (x) }}")


def test_places_beyond_any_row(imported: Load) -> None:
    far = VECTORIZE.format("TF", "").replace("[3, 0, 1, 2]", "[3, 0, 1, 4000000000]")
    with pytest.raises(UnsupportedError, match="are not all from 0 to 1048575"):
        imported(f"g (int64[6] x) => (float[?] y) {{ y = {far} (x) }}")


def test_label_encoder(imported: Load) -> None:
    """Elements that are no keys get the default, and so does NaN."""
    model = imported(
        LEARNING
        + """g (int64[n, m] k, float[n] x) => (float[n, m] a, int64[n, m] b, int64[n] c, float[n] d) {
            a = ai.onnx.ml.LabelEncoder
                <keys_int64s = [7, -2, 3], values_floats = [0.5, 1.5, -3.0], default_float = 9.0> (k)
            b = ai.onnx.ml.LabelEncoder <keys_int64s = [7, 5], values_int64s = [1, 2]> (k)
            c = ai.onnx.ml.LabelEncoder
                <keys_floats = [0.5, -1.0], values_int64s = [4, 6], default_int64 = 8> (x)
            d = ai.onnx.ml.LabelEncoder <keys_floats = [0.5], values_floats = [2.0]> (x)
        }"""
    )
    x = np.array([0.5, -1, 0, np.nan, np.inf, -np.inf], np.float32)
    model.check(np.array([[7, -2], [3, 4], [5, 8], [-9, 0], [1, 1], [2, 7]]), x)
    model.check(np.array([[3]]), x[:1])
    model.check(np.zeros((0, 2), np.int64), x[:0])


def test_label_encoder_of_tensors(imported: Load) -> None:
    model = imported(
        '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 4]>'
        """g (double[n] x) => (double[n] y) {
            y = ai.onnx.ml.LabelEncoder <keys_tensor = double[2] {0.1, 2.0},
                values_tensor = double[2] {5.5, -6}, default_tensor = double[1] {3}> (x)
        }"""
    )
    model.check(np.array([0.1, 2, 0.3, -1]))


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ('keys_strings = ["a"], values_int64s = [1]', "keys are strings"),
        ('keys_int64s = [1], values_strings = ["a"]', "values are strings"),
        ("keys_int64s = [1, 1], values_int64s = [1, 2]", "two keys are equal"),
        ("keys_int64s = [1, 2], values_int64s = [1]", "2 keys and 1 values"),
    ],
)
def test_label_encoders_that_are_refused(imported: Load, attributes: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        imported(
            f"{LEARNING}g (int64[n] x) => (int64[n] y) {{"
            f" y = ai.onnx.ml.LabelEncoder <{attributes}> (x) }}"
        )
