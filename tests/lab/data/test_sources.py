"""What is known about the data on this machine, and fetching from a server on this machine."""

import hashlib
import http.server
import io
import os
import tarfile
import threading
from dataclasses import replace

import pytest
from datafiles import write_cifar, write_faces, write_mnist

from whitenorm.lab.data.sources import SOURCES, DataError, File, Source, fetch, status


def row(root, name, **options):
    return next(row for row in status(root, **options) if row.name == name)


def test_status_says_what_is_there_what_is_missing_and_what_is_wrong(tmp_path, monkeypatch):
    write_cifar(tmp_path, monkeypatch, "cifar10")
    write_faces(tmp_path / "yaleb" / "YaleB_32x32.mat")
    rows = {row.name: row for row in status(tmp_path)}
    assert rows["digits"].state == "embedded"
    assert rows["digits"].path is None
    assert rows["cifar10"].state == rows["yaleb"].state == "present"
    assert rows["mnist"].state == "missing"
    assert rows["mnist"].path == tmp_path / "mnist"
    assert rows["mnist"].may_fetch
    assert not rows["yaleb"].may_fetch
    folder = tmp_path / SOURCES["cifar10"].folder
    (folder / "data_batch_3.bin").unlink()
    (folder / "test_batch.bin").write_bytes(b"short")
    broken = row(tmp_path, "cifar10")
    assert broken.state == "incomplete"
    assert broken.missing == (
        "data_batch_3.bin: no such file",
        "test_batch.bin: truncated: 5 bytes where 12292 were expected",
    )


def test_status_without_a_data_folder_shows_where_it_would_look(monkeypatch):
    monkeypatch.delenv("WHITENORM_DATA", raising=False)
    pie = row(None, "pie")
    assert pie.state == "missing"
    assert str(pie.path) == "$WHITENORM_DATA/pie"


def test_status_compares_checksums_when_asked(tmp_path):
    write_mnist(tmp_path)
    assert row(tmp_path, "mnist").state == "present"
    checked = row(tmp_path, "mnist", checksum=True)
    assert checked.state == "corrupt"
    assert "md5" in checked.missing[0]


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server on this machine, and the folder that it serves."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}/"
        running.shutdown()
        thread.join()


def md5(raw):
    return hashlib.md5(raw).hexdigest()


def serve_files(server, monkeypatch):
    folder, url = server
    contents = {"a.gz": b"first", "b.gz": b"second"}
    for name, raw in contents.items():
        (folder / name).write_bytes(raw)
    files = {name: File(md5(raw)) for name, raw in contents.items()}
    monkeypatch.setitem(SOURCES, "small", Source("small", "small", files, "the shelf", url))
    return folder, contents


def test_fetch_downloads_the_files_and_leaves_those_that_are_right_alone(
    server, tmp_path, monkeypatch
):
    folder, contents = serve_files(server, monkeypatch)
    root = tmp_path / "data"
    paths = fetch("small", root)
    assert {path.name: path.read_bytes() for path in paths} == contents
    (folder / "a.gz").unlink()  # not needed again
    paths[1].write_bytes(b"spoilt")
    fetch("small", root)
    assert paths[1].read_bytes() == b"second"
    assert sorted(path.name for path in (root / "small").iterdir()) == ["a.gz", "b.gz"]


def test_fetch_refuses_what_does_not_match_its_checksum(server, tmp_path, monkeypatch):
    folder, _ = serve_files(server, monkeypatch)
    (folder / "b.gz").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"b\.gz could not be fetched.*the shelf.*into.*small"):
        fetch("small", tmp_path / "data")
    assert not (tmp_path / "data" / "small" / "b.gz").exists()


def test_fetch_without_a_connection_says_what_to_do_by_hand(server, tmp_path, monkeypatch):
    folder, _ = serve_files(server, monkeypatch)
    (folder / "a.gz").unlink()
    with pytest.raises(DataError, match=r"a\.gz could not be fetched.*404.*put the files a\.gz"):
        fetch("small", tmp_path / "data")
    unreachable = replace(SOURCES["small"], url="http://127.0.0.1:9/")
    monkeypatch.setitem(SOURCES, "small", unreachable)
    with pytest.raises(DataError, match="could not be fetched"):
        fetch("small", tmp_path / "data")


def archive_of(contents, link=None):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, raw in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            if link:
                member.type, member.linkname, member.size = tarfile.SYMTYPE, str(link), 0
            tar.addfile(member, io.BytesIO(raw))
    return stream.getvalue()


def serve_archive(server, monkeypatch, raw, md5_of=None):
    folder, url = server
    (folder / "small.tar.gz").write_bytes(raw)
    expected, files = md5(md5_of or raw), {"a.bin": File()}
    source = Source("small", "small", files, "the shelf", url + "small.tar.gz", expected)
    monkeypatch.setitem(SOURCES, "small", source)


def test_fetch_takes_only_the_expected_files_out_of_an_archive(server, tmp_path, monkeypatch):
    raw = archive_of({"small/a.bin": b"data", "small/other": b"x", "../escaped": b"x"})
    serve_archive(server, monkeypatch, raw)
    root = tmp_path / "data"
    assert fetch("small", root) == [root / "small" / "a.bin"]
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["a.bin"]
    assert not (tmp_path / "escaped").exists()


def test_fetch_says_if_an_archive_lacks_a_file(server, tmp_path, monkeypatch):
    serve_archive(server, monkeypatch, archive_of({"small/b.bin": b"data"}))
    with pytest.raises(DataError, match=r"archive is not as expected: .*a\.bin"):
        fetch("small", tmp_path / "data")
    assert not list((tmp_path / "data").rglob("*.tar.gz"))


@pytest.mark.parametrize("kind", ["wrong checksum", "truncated archive", "link"])
def test_a_failed_fetch_leaves_nothing_behind_and_follows_no_link(
    server, tmp_path, monkeypatch, kind
):
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    raw = archive_of({"small/a.bin": b"data" * 1000}, link=outside if kind == "link" else None)
    if kind == "truncated archive":
        raw = raw[: len(raw) // 2]
    serve_archive(server, monkeypatch, raw, md5_of=b"another" if kind == "wrong checksum" else raw)
    with pytest.raises(DataError, match=r"small\.tar\.gz"):
        fetch("small", tmp_path / "data")
    assert list((tmp_path / "data" / "small").iterdir()) == []


@pytest.mark.parametrize("name", ["yaleb", "pie", "tiny-imagenet-20", "imagenet"])
def test_what_may_not_be_fetched_is_refused(tmp_path, name):
    with pytest.raises(DataError, match=r"may not be fetched\. It comes from http"):
        fetch(name, tmp_path)


def test_fetchable_data_has_published_checksums():
    for name in ("mnist", "cifar10", "cifar100"):
        source = SOURCES[name]
        assert source.may_fetch
        assert source.md5 or all(file.md5 for file in source.files.values())


def test_real_files_have_the_published_checksums():
    root = os.environ.get("WHITENORM_DATA")
    if not root:
        pytest.skip("WHITENORM_DATA is not set: no real data to read")
    for row in status(root, checksum=True):
        assert row.state != "corrupt", row.missing
