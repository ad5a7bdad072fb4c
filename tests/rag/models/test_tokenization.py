from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rag.errors import InvalidRequest
from rag.models.card import ModelCard
from rag.models.packaged import PACKAGED
from rag.models.registry import load_tokenizer
from rag.models.tokenization import SMALLEST_PASSAGE, PairTokens, TextTokens
from rag.settings import ModelSettings
from rag.types import Kind
from tests.models_made import SPECIAL, words

SPELLINGS = ["<s>", "</s>", "<pad>", "<unk>", "<mask>", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "<|endoftext|>"]
CARD = ModelCard(32, query_prefix="find: ")

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="<>"), max_size=60)
relaxed = settings(max_examples=60)


@pytest.fixture(scope="module")
def tokens(tiny_m3):
    return TextTokens(tiny_m3 / "tokenizer.json", CARD)


@pytest.fixture(scope="module")
def pairs(tiny_reranker):
    return PairTokens(tiny_reranker / "tokenizer.json", 40)


@pytest.fixture(scope="module")
def plain(tiny_m3):
    """The same file as the library reads it."""
    return Tokenizer.from_file(str(tiny_m3 / "tokenizer.json"))


@given(text=texts)
@relaxed
def test_ordinary_text_has_the_ids_that_the_library_gives_it(tokens, plain, text):
    [ids] = tokens.encode([text], Kind.PASSAGE)
    assert ids.dtype == np.int32
    assert ids.tolist() == plain.encode(text.strip()).ids


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_special_token_that_a_text_spells_out_is_ordinary_text(tokens, spelling):
    special = {tokens._tokenizer.token_to_id(f" {name} ") for name in SPECIAL} - {3}  # 3: letters it does not know
    for text in (spelling, f"a {spelling} b", f"x{spelling}{spelling}"):
        [ids] = tokens.encode([text], Kind.PASSAGE)
        assert not special & set(ids[1:-1].tolist())
        assert tokens.count(text) > text.count(spelling)


@pytest.mark.models
@pytest.mark.parametrize("model", PACKAGED)
def test_so_it_is_for_the_packaged_models(packaged, model):
    tokenizer = load_tokenizer(packaged(model))
    special = set(Tokenizer.from_file(str(PACKAGED[model].tokenizer.locate())).get_added_tokens_decoder())
    for spelling in SPELLINGS:
        [ids] = tokenizer.encode([f"before {spelling} after"], Kind.PASSAGE)
        assert not special & set(ids[1:-1].tolist()), spelling


@pytest.mark.models
def test_a_tokenizer_file_that_cuts_and_pads_does_neither(packaged):
    tokenizer = load_tokenizer(packaged("all-MiniLM-L6-v2"))  # its file says: cut at 128, pad to 128
    long, short = tokenizer.encode(["word " * 600, "word"], Kind.PASSAGE)
    assert (len(long), len(short)) == (602, 3)


@given(text=texts)
@relaxed
def test_a_passage_costs_its_own_tokens_and_the_special_ones(tokens, text):
    [ids] = tokens.encode([text], Kind.PASSAGE)
    assert len(ids) == tokens.count(text) + tokens.special_tokens == len(tokens.spans(text)) + 2


@given(text=texts)
@relaxed
def test_spans_ascend_within_the_text(tokens, text):
    spans = tokens.spans(text)
    assert spans.dtype == np.int32
    assert spans.shape[1] == 2
    assert (spans[:, 0] <= spans[:, 1]).all()
    assert (np.diff(spans[:, 0]) >= 0).all()
    assert not len(spans) or (spans[0, 0] >= 0 and spans[-1, 1] <= len(text))


def test_the_prefix_of_a_kind_stands_before_the_text(tokens, plain):
    [query], [passage] = (tokens.encode(["word"], kind) for kind in (Kind.QUERY, Kind.PASSAGE))
    assert query.tolist() == plain.encode("find: word").ids
    assert passage.tolist() == plain.encode("word").ids


def test_a_prefix_counts_among_what_a_passage_costs(tiny_m3):
    tokens = TextTokens(tiny_m3 / "tokenizer.json", ModelCard(32, passage_prefix="passage: "))
    for text in words(20):
        assert len(tokens.encode([text], Kind.PASSAGE)[0]) <= tokens.count(text) + tokens.special_tokens


@given(count=st.integers(0, 80))
@relaxed
def test_truncation_cuts_to_the_window_and_keeps_the_closing_token(tokens, count):
    [ids] = tokens.encode([" ".join(words(count))], Kind.PASSAGE)
    cut = tokens.truncate(ids)
    assert len(cut) == min(len(ids), CARD.window)
    assert cut[-1] == ids[-1]
    assert cut[:-1].tolist() == ids[: len(cut) - 1].tolist()


def test_half_a_surrogate_pair_is_read_as_the_replacement_character(tokens):
    broken, replaced = tokens.encode(["é \ud800 x", "é \ufffd x"], Kind.PASSAGE)
    assert broken.tolist() == replaced.tolist()


def test_sixty_four_threads_share_one_tokenizer(tokens):
    inputs = [" ".join(words(1 + seed % 40, seed)) for seed in range(256)]
    alone = [tokens.encode([text], Kind.QUERY)[0].tolist() for text in inputs]

    def job(seed):
        tokens.spans(inputs[seed])
        return tokens.encode([inputs[seed]], Kind.QUERY)[0].tolist(), tokens.count(inputs[seed])

    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(job, range(256)))
    assert [ids for ids, _ in together] == alone


def test_a_tokenizer_is_loaded_without_any_model_library(tiny_m3):
    code = (
        "import sys\n"
        "from rag.models.registry import load_tokenizer\n"
        "from rag.settings import ModelSettings\n"
        f"assert load_tokenizer(ModelSettings(model={str(tiny_m3)!r})).count('a b') > 0\n"
        "heavy = {'torch', 'transformers', 'onnxruntime', 'FlagEmbedding'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, env=os.environ | {"PYTHONPATH": str(root)})


def test_a_folder_gives_the_same_tokenizer_to_the_model_and_to_the_ingestor(tiny_m3):
    tokens = load_tokenizer(ModelSettings(model=str(tiny_m3), max_tokens=100, passage_prefix="p: "))
    assert tokens.max_tokens == 100
    assert tokens.special_tokens == 2 + tokens.count("p: ")


# --- pairs ----------------------------------------------------------------------------------------------------------


@given(passage=texts)
@relaxed
def test_a_pair_is_joined_as_the_tokenizer_joins_it(pairs, plain, passage):
    window = 40
    [pair] = pairs.encode("which one", [passage], None)
    whole = plain.encode("which one", passage.strip())
    if len(whole.ids) <= window:
        assert pair.ids.tolist() == whole.ids
        assert pair.type_ids.tolist() == whole.type_ids
    else:
        assert len(pair.ids) == window
        assert pair.ids.tolist() == whole.ids[: window - 1] + whole.ids[-1:]


@pytest.mark.models
def test_the_two_sides_of_a_pair_have_types_of_their_own_under_bert(packaged):
    packaged("ms-marco-MiniLM-L-12-v2")
    pairs = PairTokens(PACKAGED["ms-marco-MiniLM-L-12-v2"].tokenizer.locate(), 512)
    [pair] = pairs.encode("a", ["b c"], None)
    assert pair.ids.tolist() == [101, 1037, 102, 1038, 1039, 102]
    assert pair.type_ids.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_passage_is_cut_to_the_tokens_that_are_asked_for(pairs):
    short, long = (pairs.encode("which", [" ".join(words(30))], limit)[0] for limit in (5, None))
    assert len(short.ids) == len(pairs.encode("which", [""], None)[0].ids) + 5
    assert len(long.ids) == 40


def test_a_query_that_leaves_no_room_is_refused(pairs):
    widest = "a" * (40 - 4 - SMALLEST_PASSAGE - 1)  # and the token that stands for the beginning of a word
    [pair] = pairs.encode(widest, [" ".join(words(30))], None)
    assert len(pair.ids) == 40
    with pytest.raises(InvalidRequest, match="no room") as refused:
        pairs.encode(f"{widest}a", ["x"], None)
    assert refused.value.param == "query"
