"""The tables of the README that benchmarks measure.

    python benchmarks/readme_tables.py [NAME ...]

Copies `results/NAME.json` to `published/`, and writes all tables from there into the README. Each
table stands after a line `<!-- benchmarks/published/NAME.json -->`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PUBLISHED = FOLDER / "published"
README = FOLDER.parent / "README.md"
NAMES = {
    "tvm": "TVM, its own importer, then `looplift.from_onnx`",
    "openvino": "OpenVINO",
    "opencv": "OpenCV",
    "mnn": "MNN",
    "iree": "IREE",
    "onnxscript": "onnxscript's optimiser",
    "polygraphy": "Polygraphy, fold constants",
}

NETWORKS = {
    "bert": "BERT",
    "crnn": "CRNN",
    "deepspeech2": "Deep Speech 2",
    "gpt2": "GPT-2, one token",
    "gpt2_prefill": "GPT-2, prompt",
    "kokoro": "Kokoro",
    "kokoro_probe": "Kokoro, without noise",
    "mamba": "Mamba",
    "mobilenetv3": "MobileNetV3",
    "resnet50": "ResNet-50",
    "ssdlite": "SSDLite",
    "tacotron2": "Tacotron 2",
    "vits": "VITS",
    "whisper_merged": "Whisper, decoder",
    "yolo": "YOLO",
}

Row = Mapping[str, Any]


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def optimizers(rows: Sequence[Row]) -> str:
    """What is left, the time, and whether results are right."""
    header = ["tool", "Loops and Scans", "Ifs", "nodes", "right on onnxruntime", "CPU seconds"]
    return _table(
        header,
        [
            [
                NAMES.get(row["tool"], row["tool"]),
                row["loops and scans"],
                row["ifs"],
                f"{row['nodes']:,}",
                row["right"],
                f"{row['seconds']:.1f}" if "seconds" in row else "",
            ]
            for row in rows
        ],
    )


def engines(rows: Sequence[Row]) -> str:
    """The models that are computed right, before and after; the best first."""
    header = ["engine", "version", "original", "rewritten with `--for`", "gained", "lost"]
    keys = ("version", "before", "for", "gained for", "lost for")
    best_first = sorted(rows, key=lambda row: -row["for"])
    return _table(
        header,
        [[NAMES.get(row["engine"], row["engine"]), *(row[k] for k in keys)] for row in best_first],
    )


def whole_networks(rows: Sequence[Row]) -> str:
    """The time beside onnxruntime, the fastest first; networks that failed are left out."""
    ratio, both = "ratio, 1 thread(s)", "ratio, 2 thread(s)"
    in_turn = f"{both}, in turn"
    measured = sorted((row for row in rows if ratio in row), key=lambda row: row[ratio])
    header = [
        "network", "one thread", "two threads", "two, calls in turn", "CPU seconds to compile",
        "largest difference",
    ]  # fmt: skip
    return _table(
        header,
        [
            [
                NETWORKS.get(row["network"], row["network"]),
                f"{row[ratio]:.2f}",
                f"{row[both]:.2f}",
                f"{row[in_turn]:.2f}",
                f"{row['compile s']:.0f}",
                _difference(row["difference"]),
            ]
            for row in measured
        ],
    )


def _difference(relative: float) -> str:
    """One digit; empty where elements cannot be compared one by one."""
    return f"{relative:.0e}".replace("e-0", "e-") if relative < _RANDOM else ""


_RANDOM = 1e-2
"""What draws random numbers, or orders results in another way, differs by more than this."""


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "optimizers": optimizers,
    "engines": engines,
    "whole_networks": whole_networks,
}


def rows(name: str) -> list[dict[str, Any]]:
    """The published rows of a benchmark."""
    found: list[dict[str, Any]] = json.loads((PUBLISHED / f"{name}.json").read_text())["rows"]
    return found


def updated(readme: str) -> str:
    """The README with the published tables."""
    for name, write in TABLES.items():
        table = write(rows(name))
        mark = f"<!-- benchmarks/published/{name}.json -->"
        pattern = re.compile(rf"{re.escape(mark)}\n\n(\|.*\n)*")
        readme, count = pattern.subn(f"{mark}\n\n{table}\n".replace("\\", r"\\"), readme)
        if count != 1:
            raise ValueError(f"the README has {count} places for the table {name}")
    return readme


def main() -> None:
    """Copies results and writes the tables."""
    PUBLISHED.mkdir(exist_ok=True)
    for name in sys.argv[1:]:
        shutil.copy(FOLDER / "results" / f"{name}.json", PUBLISHED)
    README.write_text(updated(README.read_text()))


if __name__ == "__main__":
    main()
