"""Which files of which folders to read, and why the others are left out."""

from __future__ import annotations

import os
import stat
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ctx_vector.documents import CONTROLS
from ctx_vector.errors import InputError
from ctx_vector.ignore_rules import Rules, ignored, outer_rules, own_rules

MAX_BYTES = 20_000_000
_VCS = frozenset((".git", ".hg", ".svn", ".bzr", "CVS", "_darcs", ".jj"))
_BUILT = frozenset(("node_modules", "__pycache__", "bower_components", "site-packages", "__pypackages__"))
# what lies beside the databases of knowledge bases, memories and audits; the databases themselves are binary
_STORE_FILES = (".sqlite3-shm", ".sqlite3-wal", ".sqlite3-journal", ".sqlite3.lock")
_STORE_LOCKS, _KNOWLEDGE = ("sync.lock", "index.lock"), "ctx.sqlite3"
_VENV_MARK = "pyvenv.cfg"
_GENERATED = (
    ".min.js",
    ".min.css",
    ".map",
    "package-lock.json",
    "pnpm-lock.yaml",
    "yarn.lock",
    "poetry.lock",
    "uv.lock",
)
_BINARY = frozenset(
    ".png .jpg .jpeg .gif .bmp .tif .tiff .webp .ico .icns .svg .psd .heic .avif .raw .mp3 .wav .flac .ogg .m4a .aac "
    ".mp4 .avi .mov .mkv .webm .wmv .flv .zip .gz .tgz .bz2 .xz .zst .7z .rar .tar .jar .war .whl .egg .iso .dmg .deb "
    ".rpm .apk .exe .dll .so .dylib .a .o .obj .lib .class .pyc .pyo .pyd .wasm .bin .dat .db .sqlite .sqlite3 .mdb "
    ".parquet .feather .arrow .npy .npz .pkl .pickle .pt .pth .onnx .safetensors .gguf .h5 .hdf5 .ttf .otf .woff "
    ".woff2 .eot .doc .xls .ppt .odt .ods .odp .epub .mobi .key .pages .numbers .faiss .index .swp .DS_Store".split()
)


@dataclass(frozen=True, slots=True)
class Found:
    """A file to read: its absolute `path`, its identity `source`, `size` in bytes, and `mtime_ns`."""

    path: Path
    source: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or a whole folder that was left out, and why.

    `wanted` says that it would be read if that were possible: what was known of it may still be true.
    """

    path: Path
    reason: str
    wanted: bool = False


@dataclass(slots=True)
class Walk:
    """What a walk found, both lists in a fixed order.

    `roots` maps each folder given (absolute, symbolic links resolved) to the prefix of its files' sources. Pass it
    to later walks, so that the same file always gets the same source.
    """

    found: list[Found] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    roots: dict[Path, str] = field(default_factory=dict)


def walk(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    max_bytes: int = MAX_BYTES,
    roots: Mapping[Path, str] | None = None,
    exclude: Iterable[str | os.PathLike[str]] = (),
) -> Walk:
    """List the files of folders, and files given by name.

    Folders are searched without what .gitignore and .ignore files exclude, hidden entries, version control,
    installed packages, binary formats, files over `max_bytes` and the folders in `exclude`; each is reported as
    skipped. A file or folder given by name is taken even if it is hidden or ignored.

    A source is the folder's name and the path below it, such as ``docs/tutorial/first-steps.md``; it depends on
    where a file is, never on the working directory. A file given by name is named as if its folder had been given.
    Where two folders have the same name, more of their path is taken. `roots`, from earlier walks, decides first:
    a file anywhere below a known folder keeps that folder's prefix.

    Raises InputError naming every path that does not exist.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    missing = [str(path) for path in given if not _exists(path)]
    if missing:
        raise InputError(f"no such file or folder: {', '.join(missing)}")
    targets = list(dict.fromkeys(Path(os.path.realpath(path)) for path in given))
    left_out = {Path(os.path.realpath(path)) for path in exclude}
    names = _Names(dict(roots or {}), targets)
    walker = _Walker(names, max_bytes, left_out)
    for target in targets:
        if target.is_dir():
            walker.search(target)
        elif target not in walker.taken:
            walker.take(target, target)
    walker.take_links()
    return Walk(
        found=sorted(walker.taken.values(), key=lambda found: found.source),
        skipped=sorted(walker.skipped, key=lambda skipped: os.fsencode(skipped.path)),
        roots=names.roots,
    )


def _exists(path: str | os.PathLike[str]) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a NUL in the path
        return False


class _Names:
    """The source of every file: known folders first, then those given now."""

    def __init__(self, known: dict[Path, str], targets: list[Path]) -> None:
        self.known = known
        self.roots = dict(known)
        folders = [path if path.is_dir() else path.parent for path in targets]
        fresh = {folder for folder in folders if self._below(folder, known) is None}
        # A folder below another one that is given now too is named through that one.
        given = {path for path in targets if path in fresh}
        tops = sorted(folder for folder in fresh if given.isdisjoint(folder.parents))
        used = set(known.values())
        chosen = {folder: 1 for folder in tops}
        while True:  # lengthen all that clash, so that the order of the arguments does not matter
            prefixes = {folder: _suffix(folder, size) for folder, size in chosen.items()}
            counts = Counter(prefixes.values())
            clashing = [
                folder
                for folder, prefix in prefixes.items()
                if (prefix in used or counts[prefix] > 1) and chosen[folder] < len(folder.parts)
            ]
            if not clashing:
                break
            for folder in clashing:
                chosen[folder] += 1
        self.fresh = prefixes
        self.roots.update({folder: prefix for folder, prefix in prefixes.items() if folder in given})

    @staticmethod
    def _below(path: Path, roots: Mapping[Path, str]) -> Path | None:
        return next((folder for folder in (path, *path.parents) if folder in roots), None)

    def source(self, path: Path) -> str:
        for roots in (self.known, self.fresh):
            if (root := self._below(path.parent, roots)) is not None:
                prefix = roots[root]
                return _printable("/".join(part for part in (prefix, path.relative_to(root).as_posix()) if part))
        return _printable(f"{path.parent.name}/{path.name}")


def _suffix(folder: Path, size: int) -> str:
    """Return the last `size` names of a folder's path, with ``/``; the whole path when there are no more."""
    parts = folder.parts[1:] if folder.anchor else folder.parts
    return "/".join(parts[-size:])


def _printable(source: str) -> str:
    """Return a source as one printable line; what had to be replaced still tells it from others."""
    clean = CONTROLS.sub("\ufffd", source)
    if clean == source:
        return source
    return f"{clean}~{zlib.crc32(source.encode('utf-8', 'surrogateescape')):08x}"


class _Walker:
    """Goes through folders. `taken` are files by their path with links resolved; links wait until all folders are read,
    for what they lead to may be read itself.
    """

    def __init__(self, names: _Names, max_bytes: int, left_out: set[Path]) -> None:
        self.taken: dict[Path, Found] = {}
        self.skipped: list[Skipped] = []
        self._names = names
        self._max_bytes = max_bytes
        self._left_out = left_out
        self._links: list[tuple[Path, Path]] = []

    def take(self, path: Path, target: Path) -> None:
        """Take a file, the `target` of the link `path` or the path itself, or say why not."""
        try:
            status = os.stat(target)
            if not stat.S_ISREG(status.st_mode):
                self._skip(path, "not a regular file")
            elif status.st_size > self._max_bytes:
                size, limit = status.st_size / 1e6, self._max_bytes / 1e6
                self._skip(path, f"{size:.1f} MB, over the limit of {limit:.1f} MB", wanted=True)
            elif not os.access(target, os.R_OK):
                self._skip(path, "not readable: permission denied", wanted=True)
            else:
                self.taken[target] = Found(path, self._names.source(path), status.st_size, status.st_mtime_ns)
        except OSError as error:
            self._skip(path, f"not readable: {error.strerror or error}", wanted=True)

    def take_links(self) -> None:
        """Take the files that links lead to, unless they are taken by themselves."""
        for link, target in self._links:
            if target in self.taken:
                self._skip(link, f"symbolic link to {self._names.source(target)}, which is read itself")
            else:
                self.take(link, target)

    def search(self, root: Path) -> None:
        """Take the files of a folder and of those below it."""
        pending: list[tuple[Path, Rules]] = [(root, outer_rules(root))]
        while pending:
            folder, specs = pending.pop()
            try:
                with os.scandir(folder) as scan:
                    entries = sorted(scan, key=lambda entry: os.fsencode(entry.name))
            except OSError as error:
                self._skip(folder, f"folder not readable: {error.strerror or error}", wanted=True)
                continue
            if any(entry.name == _VENV_MARK for entry in entries) and folder != root:
                self._skip(folder, "virtual environment")
                continue
            names = {entry.name for entry in entries}
            specs += tuple(own_rules(folder, names))
            for entry in entries:
                path = folder / entry.name
                try:
                    is_link, is_dir = entry.is_symlink(), entry.is_dir()
                except OSError as error:
                    self._skip(path, f"not readable: {error.strerror or error}", wanted=True)
                    continue
                if reason := _reason(path, specs, is_dir=is_dir):
                    self._skip(path, reason)
                elif entry.name in _STORE_LOCKS and _KNOWLEDGE in names:
                    self._skip(path, "part of a store")
                elif path in self._left_out:
                    self._skip(path, "left out by the caller")
                elif is_link and is_dir:
                    self._skip(path, "symbolic link to a folder")
                elif is_link:
                    self._follow(path, root)
                elif is_dir:
                    pending.append((path, specs))
                elif path not in self.taken:
                    self.take(path, path)

    def _follow(self, path: Path, root: Path) -> None:
        """Keep a link to a file below the root for later."""
        try:
            target = Path(os.path.realpath(path, strict=True))
        except OSError:
            self._skip(path, "broken symbolic link")
            return
        if root in target.parents:
            self._links.append((path, target))
        else:
            self._skip(path, "symbolic link to a file outside the folder")

    def _skip(self, path: Path, reason: str, *, wanted: bool = False) -> None:
        self.skipped.append(Skipped(path, reason, wanted))


def _reason(path: Path, specs: Rules, *, is_dir: bool) -> str:
    """Return why a file or folder is left out for its name alone, or nothing."""
    name = path.name
    if name in _VCS:
        return "version control"
    if name in _BUILT and is_dir:
        return "installed or generated files"
    if name.startswith("."):
        return "hidden"
    if ignored(path, is_dir, specs):
        return "excluded by .gitignore or .ignore"
    if is_dir:
        return ""
    if name.endswith(_STORE_FILES):
        return "part of a store"
    if name.endswith(_GENERATED):
        return "generated file"
    if path.suffix.lower() in _BINARY:
        return f"binary format {path.suffix.lower()}"
    return ""
