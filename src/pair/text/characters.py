"""Letters of every script, token estimates, unprintable characters and stop words."""

import re

IDEOGRAPHS = "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff"
WIDE = re.compile(f"[{IDEOGRAPHS}\u3041-\u30ff\uac00-\ud7a3]+")
"""Runs of Chinese, Japanese and Korean characters."""

# `\w` lacks the vowel signs of these scripts, without which words fall apart: Hebrew, Arabic, India, Thai to Khmer.
LETTER = (
    r"\w\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
    r"\u0e00-\u0fff\u1000-\u1049\u1780-\u17d3\u200c\u200d"
)
CAPITAL = "A-Z\u00c0-\u00d6\u00d8-\u00de\u0391-\u03a9\u0410-\u042f"

_LATIN_CHARACTERS_PER_TOKEN = 4
# Controls except tab and line ends, and marks that reorder or hide text.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
SURROGATE = re.compile("[\ud800-\udfff]")


def estimate_tokens(text: str) -> int:
    """Return about one token for 4 Latin characters, 2 of other alphabets, or 1 of Chinese, Japanese or Korean."""
    if text.isascii():
        return -(-len(text) // _LATIN_CHARACTERS_PER_TOKEN)
    others = WIDE.sub("", text)
    size_bytes = len(others.encode("utf-8", "surrogatepass"))
    return len(text) - len(others) + -(-size_bytes // _LATIN_CHARACTERS_PER_TOKEN)


def drop_unprintable(text: str) -> str:
    """Return the text without control and invisible characters, and with surrogates replaced."""
    return replace_surrogates(_UNPRINTABLE.sub("", text))


def replace_surrogates(text: str) -> str:
    """Return a text that can be written as UTF-8."""
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


def join_lines(text: str) -> str:
    """Return the text with each run of whitespace as one blank."""
    return " ".join(text.split())


def clip(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, cut between words if possible."""
    if len(text) <= limit:
        return text
    cut = text[: limit - 1]
    at_word = cut.rpartition(" ")[0]
    return (at_word if len(at_word) > limit // 2 else cut).rstrip(" ,;:.(\u2013—-") + "…"


# ── stop words ─────────────────────────────────────────────────────────────────────────────────────

_ENGLISH = """
about above according across actually after again against all almost along already also although always among
amount an and another any anyone anything are around as at away back be became because become becomes been
before begin begins behind being below best better between beyond both bring brings but by called came can
cannot case cases certain change changes come comes common contains could did different do does doing done down
during each easily easy either else enough especially even ever every everything example examples except fact
few find first following follows for found four from full further gave general generally gets give given gives
goes going good great had hand hard has have having he held help helps hence her here high him his hold holds
how however idea if important in including indeed inside instead into is it its itself just keep keeps kind
kinds know known knows large last later latter least leave less let like likely little long longer look looks
made main mainly make makes making many matter maybe mean means might more moreover most mostly much must my
name named namely near nearly need needed needs never next no none nor normally not nothing now of off often old
on once one only onto or other others otherwise our out over own part parts people per perhaps place please
point possible probably provide provides put quite rather really rest right run runs same say says second see
seem seems seen several shall she should show shown shows side similar simple simply since small so some
something sometimes soon sort still such sure take taken takes tell tells than that the their them then there
therefore these they thing things think this those though three through thus till to together too took toward
turn turns twice two type under unless until up upon us use used useful user users uses using usual usually
value values various very via want wants was ways we well went were what whatever when where whereas wherever
whether which while who whole whom whose why will with within without word words work works would write written
year years yet you your yours
"""
_GERMAN = """
aber alle allem allen aller alles also andere auch beim bereits dabei damit dann dass denn dessen diese diesem
diesen dieser dieses doch dort durch eine einem einen einer eines etwa ganz gegen haben hatte hier ihre immer
jede jeder kann kein keine können mehr muss müssen nach nicht noch nur oder ohne schon sehr sein seine seit sich
sind sondern sowie unter vom von vor war wenn werden wird wurde wurden zum zur zwischen über
"""
_FRENCH = """
alors après aussi autre autres avant avec avoir bien cela celle celui cette comme dans depuis deux donc dont
elle elles encore entre faire fait ils leur leurs mais moins même nous par parce pendant peut plus pour quand
que quel quelle qui sans selon sera ses sont sous sur tous tout toute toutes très une vers votre vous être
"""
_SPANISH = """
ahora algo antes aquí aunque cada como con contra cual cuando debe del desde donde dos durante ella ellos entre
era eran esta estaba estas este esto estos está fue hace hacia hasta las los menos mientras mismo mucho muy más
nos otra otras otro otros para pero por porque puede pueden que quien qué según ser sido sin sino sobre solo son
sus también tanto tiene tienen toda todas todo todos una unas uno unos
"""
_ITALIAN = """
anche ancora avere che come con cosa così dai dal dalla dalle degli dei del della delle dello deve dopo dove
essere fino fra gli hanno loro molto nel nella nelle non ogni oppure perché però più poi prima può quale quali
quando quella quelle quelli quello questa queste questi questo senza sia solo sono stata stato sua sue sugli
sulla suo tra tutti tutto una uno
"""
_PORTUGUESE = """
agora ainda ao aos até cada com como das dele depois dos ela elas ele eles essa esse esta este está foi isso
isto mais mas mesmo muito nas nem nos não onde ou outra outro para pela pelas pelo pelos pode podem por porque
qual quando quem sem ser seu seus sua suas são também tem têm uma umas você
"""
_DUTCH = """
aan alle als bij daar dan dat deze die dit door een elke geen had hebben heeft het hier hoe hun ieder kan kunnen
maar meer men met moet naar niet nog omdat onder ons ook over tot uit van veel voor waar wat welke werd worden
wordt zal zich zijn zoals zonder
"""
_RUSSIAN = """
более были было быть ведь весь возможно время всего всех даже должен если есть затем здесь именно каждый как
какой когда которая которого которой которые который которых кроме лишь между может можно надо некоторые нужно
однако около перед после потом почти поэтому при против разных свои себя сейчас также такие таким такой тогда
того тоже только часть чем через чтобы этим этих этого этой этом этот эту является
"""
_CALENDAR = """
january february march april may june july august september october november december monday tuesday wednesday
thursday friday saturday sunday
"""
ENGLISH = frozenset(_ENGLISH.split())
STOP_WORDS = frozenset((_ENGLISH + _GERMAN + _FRENCH + _SPANISH + _ITALIAN + _PORTUGUESE + _DUTCH + _RUSSIAN).split())
UNTELLING = STOP_WORDS | frozenset(_CALENDAR.split())
"""Stop words, months and days, which occur in every log and letter."""
