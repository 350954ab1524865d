r"""Where each data set is looked for, where it comes from, and how it is fetched."""

import os
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whitenorm.lab.lookup import look_up


class DataError(Exception):
    """A data file is missing, truncated or corrupt; the message names it and where to get it."""


@dataclass(frozen=True)
class File:
    """A file that is expected."""

    md5: str | None = None
    size: int | None = None  # in bytes, for formats that can't tell whether a file is truncated


@dataclass(frozen=True)
class Source:
    """Where one data set comes from."""

    title: str
    folder: str | None  # in the data folder; None if the data set ships with a package
    files: Mapping[str, File | None] = field(default_factory=dict)  # None: a folder
    where: str = ""  # people can get it
    url: str | None = None  # of an archive or of the files' folder; None if it may not be fetched
    md5: str | None = None  # of the archive; None if the files are fetched one by one

    @property
    def may_fetch(self) -> bool:
        """Whether :func:`fetch` can download it."""
        return self.url is not None


@dataclass(frozen=True)
class Status:
    """What is known about a data set on this machine."""

    name: str
    title: str
    state: str  # "embedded", "present", "incomplete", "missing" or "corrupt" (a checksum differs)
    path: Path | None  # where it is looked for; None if it is embedded
    missing: tuple[str, ...]  # the files that are absent or wrong, and what is wrong with each
    may_fetch: bool
    where: str


_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_FACES = (
    "http://www.cad.zju.edu.cn/home/dengcai/Data/FaceData.html (for research use only: ask its "
    "owners, and put the 32x32 version by Cai et al. there)"
)

SOURCES: dict[str, Source] = {
    "digits": Source("handwritten digits, 8x8 (scikit-learn)", None, where="inside scikit-learn"),
    "photographs": Source(
        "patches of two photographs, 12x12 (scikit-learn)", None, where="inside scikit-learn"
    ),
    "mnist": Source(
        "MNIST",
        "mnist",
        {
            "train-images-idx3-ubyte.gz": File("f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            "train-labels-idx1-ubyte.gz": File("d53e105ee54ea40749a09fcbcd1e9432"),
            "t10k-images-idx3-ubyte.gz": File("9fb629c4189551a2d022fa330f9573f3"),
            "t10k-labels-idx1-ubyte.gz": File("ec29112dd5afa0611ce80d1b7f02629c"),
        },
        "http://yann.lecun.com/exdb/mnist/ (the four original IDX files, gzipped)",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    "cifar10": Source(
        "CIFAR-10, binary version",
        "cifar-10-batches-bin",
        {
            "data_batch_1.bin": File("5dd7e06a14cb22eb9f671a540d1b7c25", 30730000),
            "data_batch_2.bin": File("5ea93a67294ea407fff1d09f752e9692", 30730000),
            "data_batch_3.bin": File("942cd6a4bcdd0dd3c604fbe906cb4421", 30730000),
            "data_batch_4.bin": File("ae636b3ba5c66a11e91e8cb52e771fcb", 30730000),
            "data_batch_5.bin": File("53f37980c15c3d472c316c40844f3f0d", 30730000),
            "test_batch.bin": File("803d5f7f4d78ea53de84dbe85f74fb6d", 30730000),
        },
        f"{_CIFAR}cifar.html (the binary version)",
        f"{_CIFAR}cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
    ),
    "cifar100": Source(
        "CIFAR-100, binary version",
        "cifar-100-binary",
        {"train.bin": File(size=153700000), "test.bin": File(size=30740000)},
        f"{_CIFAR}cifar.html (the binary version)",
        f"{_CIFAR}cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
    ),
    "yaleb": Source("Extended Yale-B, 32x32", "yaleb", {"YaleB_32x32.mat": File()}, _FACES),
    "pie": Source(
        "CMU PIE, 32x32, JPEG-recompressed", "pie", {"PIE_32x32_from_jpeg.mat": File()}, _FACES
    ),
    "tiny-imagenet-20": Source(
        "20 classes of Tiny-ImageNet, 64x64",
        "tiny-imagenet-20",
        {"train": None, "val": None},
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip, laid out as {train,val}/<class>/*.JPEG",
    ),
    "imagenet": Source(
        "ImageNet (ILSVRC-2012)",
        "imagenet",
        {"train": None, "val": None},
        "https://image-net.org (after registration), laid out as {train,val}/<class>/*.JPEG",
    ),
}


def folder_of(name: str, root: Path | str | None) -> Path:
    """Where the files of a data set are looked for, below ``root`` or else $WHITENORM_DATA."""
    source = look_up(SOURCES, "data set", name)
    if source.folder is None:
        raise ValueError(f"data set {name!r} has no files: it is {source.where}")
    if root is None and not (root := os.environ.get("WHITENORM_DATA")):
        raise DataError(
            "no data folder is known: give one (--data DIR), or set the environment variable "
            "WHITENORM_DATA to it"
        )
    return Path(root).expanduser() / source.folder


def problem(path: Path, what: str, name: str) -> DataError:
    """The error for a file: which, what is wrong with it, and where to get it."""
    source = SOURCES[name]
    hint = f", or fetch it with `whitenorm data --fetch {name}`" if source.may_fetch else ""
    return DataError(f"{path}: {what}. {source.title} comes from {source.where}{hint}")


def checked_file(name: str, file: str, root: Path | str | None) -> Path:
    """The path of one of a data set's files; an error if it is absent or of the wrong size."""
    path = folder_of(name, root) / file
    if wrong := _wrong(path, SOURCES[name].files[file], checksum=False):
        raise problem(path, wrong, name)
    return path


def _wrong(path: Path, expected: File | None, checksum: bool) -> str | None:
    """What is wrong with a file or folder; None if nothing is."""
    if expected is None:
        return None if path.is_dir() else "no such folder"
    if not path.is_file():
        return "no such file"
    size = path.stat().st_size
    if expected.size is not None and size != expected.size:
        kind = "truncated" if size < expected.size else "not the expected file"
        return f"{kind}: {size} bytes where {expected.size} were expected"
    if checksum and expected.md5 is not None:
        import pooch  # takes 0.3 s, and most commands don't need it

        if (found := pooch.file_hash(str(path), "md5")) != expected.md5:
            return f"corrupt: md5 {found} where {expected.md5} was expected"
    return None


def status(root: Path | str | None = None, *, checksum: bool = False) -> list[Status]:
    """The state of every data set; to compare checksums too reads every file."""
    # Without a data folder, show where the files would be if the variable were set.
    root = root or os.environ.get("WHITENORM_DATA") or "$WHITENORM_DATA"
    rows = []
    for name, source in SOURCES.items():
        path = None if source.folder is None else folder_of(name, root)
        wrong = {
            file: what
            for file, expected in source.files.items()
            if path and (what := _wrong(path / file, expected, checksum))
        }
        if not wrong:
            state = "present" if path else "embedded"
        elif any(what.startswith("corrupt") for what in wrong.values()):
            state = "corrupt"
        else:
            state = "missing" if len(wrong) == len(source.files) else "incomplete"
        missing = tuple(f"{file}: {what}" for file, what in wrong.items())
        rows.append(
            Status(name, source.title, state, path, missing, source.may_fetch, source.where)
        )
    return rows


def fetch(name: str, root: Path | str | None = None, *, progressbar: bool = False) -> list[Path]:
    """Downloads what is absent or wrong of a data set, and gives the paths of its files.

    A download that fails or doesn't match its published md5 sum leaves nothing behind.
    """
    source = look_up(SOURCES, "data set", name)
    if source.folder is None:
        return []
    if source.url is None:
        raise DataError(f"{source.title} may not be fetched. It comes from {source.where}")
    folder = folder_of(name, root)
    files = {file: expected for file, expected in source.files.items() if expected is not None}

    def download(url: str, md5: str | None, to: Path) -> Path:
        """The path of the file, which is left alone if it is there with that checksum."""
        import pooch  # takes 0.3 s, and most commands don't need it

        pooch.get_logger().setLevel("WARNING")
        file = url.rsplit("/", 1)[-1]
        try:
            return Path(pooch.retrieve(url, f"md5:{md5}", file, to, progressbar=progressbar))
        except (OSError, ValueError) as error:  # no connection; another checksum
            raise DataError(
                f"{url} could not be fetched: {error}. {source.title} comes from {source.where}; "
                f"put the files {', '.join(files)} into {folder}"
            ) from error

    if source.md5 is None:
        for file, expected in files.items():
            download(source.url + file, expected.md5, folder)
    elif any(_wrong(folder / file, expected, checksum=True) for file, expected in files.items()):
        folder.mkdir(parents=True, exist_ok=True)
        # Only whole files that were checked leave the temporary folder.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:
            archive = download(source.url, source.md5, Path(temporary))
            _extract(source, archive)
            for file in files:
                (archive.parent / file).replace(folder / file)
    return [folder / file for file in files]


def _extract(source: Source, archive: Path) -> None:
    """Writes the content of the source's files, and of no other, beside the archive.

    ``pooch.Untar`` isn't as safe: below Python 3.12 it follows links that an archive may hold.
    """
    try:
        with tarfile.open(archive) as tar:
            for file in source.files:
                stream = tar.extractfile(f"{source.folder}/{file}")
                if stream is None:
                    raise KeyError(f"{file} is not a regular file")
                (archive.parent / file).write_bytes(stream.read())
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise DataError(f"{source.url}: the archive is not as expected: {error}") from error
