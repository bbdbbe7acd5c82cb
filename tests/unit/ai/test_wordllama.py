"""The default embedder: the same vectors as the package with its weights, in less time."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from pair.ai import wordllama
from pair.ai.caching_embedder import open_mapped
from pair.ai.wordllama import WordLlamaEmbedder

EMBEDDER = WordLlamaEmbedder()
TOKENIZER = tokenizers.Tokenizer.from_buffer(open_mapped(wordllama._TOKENS)[:])
TABLE = np.frombuffer(open_mapped(wordllama._WEIGHTS), dtype="<f2", offset=wordllama._HEADER_BYTES).reshape(
    -1, wordllama.DIMENSION
)
TOKENIZER.encode_special_tokens = True
WORDS = st.sampled_from(
    [
        "the",
        "Rivers",
        "rivers",
        "E0432",
        "foo_bar",
        "--no-kb",
        "水",
        "naïve",
        "🙂",
        "▁",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        ".",
        "</s>",
    ]
)


IN_PYTHON, IN_THE_LIBRARY = wordllama._load(), wordllama._load()
IN_THE_LIBRARY.load_library()
PINNED = [-0.002534, -0.008403, 0.014447, 0.171007]


def similarity(left: str, right: str) -> float:
    vectors = EMBEDDER.embed([left, right])
    return float(vectors[0] @ vectors[1])


def embed_plainly(text: str) -> np.ndarray:
    """Embed like the package: the mean of all tokens of the text, scaled to length 1."""
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    mean = TABLE[ids].astype(np.float64).mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


@settings(deadline=None)
@given(st.lists(st.one_of(WORDS, st.text(max_size=6))).map("".join))
def test_vectors_are_those_of_the_plain_way(text: str) -> None:
    (vector,) = EMBEDDER.embed([text])
    if text.strip():
        assert vector == pytest.approx(embed_plainly(text), abs=1e-6)
    else:
        assert not vector.any()


def test_vectors_do_not_change_between_releases() -> None:
    """The expected numbers come from the package itself."""
    (vector,) = EMBEDDER.embed(["The castle has a moat."])
    assert vector[:4] == pytest.approx(PINNED, abs=1e-6)


def test_texts_about_the_same_are_near_without_a_word_in_common() -> None:
    near = similarity("a physician treats patients", "the doctor heals sick people")
    assert near > similarity("a physician treats patients", "the train leaves the station") + 0.2


def test_few_texts_and_many_texts_have_the_same_vectors() -> None:
    texts = [f"text number {number} about rivers" for number in range(2 * wordllama._MANY_TEXTS)]
    few = WordLlamaEmbedder()
    alone = np.concatenate([few.embed([text]) for text in texts])
    assert few._model is not None
    assert few._model.floats is None
    assert np.array_equal(few.embed(texts), alone)
    assert few._model.floats is not None


def test_a_text_of_many_tokens_is_added_up_in_parts() -> None:
    text = "many words of a book, " * 2_000
    assert EMBEDDER.embed([text])[0] == pytest.approx(embed_plainly(text), abs=1e-5)


def test_long_words_are_not_remembered() -> None:
    embedder = WordLlamaEmbedder()
    embedder.embed(["short " + "x" * 100])
    assert list(embedder._memory._young) == ["short"]


def test_threads_that_come_first_load_it_once() -> None:
    embedder = WordLlamaEmbedder()
    with ThreadPoolExecutor(4) as pool:
        models = {id(found) for found in pool.map(lambda _: embedder._get_model(), range(8))}
    assert len(models) == 1


def test_no_code_of_the_package_is_imported() -> None:
    code = (
        "import sys; from pair.ai.wordllama import WordLlamaEmbedder; WordLlamaEmbedder().embed(['word']);"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"wordllama", "safetensors", "requests", "huggingface_hub", "asyncio"} & set(done.stdout.split()) == set()


@given(st.text(alphabet="aabet<0xE2>éß中\U0001f600-_.1\n", min_size=1, max_size=28))
def test_python_and_the_library_find_the_same_tokens(word: str) -> None:
    assert IN_PYTHON.tokens_of(word) == IN_THE_LIBRARY.tokens_of(word)
    assert IN_PYTHON.library is None
