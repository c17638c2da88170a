"""The file format of archives: lookups, damage, foreign files, atomic writes."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazy_backend import pack

KEYS = [hashlib.sha256(bytes([i])).digest() for i in range(20)]
BLOBS = {key: bytes([i]) * (i * 7) for i, key in enumerate(KEYS)}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "p"
    pack.write(path, BLOBS)
    return path


def test_what_was_written_is_read(path):
    assert dict(pack.Pack(path)) == BLOBS
    assert hashlib.sha256(b"none").digest() not in pack.Pack(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "0 bytes"), (b"x" * 200, "begins with"), (pack._HEAD.pack(b"LZPACK", 9, 0, b""), "version 9")],
)
def test_a_foreign_file_is_named(tmp_path, content, says):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(pack.BadPack, match=says):
        pack.Pack(tmp_path / "f")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_is_never_read_as_data(path, data, tmp_path_factory):
    """one changed byte, or a lost end: every lookup gives the blob that was written, or raises"""
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        del content[at:]
    damaged = tmp_path_factory.mktemp("damaged") / "p"
    damaged.write_bytes(content)
    try:
        opened = pack.Pack(damaged)
    except pack.BadPack:
        return
    wrong = 0
    for key, blob in BLOBS.items():
        try:
            assert opened[key] == blob
        except pack.BadPack:
            wrong += 1
    assert wrong >= 1


def test_a_write_that_fails_leaves_no_trace(tmp_path, monkeypatch):
    (tmp_path / "p").write_text("old")

    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        pack.write(tmp_path / "p", BLOBS)
    assert [p.name for p in tmp_path.iterdir()] == ["p"] and (tmp_path / "p").read_text() == "old"
