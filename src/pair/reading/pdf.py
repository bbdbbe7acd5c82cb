"""PDF files, read with pypdfium2: the text of each page, with joined lines and without ligatures.

The extra `ocr` adds text recognition for scanned pages, with RapidOCR, whose wheel includes the models.
"""

import contextlib
import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pypdfium2
from pypdfium2 import raw

from pair.files import resource
from pair.reading.contract import OCR_CPU_SECONDS, OCR_MEMORY_BYTES, Reading, UnreadableDocument

_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\u00ad": "", "\0": ""}
)
# pdfium writes U+0002 or U+FFFE for a hyphen that divides a word at the end of a line.
_DIVIDED = re.compile(r"[\x02\ufffe]\s*|(?<=[^\W\d_])[-\u2010]\n(?=[a-zß-öø-ÿ])")
_LEADERS = re.compile(r"(?: ?\.){4,}")
"""The dots between a title and its page number in a table of contents."""
_NO_TITLE = re.compile(r"(?i)untitled.*|microsoft \w+ - .*|[\w.-]+\.(docx?|pptx?|xlsx?|tex|dvi|indd|qxd|pdf)")
"""The name of the file that a PDF was made from."""
_SENTENCE_ENDS = (".", ":", "!", "?", "。")
_SHORT_LINE = 0.75
"""Share of the long lines of a page. A shorter line that ends a sentence also ends its paragraph."""
_PASSWORD_ERROR = 4
_LONGEST_FIELD = 100_000
_DOTS_PER_INCH = 150
_MOST_PIXELS = 8_000_000
"""Maximum number of pixels of a page; A3 has 4 million. A larger page gets a lower resolution."""
_POINTS_PER_INCH = 72
_GAP = 0.8
"""Minimum space above a line that begins a paragraph, as a share of its height."""
_NO_OCR = "holds no text, and OCR is not built in: scans need an extra: pip install 'pair-kb[ocr]'"


def read_pdf(content: bytes) -> Reading:
    """Read the text of all pages. Raises UnreadableDocument, including for a PDF that has only pictures."""
    if b"%PDF-" not in content[:1024]:
        raise UnreadableDocument("is damaged, or not a PDF file")
    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as fault:
        is_encrypted = getattr(fault, "err_code", None) == _PASSWORD_ERROR or "password" in str(fault).lower()
        raise UnreadableDocument("is encrypted" if is_encrypted else "is damaged, or cannot be read as .pdf") from fault
    unread: list[int] = []
    try:
        pages = list(_read_pages(document, unread))
        title = document.get_metadata_value("Title")
    except pypdfium2.PdfiumError as fault:
        raise UnreadableDocument("is damaged, or cannot be read as .pdf") from fault
    finally:
        document.close()
    if not pages:
        raise UnreadableDocument("is damaged, or cannot be read as .pdf")
    if not any(page.strip() for page in pages):
        raise UnreadableDocument(_NO_OCR if unread else "holds no text")
    metadata = {"pages": len(pages)} | ({"unread_pages": unread} if unread else {})
    title = " ".join(title.replace("\0", "").split())
    return Reading(_join_pages(pages), "" if _NO_TITLE.fullmatch(title) else title, metadata)


def _read_pages(document: Any, unread: list[int]) -> Iterator[str]:
    """Yield the text of each page. Numbers of scanned pages that cannot be read are added to `unread`."""
    document.init_forms()
    has_ocr: bool | None = None
    for number in range(len(document)):
        page = document[number]
        shown = page.get_textpage()
        text = _join_lines(shown.get_text_range())
        shown.close()
        fields = "\n".join(_list_fields(document, page))
        if not text and not fields and next(page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE]), None) is not None:
            if has_ocr is None:
                has_ocr = importlib.util.find_spec("rapidocr") is not None
                if has_ocr:
                    importlib.import_module("rapidocr")
                    _allow_ocr()
            if has_ocr:
                text = _recognise(page)
            else:
                unread.append(number + 1)
        yield "\n\n".join(part for part in (text, fields) if part)
        page.close()


def _list_fields(document: Any, page: Any) -> Iterator[str]:
    """Yield the name and value of each form field that is filled in."""
    for index in range(raw.FPDFPage_GetAnnotCount(page) if document.formenv is not None else 0):
        annotation = raw.FPDFPage_GetAnnot(page, index)
        if raw.FPDFAnnot_GetSubtype(annotation) == raw.FPDF_ANNOT_WIDGET:
            label = _read_field(raw.FPDFAnnot_GetFormFieldAlternateName, document, annotation)
            name = label or _read_field(raw.FPDFAnnot_GetFormFieldName, document, annotation)
            value = _read_field(raw.FPDFAnnot_GetFormFieldValue, document, annotation)
            if value and value != "Off":
                yield f"{name}: {value}" if name else value
        raw.FPDFPage_CloseAnnot(annotation)


def _read_field(function: Any, document: Any, annotation: Any) -> str:
    size = min(function(document.formenv, annotation, None, 0), _LONGEST_FIELD)
    units = (raw.FPDF_WCHAR * (size // 2 + 1))()
    function(document.formenv, annotation, units, size)
    return " ".join(bytes(units)[:size].decode("utf-16-le", "replace").replace("\0", "").split())


def _join_lines(text: str) -> str:
    """Return the text of a page with whole words, and a blank line where a paragraph seems to end."""
    text = _DIVIDED.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).translate(_LIGATURES)
    lines = [_LEADERS.sub(" …", " ".join(line.split())) for line in text.replace("\f", " ").split("\n")]
    widths = sorted(len(line) for line in lines if line)
    if not widths:
        return ""
    wide = widths[len(widths) * 9 // 10]
    joined: list[str] = []
    for line in lines:
        joined.append(line)
        if line.endswith(_SENTENCE_ENDS) and len(line) < _SHORT_LINE * wide:
            joined.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(joined)).strip("\n")


def _join_pages(pages: list[str]) -> str:
    """Join pages by a form feed. No blank line divides a sentence that continues on the next page."""
    text = pages[0]
    for page in pages[1:]:
        text_ends = text.endswith((*_SENTENCE_ENDS, "\f", "\n"))
        text += f"\n\n\f{page}" if text_ends else f"\n\f{page}"
    return text


# ── OCR ─────────────────────────────────────────────────────────────────────────────────────────────


def _allow_ocr() -> None:
    """Raise the limits of this process, if any, by the time and memory for OCR."""
    if resource is None:
        return
    for kind, more in ((resource.RLIMIT_CPU, OCR_CPU_SECONDS), (resource.RLIMIT_AS, OCR_MEMORY_BYTES)):
        soft, hard = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (soft + more, hard))


def _recognise(page: Any) -> str:
    """Return the text of a PDF page, with a blank line between paragraphs. Raises UnreadableDocument, MemoryError."""
    from rapidocr.inference_engine.onnxruntime.main import ONNXRuntimeError  # noqa: PLC0415 - needs the extra `ocr`

    width, height = page.get_size()
    scale = min(_DOTS_PER_INCH / _POINTS_PER_INCH, (_MOST_PIXELS / max(width * height, 1)) ** 0.5)
    bitmap = page.render(scale=scale, rev_byteorder=True, prefer_bgrx=False)
    try:
        found = _open_ocr()(bitmap.to_numpy())
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
def _open_ocr() -> Any:
    import rapidocr  # noqa: PLC0415 - needs the extra `ocr`

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
