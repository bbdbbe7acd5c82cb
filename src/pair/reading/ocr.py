"""OCR of scanned pages with RapidOCR, whose wheel includes the models. Nothing is downloaded."""

import contextlib
import functools
import re
from pathlib import Path
from typing import Any

import rapidocr
from rapidocr.inference_engine.onnxruntime.main import ONNXRuntimeError

from pair.files import resource
from pair.reading.contract import OCR_CPU_SECONDS, OCR_MEMORY_BYTES, UnreadableDocument

_DOTS_PER_INCH = 150
_MOST_PIXELS = 8_000_000
"""Maximum number of pixels of a page; A3 has 4 million. A larger page gets a lower resolution."""
_POINTS_PER_INCH = 72
_GAP = 0.8
"""Minimum space above a line that begins a paragraph, as a share of its height."""


def allow_ocr() -> None:
    """Raise the limits of this process, if any, by the time and memory for OCR."""
    if resource is None:
        return
    for kind, more in ((resource.RLIMIT_CPU, OCR_CPU_SECONDS), (resource.RLIMIT_AS, OCR_MEMORY_BYTES)):
        soft, hard = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (soft + more, hard))


def recognise(page: Any) -> str:
    """Return the text of a PDF page, with a blank line between paragraphs. Raises UnreadableDocument, MemoryError."""
    width, height = page.get_size()
    scale = min(_DOTS_PER_INCH / _POINTS_PER_INCH, (_MOST_PIXELS / max(width * height, 1)) ** 0.5)
    bitmap = page.render(scale=scale, rev_byteorder=True, prefer_bgrx=False)
    try:
        found = _open_engine()(bitmap.to_numpy())
    except ONNXRuntimeError as fault:
        if "bad_alloc" in str(fault):
            raise MemoryError from fault
        raise UnreadableDocument("is a scan that OCR cannot read") from fault
    finally:
        bitmap.close()
    text, bottom = "", 0.0
    for box, line in zip(found.boxes if found.boxes is not None else (), found.txts or (), strict=True):
        top, end = float(min(corner[1] for corner in box)), float(max(corner[1] for corner in box))
        text += ("\n\n" if top - bottom > _GAP * (end - top) else "\n") + line
        bottom = end
    return re.sub(r"[ \t]+", " ", text).strip()


@functools.cache
def _open_engine() -> Any:
    models = Path(rapidocr.__file__).parent / "models"
    settings = {
        # Named models are never downloaded.
        "Det.model_path": str(next(models.glob("*_det_*.onnx"))),
        "Rec.model_path": str(next(models.glob("*_rec_*.onnx"))),
        "Global.use_cls": False,
        # Lines are found in a smaller copy, which takes half of the memory, and read at full resolution.
        "Det.limit_type": "max",
        "Det.limit_side_len": 960,
        # A batch pads short lines, which then lose spaces.
        "Rec.rec_batch_num": 1,
        "Global.log_level": "critical",
        # One thread: there is a child for each core.
        "EngineConfig.onnxruntime.intra_op_num_threads": 1,
        "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    }
    return rapidocr.RapidOCR(params=settings)
