from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rag import tiktokens
from rag.errors import InvalidRequest, ModelUnavailable


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
def test_ids_become_the_text_that_they_were_made_of(encoding):
    text = "Naïve café, 世界! <|endoftext|>"
    tiktokens.use_tables(encoding)
    import tiktoken

    ids = tiktoken.get_encoding(encoding).encode_ordinary(text)
    assert tiktokens.decode(ids, encoding) == text
    assert tiktokens.count(text, encoding) == len(ids)


@pytest.mark.parametrize("unknown", [-1, 100_256, 10**6, 2**40])
def test_an_id_that_the_encoding_lacks_is_refused_by_name(unknown):
    with pytest.raises(InvalidRequest, match="cl100k_base") as refused:
        tiktokens.decode([15339, unknown], "cl100k_base")
    assert refused.value.param == "input"


def test_a_folder_without_the_table_is_named_with_its_setting(tmp_path):
    with pytest.raises(ModelUnavailable, match="tiktoken_dir") as missing:
        tiktokens.use_tables("cl100k_base", tmp_path)
    assert str(tmp_path) in missing.value.message


def test_an_unknown_encoding_is_named_with_those_that_there_are():
    with pytest.raises(ModelUnavailable, match="cl100k_base"):
        tiktokens.use_tables("cl200k_base")


def test_nothing_is_asked_of_the_network():
    code = (
        "import socket\n"
        "def refuse(*_): raise AssertionError('a connection was tried')\n"
        "socket.socket.connect = refuse\n"
        "socket.getaddrinfo = refuse\n"
        "from rag.tiktokens import decode\n"
        "assert decode([15339, 1917], 'cl100k_base') == 'hello world'\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TIKTOKEN_CACHE_DIR"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, env=environment)
