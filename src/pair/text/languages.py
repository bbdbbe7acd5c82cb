"""Languages of documents: detection, stop words, stems and misspelled words.

Snowball stems words of 30 languages. Other languages, and Chinese, Japanese and Korean, are indexed as English, whose
stemmer leaves letters beyond a-z unchanged.
"""

# ruff: noqa: RUF001 - letters of other alphabets look like Latin ones

import functools
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import Stemmer

_SNOWBALL = """
en english, de german, fr french, es spanish, it italian, pt portuguese, nl dutch, sv swedish, da danish,
no norwegian, fi finnish, hu hungarian, ro romanian, ru russian, tr turkish, ca catalan, pl polish, cs czech,
el greek, ar arabic, fa persian, hi hindi, ta tamil, hy armenian, id indonesian, ga irish, lt lithuanian, et estonian,
eu basque, sr serbian
"""
_CODES_AND_NAMES = _SNOWBALL.replace(",", " ").split()
LANGUAGES = tuple(_CODES_AND_NAMES[::2])
"""Codes of ISO 639. The index stores positions in this tuple: append, but never reorder."""
_NAMES = dict(zip(LANGUAGES, _CODES_AND_NAMES[1::2], strict=True))
_ALIASES = {"nb": "no", "nn": "no", "hr": "sr", "bs": "sr"} | dict(zip(_NAMES.values(), _NAMES, strict=True))
COMPOUNDING = frozenset({"de", "nl", "sv", "da", "no", "fi", "hu", "et"})
"""Languages that write compounds as one word."""
LINKS = ("", "s", "n", "es", "en", "e")
"""Letters that join the parts of a compound."""

_SAMPLE_CHARACTERS = 1000
_SURELY_ENGLISH = 0.25
"""Share of English stop words above which a text is English, without a comparison with other languages."""
_LEAST_STOP_WORDS = 4
"""Minimum number of different stop words to detect the language of ASCII text; other letters count for one."""
_LEAST_SHARE = 0.1
"""Minimum share of stop words in running text; lists and code of any language have fewer."""
_WORD = re.compile(r"[^\W\d_]{2,}")
_ASCII_BLANKS = f"{' ' * 65}{string.ascii_uppercase}{' ' * 6}{string.ascii_lowercase}{' ' * 5}"

_STOP_WORDS: Mapping[str, str] = {
    "en": """
a about also am an and any are as at be because been being between but by can could did do does during each
for from had has have he her his how i if in into is it its may me might must my no not of on or other our
shall she should so some such than that the their them then there these they this through to was we were what
when where which while who whom whose why will with would you your
""",
    "de": """
aber alle allem allen aller alles als also am an ander andere anderen anderer auch auf aus bei beim bin bis
bist da damit dann das dass daß dein dem den denn der des dessen deren die dies diese diesem diesen dieser
dieses dir doch dort du durch ein eine einem einen einer eines er es etwas euch euer für gegen gewesen hab
habe haben hat hatte hatten hier hin hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in ins ist ja jede
jedem jeden jeder jedes jene kann kein keine keinen können könnte man manche mein mich mir mit muss nach nicht
nichts noch nun nur ob oder ohne sehr sein seine seinem seinen seiner selbst sich sie sind so solche soll
sollte sondern sonst über um und uns unser unter viel viele vom von vor war waren warum was weil welche
welchem welchen welcher welches wem wen wenn wer werde werden wessen wie wieder wieviel wieviele will wir wird
wo wollen worden wurde wurden zu zum zur zwar zwischen
""",
    "fr": """
à ai as au aux avaient avait avec avez avons c ce ceci cela celle ces cet cette ceux combien comme comment d
dans de des donc dont du elle elles en entre es est et étaient était été être eu eux fut il ils j je l la
laquelle le lequel les lesquels leur leurs lui m ma mais me même mes moi mon n ne ni nos notre nous on ont ou
où par pas pendant plus pour pourquoi qu quand que quel quelle quelles quels qui quoi s sa sans se sera ses si
son sont sous sur t ta te tes toi ton tu un une vos votre vous y
""",
    "es": """
a al algo alguna algunos ante antes aquel como cómo con contra cual cuál cuáles cuando cuándo cuánto cuántos
cuántas de del desde donde dónde durante e el él ella ellos en entre era eran es esa ese eso esta está están
estas este esto estos fue fueron ha había habían han hasta hay la las le les lo los más me mi mucho muy nada
ni no nos o os otra otro otros para pero poco por porque qué que quien quién quiénes se sea ser si sido sin
sobre son su sus también tan tiene tienen todo todos tu tuvo un una uno unos y ya yo
""",
    "it": """
a agli ai al alla alle allo anche avere aveva che chi ci come con cosa cui d da dagli dai dal dalla dalle
dallo de degli dei del dell della delle dello di dove e è ed era erano essere fra fu furono gli ha hanno i il
in io l la le lei li lo loro lui ma mi nei nel nell nella nelle nello noi non nostro o per perché più qual
quale quali quando quanti quanto quella quelle quelli quello questa queste questi questo se sei si sia sono
sta stata stati stato su sua sue sui sul sull sulla sulle suo suoi tra tu tutti tutto un una uno vi voi
""",
    "pt": """
a à ao aos aquela aquele as às até com como da das de dela dele do dos e é ela elas ele eles em entre era eram
essa esse esta está estão este eu foi foram há isso isto já lhe mais mas me mesmo meu minha muito na nas não
nem no nos nós num numa o onde os ou para pela pelas pelo pelos por porque qual quais quando quanto quantos
quantas que quê quem são se sem ser seu seus só sua suas também te tem têm tinha um uma você
""",
    "nl": """
aan al alles als altijd andere ben bij daar dan dat de der deze die dit doch doen door dus een en er ge geen
geweest haar had heb hebben heeft hem het hier hij hoe hoeveel hun ik in is ja je kan kon kunnen maar me meer
men met mij mijn moet na naar niet niets nog nu of om omdat ons ook op over te tegen toch toen tot u uit uw
van veel voor waar waarom wanneer want waren was wat we wel welke werd werden wezen wie wij wil worden wordt
zal ze zei zelf zich zij zijn zo zonder zou
""",
    "sv": """
alla allt att av blev bli blir de dem den denna deras dess det detta dig din du där då efter ej eller en er
ett från för ha hade han hans har henne hennes hon honom hur hvar i icke inom inte jag ju kan kunde man med
mellan men mig min mot mycket många ni nu när någon något några och om oss på samma sedan sig sin sina sitt
skulle som så till under upp ut utan vad var vara varför varje vars vem vi vid vilka vilken vilket än är åt
över
""",
    "da": """
ad af alle alt anden at blev blive bliver da de dem den denne der deres det dette dig din dog du efter eller
en end er et for fra ham han hans har havde hende hendes her hos hun hvad hvem hvilke hvilken hvilket hvis
hvor hvordan hvorfor hvornår i ikke ind jeg jer jo kunne man mange med meget men mig min mod når ned nogle
noget og også om op os over på sig sin skal skulle som thi til ud under var vi vil ville vor være været
""",
    "no": """
alle at av bare ble blei bli blir da de deg dei dem den denne der dere deres det dette di din du eg ein eller
en er et etter for fordi fra før ha hadde han hans har henne hennes her hos hun hva hvem hvilke hvilken
hvilket hvis hvor hvordan hvorfor i ikke ikkje ingen inn ja jeg kan kom kunne man mange me med meg men mer min
mot mye må når ned noe noen og også om opp oss over på samme seg selv sin sitt skal skulle slik som så til um
under ut var ved vi vil ville vår være vært å
""",
    "fi": """
ei eivät että he hän häne ja jo joka jonka jos jossa jotka kanssa keiden ken kuin kuinka kuka kun kuten me
mikä milloin minkä minä missä miten mitkä mitä montako mutta myös ne niiden niin nyt näiden nämä olen oli
olivat olla olleet ollut on ovat se sekä sen siinä sinä sitä tai tämä tämän vaan vai vain voi
""",
    "hu": """
a abban ahhoz ahogy aki akik alatt által általában amely amelyek ami amikor át az azok azonban azt be bele
benne csak de e egy egyes egyéb elég ez ezek ezt és fel hanem hány hol hogy hogyan ide igen is ki kik kell
kellett le legalább lehet lesz lett maga már még meg mely melyik mellett mert mi miatt mikor milyen mint mit
mivel most nagyon ne nem nincs olyan ott össze ők őt pedig s saját sem során szerint után úgy vagy van volt
voltak
""",
    "ro": """
a acea aceasta această aceea acest acesta aceste acestea acestui ai al ale am ar are as au avea ca când care
cărei către ce cea cel cele celor cine cu cum da dar de deci decât după din dintr este eu ei el ele era erau
fi fie fost iar îi îl în între îşi își la le lor lui mai mult ne nici nu o ori pe pentru prin sa să sale sau
se si și şi sub sunt te un una unde unei unor unui va
""",
    "ru": """
а без более бы был была были было быть в вам вас весь во вот все всего всех вы где да даже для до его ее её ей
если есть еще ещё же за здесь и из или им их к как какая какие какой когда кого кому который которая которые
кто куда ли между меня мне может мы на над надо нас не него нее ней нет ни них но ну о об один он она они оно
от по под после потому почему при про с сам себя сколько со так также такой там то тогда того тоже только том
тот у уже чего чем через что чтобы чье эта эти это этого этой этом этот я
""",
    "tr": """
ama ancak bazı belki ben bir biri birkaç biz bu bunu bunun böyle çok çünkü da daha de değil diye en gibi hangi
hangisi hem hep her hiç için ile ise kaç kadar ki kim kime kimin mı mi mu mü nasıl ne neden nedir nerede niçin
o olan olarak oldu olduğu olup onlar onu onun sadece sen siz sonra şey şu tarafından tüm ve veya ya yani
""",
    "ca": """
a al als amb aquest aquesta aquests as com d de del dels des e el ella ells els en entre era és eren es està
fins ha han hi ho i jo l la les li lo més molt no o on per perquè però pel pels qual quan quants que què qui s
se ser seu seva si sobre són també un una uns va van
""",
    "pl": """
a aby albo ale ani bez bo był była było były by być co czy dla do gdy gdzie go i ich ile im inne innych ja jak
jaka jaki jakie jako je jego jej jest już kiedy kim kto która które którego której którzy który których ma mi
może na nad nam nas nie niego niej nim o od on ona oni oraz po pod przed przez przy są się swoje ta tak także
tam te tego tej ten to tu tych tylko tym u w we więc z za ze że
""",
    "cs": """
a aby ale ani asi až bez bude by byl byla byli bylo být co což do i jak jaká jaké jako je jeho jej její jejich
jen ještě ji jich jimi již jsem jsou k kde kdo kdy kdyby kolik která které kterého který má mezi mu na nad ne
nebo není než o od on ona oni pak po pod podle pro proč protože proti před při s se si své ta tak také tam ten
tento této tím to toho tom tu ty u už v ve však z za ze že
""",
    "el": """
αλλά αν αντί από αυτά αυτές αυτή αυτό αυτοί αυτός για γιατί δε δεν εάν εγώ είναι εκείνη ενώ επί έχει έχουν ή
ήταν η θα και κάθε κατά με μετά μη μια μία μου να ο οι όμως όπως όσο ότι πόσα πόσο που ποια ποιες ποιο ποιος
πότε πού προς πως πώς σαν σε στα στη στην στις στο στον στους τα τη την της τι τις το τον του τους των ως
""",
    "ar": """
إلا التي الذي الذين إلى أم أما أن إن أنا أنت أو أي أين بعد بعض بل بها بين تلك ثم حتى حول حيث خلال ذلك على عليه
عن عند غير في فيه فيها قبل قد كان كانت كل كم كما كيف لا لقد لم لماذا لن له لها ليس ما ماذا متى مع من منذ منها
نحو هذا هذه هل هم هناك هو هي و وقد وكان ولا وهو وهي يكون
""",
    "fa": """
آن آنها از است اگر اما او این با باید بر برای بود بودند به بین تا تر چرا چند چه چون خود خواهد دارد در دو را
روی شد شده شود کجا کدام کرد کرده کند که کی ما مورد می نیز هر هم و ها های یا یک
""",
    "hi": """
अपना अपनी अपने अब आदि इन इस इसका इसके इसमें इसे उन उनका उनके उस उसका उसके उसे एक एवं ऐसे और कई कब कर करना करने
कहा का काफी कि किया किस किसी की के को कौन क्या क्यों गया गई जब जहां जा जाता जैसे जो तक तथा तो था थी थे दो
द्वारा न नहीं ने पर भी में यदि यह यहां या ये रहा रहे लिए लेकिन व वह वे साथ से हुआ हुई है हैं हो होता होती होने
""",
    "ta": """
அது அந்த அவர் இது இந்த இல்லை உள்ள எந்த என என்ற என்று என்ன எப்போது ஒரு கொண்ட தான் மற்றும் மேலும் யார்
""",
    "hy": """
և այդ այլ այն այս դու դուք եմ են ենք ես եք է էի էին էր ըստ թ ի ին իսկ իր կամ համար հետ մեջ մի մեր ն նա նաև նրա
որ որը որոնք որպես ում պիտի վրա
""",
    "id": """
ada adalah akan antara apa atau bagaimana bagi bahwa banyak beberapa belum berapa bisa dalam dan dapat dari
dengan di dia hanya harus ia ini itu jika juga kapan karena kami ke kepada kita lebih maka mana masih mengapa
mereka oleh pada para saat sampai sangat saya sebagai secara sedang sejak seperti serta siapa sudah telah
tersebut tetapi tidak untuk yaitu yang
""",
    "ga": """
ach ag agus an ar as atá bhí cad cén cé chuig dá de den do don é faoi gan go i ina is iad lena mar na nach ní
nó ó sa san sé seo sí sin siad tá trí
""",
    "lt": """
apie ar arba bei bet bus buvo būti dar dėl iki ir iš ji jie jis jo jos jų jau kada kai kaip kas kiek kad kur
kurie kuris kurią kurių nei ne nes net nuo o po per prie su tai taip tačiau tas to už yra į
""",
    "et": """
aga ei et ja ka kas kes keda kelle kui kuidas kus kuna kõik ma me mida mille millal millest millises mis miks
mitu ning nii nad oli olid olla olnud on ole pole see seda selle siis siin ta tema või üks väga
""",
    "eu": """
ala arabera asko baina bat batean batek bere beste da dago dira ditu du dute edo egin eta ez gero hau hori
horrek izan nola non noiz nor nork oso zein zen zer zergatik ziren zuen zuten
""",
    "sr": """
a ali bi bila bile bili bilo bio biti da do ga i ili iz ja je jer još kada kako kao koja koje koji kojih ko
koliko li među na nakon ne nego nije od on ona oni po pod pre prema sa samo se su šta što ta taj te to toga tu
u uz već za
""",
}
STOP_WORDS = dict(zip(_STOP_WORDS, map(frozenset, map(str.split, _STOP_WORDS.values())), strict=True))


@functools.cache
def _languages_of_word() -> Mapping[str, tuple[str, ...]]:
    languages: dict[str, list[str]] = {}
    for code, words in STOP_WORDS.items():
        for word in words:
            languages.setdefault(word, []).append(code)
    return {word: tuple(codes) for word, codes in languages.items()}


def find_language(metadata: Mapping[str, Any], text: str) -> str:
    """Return the language that the metadata names as `lang` or `language`, or else the one of the text's beginning."""
    for key in ("lang", "language"):
        value = metadata.get(key)
        if isinstance(value, str) and (code := _parse_code(value)):
            return code
    return detect_language(text[:_SAMPLE_CHARACTERS])


def _parse_code(value: str) -> str:
    """Return the code in `de`, `de-AT` or `German`; "" if Snowball does not know the language."""
    name = value.strip().lower()
    name = name if name in _ALIASES else re.split(r"[-_]", name)[0]
    name = _ALIASES.get(name, name)
    return name if name in _NAMES else ""


def detect_language(text: str) -> str:
    """Return the language whose stop words are most frequent in the text; English if they are few or in doubt."""
    words = _find_words(text.lower())
    english = sum(map(STOP_WORDS["en"].__contains__, words))
    if not words or english >= _SURELY_ENGLISH * len(words):
        return "en"
    languages_of = _languages_of_word()
    known = list(filter(languages_of.__contains__, words))
    least = max(_LEAST_SHARE * len(words), 1.5 * english)
    if len(known) < least:
        return "en"
    counts: Counter[str] = Counter()
    distinct: Counter[str] = Counter()
    for word, count in Counter(known).items():
        for code in languages_of[word]:
            counts[code] += count
            distinct[code] += 1
    best = max(counts, key=lambda code: counts[code], default="en")
    is_clear = distinct[best] + (not text.isascii()) >= _LEAST_STOP_WORDS and counts[best] >= least
    return best if is_clear else "en"


def _find_words(text: str) -> list[str]:
    """Return the words of at least two letters. ASCII, which most texts are, takes a third of the time."""
    if not text.isascii():
        return _WORD.findall(text)
    return [word for word in text.translate(_ASCII_BLANKS).split() if len(word) > 1]


@functools.cache
def _stemmer(language: str) -> Any:
    # The stemmer's cache is off: the analysis of a word is cached as a whole.
    return Stemmer.Stemmer(_NAMES[language], 0)


def stem_word(word: str, language: str) -> str:
    """Return the stem of a word as written, in lower case and with its accents."""
    return str(_stemmer(language).stemWord(unicodedata.normalize("NFC", word).lower()))


# ── misspelled words ───────────────────────────────────────────────────────────────────────────────


def allow_edits(word: str) -> int:
    """Return how many edits may separate a misspelled word from the word that was meant."""
    return 0 if len(word) < 5 or not word.isalpha() else 1 if len(word) < 8 else 2


def count_edits(word: str, others: Sequence[str]) -> list[int]:
    """Return the edits from this word to each other word: replace, insert or drop a letter, or swap two."""
    if not others:
        return []
    size = max(map(len, others))
    letters = np.array([[*map(ord, other.ljust(size, "\0"))] for other in others], np.int32).T
    # Each row of the table has an entry for each prefix of the other words; all words are computed together.
    table = [np.tile(np.arange(size + 1, dtype=np.int16)[:, None], len(others))]
    for row, letter in enumerate(map(ord, word), 1):
        last, current = table[-1], np.empty_like(table[0])
        current[0] = row
        differs = letters != letter
        for column in range(1, size + 1):
            cheapest = np.minimum(last[column] + 1, current[column - 1] + 1)
            np.minimum(cheapest, last[column - 1] + differs[column - 1], out=current[column])
            if row > 1 and column > 1:
                is_swapped = (letters[column - 2] == letter) & (letters[column - 1] == ord(word[row - 2]))
                swapped = table[-2][column - 2] + 1
                np.copyto(current[column], np.minimum(current[column], swapped), where=is_swapped)
        table.append(current)
    ends = np.array([len(other) for other in others])
    return [int(count) for count in table[-1][ends, np.arange(len(others))]]
