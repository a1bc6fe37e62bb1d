"""No file runs code, exhausts memory or ends in anything but one sentence."""

import gzip
import pickle
import pickletools
import struct
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from tests.sources.snapshots.recordings import event, read, recording, resolved
from vramcast.errors import SourceError
from vramcast.sources.snapshots import read_snapshot, streams

HEAD = b"\x80\x04"


class _Call:
    """Pickles as a call."""

    def __reduce__(self) -> Any:
        return print, ("run",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_no_pickle_runs_code(tmp_path: Path, protocol: int, capsys: pytest.CaptureFixture[str]) -> None:
    raw = recording() | {"segments": [_Call()]}
    with pytest.raises(SourceError, match=r"an object.* is to be built"):
        read(tmp_path, pickle.dumps(raw, protocol=protocol))
    assert capsys.readouterr().out == ""


def test_the_class_that_a_pickle_asks_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"builtins\.print"):
        read(tmp_path, pickle.dumps([_Call()], protocol=4))


_REFUSED = {opcode.name: opcode.code.encode("latin-1") for opcode in pickletools.opcodes} | {}
_ALLOWED = {
    "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "EMPTY_DICT",
    "EMPTY_LIST", "EMPTY_TUPLE", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINUNICODE",
    "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(_REFUSED.keys() - _ALLOWED))
def test_opcodes_that_plain_containers_do_not_need_are_refused(tmp_path: Path, name: str) -> None:
    content = HEAD + b"\x8c\x02os\x94\x8c\x06system\x94" + _REFUSED[name] + b"os\nsystem\n" + b"\x01" * 16 + b"."
    with pytest.raises(SourceError, match=r"an object|the opcode"):
        read(tmp_path, content)


HOSTILE = {
    "a memo entry far away": HEAD + b"]r\xff\xff\xff\x7f.",
    "a text of 2^60 bytes": HEAD + b"\x8d" + struct.pack("<Q", 2**60) + b"x.",
    "bytes of 2^60 bytes": HEAD + b"\x8e" + struct.pack("<Q", 2**60) + b"x.",
    "a bytearray": HEAD + b"\x96" + struct.pack("<Q", 2**60) + b"x.",
    "an integer of 2^31 bytes": HEAD + b"\x8b\xff\xff\xff\x7f" + b"\xff" * 64 + b".",
    "an integer of 255 bytes": HEAD + b"\x8a\xff" + b"\xff" * 255 + b".",
    "a decimal integer": b"\x80\x02L" + b"9" * 10**6 + b"L\n.",
    "marks in marks": HEAD + b"(" * 10**6 + b".",
    "lists in lists": HEAD + b"]" * 10**6 + b"a" * (10**6 - 1) + b".",
    "a reference to nothing": HEAD + b"h\x05.",
    "nothing": HEAD + b".",
    "only half": HEAD + b"}\x94(",
    "an unhashable key": HEAD + b"}]Ns.",
    "a stack that is empty": HEAD + b"a.",
    "values beside the root": HEAD + b"NN.",
    "a list that holds itself": HEAD + b"]\x94h\x00a.",
    "a dict that holds itself": HEAD + b"}\x94\x8c\x08segmentsh\x00s.",
    "an event twice": pickle.dumps({"device_traces": [[event("alloc", 1, 1)] * 2]}, protocol=4),
}  # fmt: skip


EIGHTH = 1 << 17
SMALL = {
    "tuples in tuples": HEAD + b")" + b"\x85" * (4 * EIGHTH) + b".",
    "lists in lists": HEAD + b"]" * (2 * EIGHTH) + b"a" * (2 * EIGHTH - 1) + b".",
    "packed numbers": gzip.compress(HEAD + b"]\x94(" + b"K\x01" * (21 * EIGHTH) + b"e."),
    "packed references": gzip.compress(HEAD + b"]\x94(" + b"h\x00" * (21 * EIGHTH) + b"e."),
    "packed tuples": gzip.compress(HEAD + b")" + b"\x85" * (42 * EIGHTH) + b"."),
}
"""Tried against an eighth of the real limits: the work grows with them."""


@pytest.mark.parametrize("name", SMALL)
def test_small_files_ask_for_little_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for limit in ("MOST_VALUES", "FREE_VALUES"):
        monkeypatch.setattr(streams, limit, getattr(streams, limit) // 8)
    start = process_time()
    with pytest.raises(SourceError, match="no allocator writes that many"):
        read(tmp_path, SMALL[name])
    assert process_time() - start < 3  # 0.5 s and less where nothing else runs


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_end_in_one_sentence_at_once(tmp_path: Path, name: str) -> None:
    start = process_time()
    with pytest.raises(SourceError) as caught:
        read(tmp_path, HOSTILE[name])
    assert process_time() - start < 30
    assert "\n" not in str(caught.value)


def _billion_laughs() -> bytes:
    """Lists of ten references to the list before, thirty times over, as the frames of an event."""
    content = HEAD + b"]\x94"
    for level in range(30):
        content += b"]\x94(" + b"h" + bytes([level]) + (b"h" + bytes([level])) * 9 + b"e"
    return content + b"."


_BOMBS = {
    "empty dicts": (HEAD + b"]\x94(", b"}" * 10**6, 20),
    "numbers": (HEAD + b"]\x94(", b"\x8a\x07\x01\x02\x03\x04\x05\x06\x07" * 10**5, 40),
    "memo entries": (HEAD + b"]\x94", b"\x94" * 10**6, 40),
    "texts": (HEAD + b"]\x94(", b"\x8c\x02ab" * 10**5, 60),
    "references": (HEAD + b"]\x94(", b"h\x00" * 10**6, 20),
    "zeros": (b"", b"\x00" * 10**6, 300),
    "spaces of JSON": (b"[", b" " * 10**6, 300),
    "elements of JSON": (b"[", b"{}," * 10**6, 20),
    "depth of JSON": (b"", b"[" * 10**6, 120),
}
_WHOLE = {"zeros", "spaces of JSON", "depth of JSON"}
"""Tried against the real limit; the others against an eighth of it, in an eighth of the memory and a process's own."""

_LIMITED = """
import resource, sys
from pathlib import Path
from vramcast.errors import SourceError
from vramcast.sources.snapshots import read_snapshot, streams
share = int(sys.argv[2])
streams.MOST_VALUES //= share
most = 2 * 2**30 // share + (2**28 if share > 1 else 0)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    read_snapshot(Path(sys.argv[1]))
except SourceError as error:
    print(error)
"""


@pytest.mark.parametrize("name", _BOMBS)
def test_small_files_that_unpack_to_much_fit_in_two_gigabytes(tmp_path: Path, name: str) -> None:
    head, body, times = _BOMBS[name]
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(times):
            file.write(body)
    command = [sys.executable, "-c", _LIMITED, str(path), "1" if name in _WHOLE else "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert "values beside its events" in done.stdout or name in _WHOLE


def test_aliases_are_not_walked_again_and_again(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        read(tmp_path, _billion_laughs())


def test_more_bytes_than_the_limit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.pickle"
    path.write_bytes(pickle.dumps(recording(num_events=500), protocol=4))
    with pytest.raises(SourceError, match="more than 1,000 bytes"):
        read_snapshot(path, limit_bytes=1000)


def test_recordings_are_read_inside_gzip_and_zip(tmp_path: Path) -> None:
    raw = pickle.dumps(recording(), protocol=4)
    expected = resolved(read(tmp_path, raw))
    assert resolved(read(tmp_path, gzip.compress(raw))) == expected
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("snapshot/version", "3")
        archive.writestr("snapshot/data.pkl", raw)
    assert resolved(read(tmp_path, packed.getvalue())) == expected


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"\x1f\x8b", b"\x1f\x8b\x08\x00garbage", b"PK\x03\x04", b"{", b"[", b"{}", b"null", b'{"a":1}'],
)
def test_what_is_no_recording_is_said(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SourceError):
        read(tmp_path, content)


def test_a_missing_file_and_a_folder_are_said(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(SourceError, match="cannot be read"):
            read_snapshot(path)


_PICKLE = pickle.dumps(recording(num_events=40), protocol=4)
_OLD_PICKLE = pickle.dumps(recording(num_events=40), protocol=2)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), content=st.sampled_from([_PICKLE, _OLD_PICKLE]))
def test_damaged_recordings_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, content: bytes
) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["set", "delete", "insert", "copy"])):
            case "set":
                damaged[place] = data.draw(st.integers(0, 255))
            case "delete":
                del damaged[place : place + data.draw(st.integers(1, 20))]
            case "insert":
                damaged[place:place] = data.draw(st.binary(max_size=12))
            case _:
                other = data.draw(st.integers(0, len(damaged)))
                damaged[place:place] = damaged[other : other + 40]
        if not damaged:
            break
    _read_or_refuse(tmp_path_factory.getbasetemp(), bytes(damaged))


@settings(max_examples=150, deadline=None)
@given(head=st.sampled_from([b"", b"\x80\x04", b"\x80\x04}\x94(", b"{", b"[", b'{"traceEvents":[', b"\x1f\x8b"]),
       rest=st.binary(max_size=400))  # fmt: skip
def test_random_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, head: bytes, rest: bytes) -> None:
    _read_or_refuse(tmp_path_factory.getbasetemp(), head + rest)


def _read_or_refuse(folder: Path, content: bytes) -> None:
    try:
        snapshot = read(folder, content)
    except SourceError:
        return
    for device in snapshot.devices:
        assert len({len(getattr(device.trace, column)) for column in device.trace.__struct_fields__}) == 1
        assert all(stack < len(snapshot.stacks) for stack in device.trace.stacks)


_TEXTS = st.sampled_from(["", "N/A", "rollout", "x" * 300, "阶段"])
_EVENTS = st.lists(
    st.builds(
        event,
        st.sampled_from(["alloc", "free_requested", "free_completed", "segment_alloc", "oom", "snapshot"]),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**63 - 1),
        stream=st.sampled_from([0, 1, 2**47]),
        time_us=st.integers(0, 2**62),
        user_metadata=_TEXTS,
        compile_context=_TEXTS,
        pool_id=st.tuples(st.integers(0, 3), st.integers(0, 300)),
        frames=st.lists(st.sampled_from([{"name": n, "filename": "f", "line": i} for i, n in enumerate("abcde")])),
    ),
    min_size=1, max_size=30,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(events=_EVENTS, drop=st.sets(st.sampled_from(["pool_id", "time_us", "user_metadata", "frames", "stream"])))
def test_events_read_fast_are_those_of_the_pickle_module(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], drop: set[str]
) -> None:
    """Whatever the values and keys: the patterns never read anything else than opcode by opcode would."""
    kept = [{key: value for key, value in row.items() if key not in drop} for row in events]
    snapshot = read(tmp_path_factory.getbasetemp(), {"segments": [], "device_traces": [kept]})
    found = [row for device in resolved(snapshot)["devices"] for row in device[3]]
    for row, expected in zip(found, kept, strict=True):
        place = expected["device_free"] if expected["action"] == "oom" else expected["addr"]
        assert row[1:5] == (place, expected["size"], expected.get("stream", 0), expected.get("time_us", 0))
        assert [astuple(frame) for frame in row[5]] == [tuple(f.values()) for f in expected.get("frames", ())]
        assert row[6] == expected.get("pool_id", (0, 0))
        texts = (expected.get("user_metadata"), expected["compile_context"])
        assert row[7] == next((text for text in texts if text not in (None, "", "N/A")), "")


