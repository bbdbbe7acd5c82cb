"""Evidence: the smallest blocks of a passage that can be quoted, each with the context that it needs.

A sentence comes with the one that it refers to, an item with its lead-in, a row with the head of its table, code with
its explanation, and a definition with its term. A quotation is the text of the passage, except for line breaks.
"""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pair.text.markdown import TextBlock, find_sentences, is_statement, read_blocks
from pair.text.tokenizer import analyse

_MOST_QUOTED = 420
"""Maximum length of a sentence with the sentences after it in its paragraph, in characters."""
_MOST_LEAD, _MOST_TERM, _MOST_ITEM, _MOST_CODE, _MOST_ROW = 300, 200, 500, 700, 700
_MOST_LISTED, _MOST_STEPS = 900, 1500
"""Maximum length of a lead-in, a term, an item, code, a row; of a list with its lead-in; and of steps, in characters.
"""
_TERM_WORDS = 8
_LOWEST = 7
"""The level of headings that have no marks."""
_SYNOPSIS_MARKS = 4
_BULLETS = frozenset("-*+")

_BLANKS = re.compile(r"\s+")
_REFERS_BACK = re.compile(
    r"(?:it|its|this|that|these|those|they|their|he|she|his|her|such|both|either|however|therefore|thus|hence|instead"
    r"|otherwise|then|also|but|because of this|in (?:this|that) case|for this reason|if so|if not"
    r"|the (?:former|latter|same|default|second|other))\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?:;,\u3002\uff01\uff1f][\"'\u201d\u2019)\]*_`]*$")
_BOLD = re.compile(r"\*\*[^*]+\*\*$|__[^_]+__$")
_HANGING = re.compile(
    r"[ \t]*+(?P<term>-\S[^\n]{0,100}?)[ \t]{2,}+(?=\S)"
    r"|(?P<margin>[ \t]*+)(?P<above>\S[^\n]*+)\n(?:(?P=margin)[ \t]{2,}+\S[^\n]*+(?:\n|\Z))++\s*+\Z"
)
"""A term with its text behind it or indented below it, as in manual pages."""
_ITEM_TERM = re.compile(r"[^\s:][^:\n]{0,118}[^\s:.!?]?:\s+(?=\S)")
_FIRST_FENCE = re.compile(r"^[ \t]*```(?P<behind>[^\n]*(?:\n[^\n]*|$))", re.MULTILINE)
_SAYS_NOTHING = re.compile(
    r"(?:this|the (?:following|next)) (?:chapter|section|appendix|document|page|part|manual)s?\b[^.]*?"
    r"\b(?:explain|describe|cover|discuss|list|show|contain|outline|give|introduce)(?:s|es)?\b"
    r"|\w+ \w+: \S+$|(?:[^:]{1,60}: )?see (?:also\b|[^.]{1,80}\.?$)",
    re.IGNORECASE,
)


_DEFINING: Mapping[str, str] = {
    "en": "is|are|was|means|refers? to|consists? of|represents?|provides?|allows?",
    "de": "ist|sind|war|waren|bedeutet|bezeichnet|besteht aus|heißt",
    "fr": "est|sont|était|désigne|signifie|représente|permet|consiste",
    "es": "es|son|era|fue|significa|representa|permite|consiste",
    "it": "è|sono|era|fu|significa|indica|rappresenta|permette|consiste",
    "pt": "é|são|era|foi|significa|representa|permite|consiste",
    "nl": "is|zijn|was|betekent|bestaat uit",
}
"""Verbs after a defined term, by language."""
_NO_SUBJECT = (
    r"(?![a-z]|(?:If|When|Whenever|Once|While|Unless|Until|After|Before|Because|Since|Although|As|For|In|On|With|By|At"
    r"|This|That|These|Those|Such|Some|Many|Most|More|Other|Another|Each|Every|All|Any|Both|It|There|What|How) )"
)
"""Excludes sentences that begin with a clause or refer back: they do not define their subject."""
_NO_NOUN = (
    r"(?!(?:not|also|then|now|still|already|always|never|only|\w+ly) "
    r"|(?!(?:used|called|known|defined|designed|intended|based|composed|made|named|considered) )\w+(?:ed|en|ing) )"
)
"""Excludes verbs such as "is marked", which do not define the subject; "is used" may."""
_ATTRIBUTE = re.compile(
    r"(?!\w+ (?:term|concept|notion|idea) of )(?P<head>.{2,}?) (?:of|for|to|from|by|between|with|when|where) "
)
"""A subject that begins with another noun: "The cause of deadlocks is …" does not define deadlocks."""
_RELATIVE = re.compile(r".* (?:that|which|who|whose)$")


@functools.cache
def _compile_definition(language: str) -> re.Pattern[str]:
    verbs, before, behind = _DEFINING.get(language, _DEFINING["en"]), "", ""
    if language == "en":
        before, behind = _NO_SUBJECT, _NO_NOUN
    return re.compile(rf"{before}(?P<subject>[^.:;]{{2,80}}?) (?:{verbs}|[-\u2014]) {behind}")


class Evidence(NamedTuple):
    """A block that can be quoted."""

    kind: str
    """The kind: sentence, item, row or code."""
    text: str
    """The statement itself, on one line."""
    quote: str
    """Markdown of the statement and of the statements after it that explain it."""
    lead: str
    """Markdown of the context that the statement needs; "" for none."""
    term: str
    """The term of a definition; "" for none."""
    behind_term: int
    """Number of statements between it and the term."""
    headings: tuple[str, ...]
    """The headings above it, the nearest last."""
    opening: float
    """1 for the first sentence under a heading, less for those after it, 0 after the first paragraph."""
    group: int
    """Number of the list, paragraph or table that contains it."""

    @property
    def is_thin(self) -> bool:
        """Whether it only points to other text: the synopsis of a command, or a sentence about the text itself."""
        if self.kind == "code":
            return self.text.count("[") + self.text.count("|") > _SYNOPSIS_MARKS
        return self.text.endswith("?") or bool(_SAYS_NOTHING.match(self.text))

    def find_subject(self, language: str) -> str:
        """Return the defined term, such as "A lease" in "A lease is a lock that expires."; "" for no definition."""
        defined = _compile_definition(language).match(self.text)
        if defined is None or _RELATIVE.match(defined["subject"]):
            return ""
        attributed = _ATTRIBUTE.match(defined["subject"])
        return attributed["head"] if attributed else defined["subject"]

    @property
    def shown(self) -> str:
        """Markdown of the whole block."""
        if self.kind in {"item", "row"}:
            return f"{self.lead}\n{self.quote}".strip("\n")
        return f"{self.lead}\n\n{self.quote}".strip("\n") if self.lead else self.quote


def read_evidence(passage: str, most: int) -> list[Evidence]:
    """Return the first blocks of a passage that can be quoted, up to a maximum number."""
    fence = _FIRST_FENCE.search(passage)
    if fence and not fence["behind"].strip():
        # An opening fence is followed by code. This fence closes code that began before the passage.
        passage = f"```\n{passage[: fence.start()]}\n```{passage[fence.start('behind') :]}"
    return list(itertools.islice(_EvidenceReader(passage).read(), most))


class QuotableBlock(NamedTuple):
    """A block for display, with the terms that are compared with a question."""

    evidence: Evidence
    shown: str
    shown_terms: frozenset[str]
    statement_terms: frozenset[str]
    """Terms of the statement and of its defined term."""
    around_terms: frozenset[str]
    """Terms of its headings and of the title of its document."""
    heading_terms: frozenset[str]
    """All terms of the nearest heading."""
    is_thin: bool
    """Whether it only points to other text."""


class TermReader:
    """A reader of the terms of texts in one language. It analyses each text and each word once."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._pieces: dict[str, tuple[str, ...]] = {}
        self._found: dict[str, frozenset[str]] = {}

    def find(self, text: str) -> frozenset[str]:
        """Return all terms of a text."""
        if text in self._found:
            return self._found[text]
        pieces, known = set(text.split()), self._pieces
        for piece in pieces - known.keys():
            analysed = analyse(piece, self.language)
            known[piece] = (*analysed.terms, *analysed.extras)
        self._found[text] = frozenset().union(*map(known.__getitem__, pieces))
        return self._found[text]

    def read_quotable(
        self, title: str, text: str, asked: frozenset[str], most: int, *, steps: bool, names: bool = False
    ) -> list[QuotableBlock]:
        """Return the first blocks of a passage, up to a maximum number, with their terms that are in `asked`.

        A block is shown with the heading above it if only the heading holds a word of the question. `names`: show it
        also if the heading says something else. `steps`: see `show_evidence`.
        """
        title_terms = self.find(title) & asked
        self.find(text)
        telling = {piece: terms for piece in set(text.split()) if not asked.isdisjoint(terms := self._pieces[piece])}

        def find_asked(part: str) -> frozenset[str]:
            pieces = telling.keys() & part.split()
            return asked.intersection(itertools.chain.from_iterable(map(telling.__getitem__, pieces)))

        evidence = read_evidence(text, most)
        blocks = []
        for number, own in enumerate(evidence):
            shown = show_evidence(evidence, number, steps=steps)
            around = title_terms.union(*(self.find(heading) & asked for heading in own.headings))
            heading_terms = self.find(own.headings[-1]) if own.headings else frozenset[str]()
            statement, shown_terms = find_asked(f"{own.term} {own.text}"), find_asked(shown)
            heading = own.headings[-1] if own.headings else ""
            if heading not in title and (names or not heading_terms & asked <= shown_terms) and heading not in shown:
                shown = f"{heading}\n\n{shown}"
            blocks.append(QuotableBlock(own, shown, shown_terms, statement, around, heading_terms, own.is_thin))
        return blocks


def show_evidence(evidence: Sequence[Evidence], number: int, *, steps: bool) -> str:
    """Return Markdown of a block with everything that belongs to it.

    Text that ends with a colon is shown with the list or code after it. `steps`: show an item with the whole list, and
    a sentence with the code after its paragraph.
    """
    own = evidence[number]
    if own.kind == "item" and steps:
        items = [each.quote for each in evidence if each.group == own.group and each.kind == "item"]
        text = "\n".join(filter(None, [own.lead, *items]))
        return text if len(text) <= _MOST_STEPS else own.shown
    if own.kind != "sentence" or not (steps or own.quote.endswith(":")):
        return own.shown
    behind = itertools.dropwhile(lambda each: each.group == own.group, evidence[number + 1 :])
    first = next(behind, None)
    if first is None:
        return own.shown
    if first.kind == "code" and len(own.quote) + len(first.quote) <= _MOST_STEPS:
        return f"{own.shown}\n\n{first.quote}"
    if first.kind != "item" or not own.quote.endswith(":"):
        return own.shown
    shown = f"{own.shown}\n\n{first.quote}"
    for each in behind:
        if each.group != first.group or len(shown) + len(each.quote) > _MOST_LISTED:
            break
        shown = f"{shown}\n{each.quote}"
    return shown


class _EvidenceReader:
    def __init__(self, passage: str) -> None:
        self._passage = passage
        self._headings: list[tuple[int, str]] = []
        self._terms: list[str] = []
        self._is_bold = False
        self._term_column = -1
        """Start of the item that defines the term; -1 if the term is not an item."""
        self._behind_term = 0
        self._has_definition = True
        """Whether text followed the terms, so that the next term begins another definition."""
        self._lead = ""
        """The sentence that ends with a colon, or the caption of a table."""
        self._before = ""
        """The last sentences of the previous paragraph."""
        self._table_head = ""
        self._is_opening = True
        self._group = 0
        self._kind_before = ""

    def read(self) -> Iterator[Evidence]:
        blocks = [block for block in read_blocks(self._passage) if self._passage[block.start : block.end].strip()]
        for number, block in enumerate(blocks):
            following = blocks[number + 1].kind if number + 1 < len(blocks) else ""
            for evidence in self._read_block(block, following):
                yield evidence
                self._behind_term += 1
            self._kind_before = block.kind

    def _read_block(self, block: TextBlock, following: str) -> Iterator[Evidence]:
        text = self._text(block)
        if block.kind != self._kind_before or block.kind == "paragraph":
            self._group += 1
        if block.kind == "heading":
            self._read_heading(block)
        elif block.kind == "table head":
            self._table_head = self._passage[block.start : block.end].strip()
        elif block.kind == "row":
            yield self._read_row(block)
        elif block.kind == "code":
            yield self._read_code(block)
        elif block.kind == "paragraph" and self._is_term(block, following):
            self._term_column = -1
            self._terms = [text] if self._has_definition else [*self._terms, text]
            self._has_definition, self._is_bold, self._behind_term = False, bool(_BOLD.match(text)), 0
            self._lead = self._before = ""
        elif block.kind == "paragraph":
            self._leave_item(block.start)
            yield from self._read_paragraph(self._read_hanging(block))
            self._has_definition, self._is_opening = True, False
            if not self._is_bold:
                self._terms = []
        elif block.kind == "item":
            yield from self._read_item(block, text)

    def _read_heading(self, block: TextBlock) -> None:
        title = self._text(block).strip("# =-~^")
        self._headings = [each for each in self._headings if each[0] < block.level]
        self._headings.append((block.level, title))
        self._terms, self._lead, self._before, self._table_head = [], "", "", ""
        self._has_definition = self._is_opening = True

    def _read_hanging(self, block: TextBlock) -> TextBlock:
        """Take the term or the heading of indented text from the start of a paragraph, and return the text."""
        line = self._passage.rfind("\n", 0, block.start) + 1
        hanging = _HANGING.match(self._passage[line : block.end])
        if hanging is None:
            return block
        term = (hanging["term"] or hanging["above"]).strip()
        if len(term.split()) > _TERM_WORDS or _SENTENCE_END.search(term):
            return block
        end = line + (hanging.end("above") if hanging["above"] else hanging.end())
        if hanging["above"] and not hanging["margin"] and term.isupper():
            self._read_heading(block._replace(end=end, level=_LOWEST))
        else:
            self._terms, self._term_column, self._is_bold, self._behind_term = [term], -1, False, 0
        return block._replace(start=end)

    def _read_row(self, block: TextBlock) -> Evidence:
        row = self._passage[block.start : block.end].strip()
        head = self._table_head
        if head:
            cells = max(head.strip("|").count("|") + 1, 1)
            head = f"{head}\n|{'---|' * cells}"
        return self._make("row", row.strip("| "), row[:_MOST_ROW], head)

    def _read_code(self, block: TextBlock) -> Evidence:
        code = self._passage[block.start : block.end].strip("\n")
        lines = code[:_MOST_CODE].splitlines()
        if len(code) > _MOST_CODE and len(lines) > 1:
            lines = lines[:-1]
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        quote = "\n".join(["```", *(line[indent:] for line in lines), "```"])
        return self._make("code", self._text(block)[:_MOST_CODE], quote, self._lead or self._before or self._term())

    def _read_paragraph(self, block: TextBlock) -> Iterator[Evidence]:
        sentences = list(_split(self._passage, block))
        for number, sentence in enumerate(sentences):
            if not is_statement(sentence):
                continue
            quoted = [sentence]
            for more in sentences[number + 1 :]:
                if sum(map(len, quoted)) + len(more) > _MOST_QUOTED:
                    break
                quoted.append(more)
            if number and _REFERS_BACK.match(sentence):
                quoted.insert(0, sentences[number - 1])
            lead = self._term()
            if not number and not lead and _REFERS_BACK.match(sentence):
                lead = self._before
            yield self._make("sentence", sentence, " ".join(quoted), lead)._replace(
                opening=self._is_opening / (1 + number)
            )
        if sentences:
            self._lead = sentences[-1][-_MOST_LEAD:] if sentences[-1].endswith(":") else ""
            self._before = " ".join(sentences[-2:])
            if len(self._before) > _MOST_LEAD:
                self._before = sentences[-1][:_MOST_LEAD]

    def _read_item(self, block: TextBlock, text: str) -> Iterator[Evidence]:
        line = self._passage.rfind("\n", 0, block.start) + 1
        mark = self._passage[line : block.start].strip() or "-"
        column = self._leave_item(line)
        term = _ITEM_TERM.match(self._passage, block.start, block.end) if mark in _BULLETS else None
        is_definition = term is not None and len(term[0].split()) <= _TERM_WORDS
        if term and is_definition:
            self._terms, self._term_column = [term[0].rstrip(": \n")], column
            self._is_bold, self._behind_term = True, 0
        if term and is_definition and len(text) > _MOST_ITEM:
            self._group += 1
            lead = self._lead
            yield from self._read_paragraph(block._replace(start=term.end()))
            self._lead = self._lead or lead
            return
        if len(text) > _MOST_ITEM:
            shorter = ""
            for sentence in _split(self._passage, block):
                if shorter and len(shorter) + len(sentence) > _MOST_ITEM:
                    break
                shorter = f"{shorter} {sentence}".strip()
            text = shorter
        if is_statement(text) or self._lead:
            yield self._make("item", text, f"{mark} {text}", self._lead or ("" if is_definition else self._term()))
        self._is_opening = False

    def _leave_item(self, line: int) -> int:
        """Return the start of a line; drop the term of an item that does not contain the line."""
        text = self._passage[line : line + _MOST_TERM]
        column = len(text) - len(text.lstrip(" "))
        if column <= self._term_column:
            self._terms, self._term_column, self._is_bold = [], -1, False
        return column

    def _make(self, kind: str, text: str, quote: str, lead: str) -> Evidence:
        headings = tuple(title for _, title in self._headings)
        return Evidence(
            kind, text, quote, lead, self._term(), self._behind_term, headings, float(self._is_opening), self._group
        )

    def _term(self) -> str:
        return ", ".join(self._terms)[:_MOST_LEAD]

    def _text(self, block: TextBlock) -> str:
        return _BLANKS.sub(" ", self._passage[block.start : block.end]).strip()

    def _is_term(self, block: TextBlock, following: str) -> bool:
        """Return whether this is a term for the next paragraph: bold text, or a few words that are not a sentence."""
        line = self._passage[block.start : block.end].strip()
        if len(line) > _MOST_TERM or "\n" in line:
            return False
        if _BOLD.match(line):
            return True
        is_short = len(line.split()) <= _TERM_WORDS and not line.startswith("-") and ": " not in line
        return is_short and following not in {"", "heading"} and not _SENTENCE_END.search(line)


def _split(passage: str, block: TextBlock) -> Iterator[str]:
    for start, end in find_sentences(passage, block.start, block.end):
        text = _BLANKS.sub(" ", passage[start:end]).strip()
        while len(text) > _MOST_CODE:  # Too long for a sentence.
            cut = text.rfind(" ", 0, _MOST_QUOTED) + 1 or _MOST_QUOTED
            yield text[:cut].strip()
            text = text[cut:]
        if text:
            yield text
