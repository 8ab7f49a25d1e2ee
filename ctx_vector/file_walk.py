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
    """A file or a whole folder that was left out, and why."""

    path: Path
    reason: str


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
    result = Walk(roots=names.roots)
    taken: dict[Path, Found] = {}
    links: list[tuple[Path, Path]] = []
    for target in targets:
        if target.is_dir():
            _search(target, names, max_bytes, left_out, taken, links, result.skipped)
        elif target not in taken:
            _take(target, target, names, max_bytes, taken, result.skipped)
    for link, target in links:
        if target in taken:
            result.skipped.append(Skipped(link, f"symbolic link to {names.source(target)}, which is read itself"))
        else:
            _take(link, target, names, max_bytes, taken, result.skipped)
    result.found = sorted(taken.values(), key=lambda found: found.source)
    result.skipped.sort(key=lambda skipped: os.fsencode(skipped.path))
    return result


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


def _take(
    path: Path, target: Path, names: _Names, max_bytes: int, taken: dict[Path, Found], skipped: list[Skipped]
) -> None:
    try:
        status = os.stat(target)
        if not stat.S_ISREG(status.st_mode):
            skipped.append(Skipped(path, "not a regular file"))
        elif status.st_size > max_bytes:
            reason = f"{status.st_size / 1e6:.1f} MB, over the limit of {max_bytes / 1e6:.1f} MB"
            skipped.append(Skipped(path, reason))
        elif not os.access(target, os.R_OK):
            skipped.append(Skipped(path, "not readable: permission denied"))
        else:
            taken[target] = Found(path, names.source(path), status.st_size, status.st_mtime_ns)
    except OSError as error:
        skipped.append(Skipped(path, f"not readable: {error.strerror or error}"))


def _search(
    root: Path,
    names: _Names,
    max_bytes: int,
    left_out: set[Path],
    taken: dict[Path, Found],
    links: list[tuple[Path, Path]],
    skipped: list[Skipped],
) -> None:
    pending: list[tuple[Path, Rules]] = [(root, outer_rules(root))]
    while pending:
        folder, specs = pending.pop()
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            skipped.append(Skipped(folder, f"folder not readable: {error.strerror or error}"))
            continue
        if any(entry.name == _VENV_MARK for entry in entries) and folder != root:
            skipped.append(Skipped(folder, "virtual environment"))
            continue
        specs += tuple(own_rules(folder, {entry.name for entry in entries}))
        for entry in entries:
            path = folder / entry.name
            try:
                is_link, is_dir = entry.is_symlink(), entry.is_dir()
            except OSError as error:
                skipped.append(Skipped(path, f"not readable: {error.strerror or error}"))
                continue
            reason = _reason(path, is_dir, specs) or ("left out by the caller" if path in left_out else "")
            if reason:
                skipped.append(Skipped(path, reason))
            elif is_link:
                reason = _link(path, is_dir, root, links)
                if reason:
                    skipped.append(Skipped(path, reason))
            elif is_dir:
                pending.append((path, specs))
            elif path not in taken:
                _take(path, path, names, max_bytes, taken, skipped)


def _reason(path: Path, is_dir: bool, specs: Rules) -> str:
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
    if name.endswith(_GENERATED):
        return "generated file"
    if path.suffix.lower() in _BINARY:
        return f"binary format {path.suffix.lower()}"
    return ""


def _link(path: Path, is_dir: bool, root: Path, links: list[tuple[Path, Path]]) -> str:
    """Keep a link to a file below the root for later, or return why it is not followed."""
    if is_dir:
        return "symbolic link to a folder"
    try:
        target = Path(os.path.realpath(path, strict=True))
    except OSError:
        return "broken symbolic link"
    if root not in target.parents:
        return "symbolic link to a file outside the folder"
    links.append((path, target))
    return ""
