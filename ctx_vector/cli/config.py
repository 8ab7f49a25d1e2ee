"""`ctx-vector config`: whether a settings file is right, what it makes of the budget, and its schema for editors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ctx_vector.cli.common import count, in_options, note, out, print_json
from ctx_vector.cli.options import Json, guarded, new_app

if TYPE_CHECKING:
    from ctx_vector.settings import Settings
    from ctx_vector.sources import SourceConfig

config_app = new_app("Check a settings file, or print its schema for an editor.")

Scope = Annotated[
    str | None,
    typer.Option("--scope", metavar="NAME", help="Every source has to carry this scope, or shared."),
]
AllowPython = Annotated[
    bool, typer.Option("--allow-python", help="Run the python: loaders of the file; only for files you trust.")
]
_SHOWN_LOADER: Final = 40


@config_app.command("check")
@guarded
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The settings, in YAML.")],
    scope: Scope = None,
    allow_python: AllowPython = False,
    json: Json = False,
) -> int:
    """Check a settings file: list every problem with its path and line, or show how the budget is shared.

    Whatever `build --config` reads can be checked: YAML with sections, or YAML, TOML or JSON with fields of
    ContextConfig alone. Exit code 1 if there is a problem.

    For example:
      ctx-vector config check context.yaml
      ctx-vector config check context.yaml --scope agent_a --json
    """
    from ctx_vector.audit import AuditLog
    from ctx_vector.errors import ConfigError
    from ctx_vector.live_sources import LiveSources

    try:
        settings = _read(file, scope, allow_python)
        live = LiveSources(
            settings.sources,
            scope=scope,
            base_dir=settings.base_dir,
            allow_python=allow_python,
            audit=AuditLog(settings.audit.path),  # its file is made by the first build only
        )
        tokens = _system_tokens(settings, live)
    except ConfigError as error:
        problems = [in_options(line) for line in error.problems]
        if json:
            print_json({"ok": False, "problems": problems})
        else:
            for line in problems:
                note(line)
            note(f"error: {count(len(error.problems), 'problem')} in {file}")
        return 1
    shown = _report(settings, tokens)
    if json:
        print_json({"ok": True, "problems": [], **shown})
    else:
        _show(file, shown, settings.layered)
    return 0


@config_app.command("schema")
@guarded
def schema(json: Json = False) -> None:
    """Print the JSON Schema of a settings file, for editors that check YAML while you type.

    For example:
      ctx-vector config schema
    """
    from ctx_vector.settings_schema import settings_schema

    print_json(settings_schema())


def _read(file: str, scope: str | None, allow_python: bool) -> Settings:
    """Return the settings in a file. Raises ConfigError with every problem, also when the file cannot be read.

    What says nothing but fields of ContextConfig is right when `build --config` reads it.
    """
    from dataclasses import replace

    from ctx_vector.cli.inputs import is_settings, read_config
    from ctx_vector.errors import ConfigError, InputError
    from ctx_vector.settings import load_settings, parse_settings

    is_yaml = Path(file).suffix.lower() not in (".toml", ".json")
    told = None
    if is_yaml:
        try:
            return load_settings(file, scope=scope, allow_python=allow_python)
        except ConfigError as error:
            told = error  # with the lines
    try:
        if not is_yaml or (Path(file).is_file() and not is_settings(file)):
            config = read_config(file, {})
            return replace(parse_settings("", Path(file).parent), config=config, total=config.max_tokens)
    except ConfigError as error:
        told = told or error
    except InputError as error:
        told = told or ConfigError([str(error).removeprefix("--config: ")])
    assert told is not None
    raise told


def _system_tokens(settings: Settings, live: Any) -> dict[str, int]:
    """Return the tokens of each file in the system layer. Raises ConfigError when they are over the layer's share."""
    from ctx_vector.live_sources import check_system
    from ctx_vector.tokens import TokenCounter

    tokens: dict[str, int] = live.system_tokens(TokenCounter(settings.config.tokenizer).count)
    if problems := check_system(tokens, int(settings.total * settings.shares.system)):
        from ctx_vector.errors import ConfigError

        raise ConfigError(problems)
    return tokens


def _report(settings: Settings, system: dict[str, int]) -> dict[str, Any]:
    shares, total = settings.shares, settings.total
    layers = {name: {"share": share, "tokens": int(total * share)} for name, share in shares.to_dict().items()}
    return {
        "total": total,
        "model": {"name": settings.model_name, "max_tokens": settings.model_max_tokens},
        "base_dir": str(settings.base_dir),
        "scope": settings.scope,
        "layers": layers,
        "sources": [_source(item, settings, system) for item in settings.sources],
        "audit": {"path": str(settings.audit.path), "enabled": settings.audit.enabled},
    }


def _source(source: SourceConfig, settings: Settings, system: dict[str, int]) -> dict[str, Any]:
    owner = settings.shares.owner(source.layer)
    cap = int(settings.total * getattr(settings.shares, owner))
    most = int(cap * source.max_share)
    return {
        **{key: value for key, value in source.to_dict().items() if key != "args"},
        "share_of": owner,
        "least_tokens": int(cap * source.min_share),
        "most_tokens": min(most, source.max_tokens) if source.max_tokens is not None else most,
        "tokens": system.get(source.name),
    }


def _show(file: str, shown: dict[str, Any], layered: bool) -> None:
    from ctx_vector.cli.tables import show_table
    from ctx_vector.cli.text import cut

    out(f"{Path(file).name} is right: {count(len(shown['sources']), 'source')}, {shown['total']:,} tokens in all")
    if not layered:
        return  # its layers are not used
    out()
    show_table(
        ["layer", ">share", ">tokens"],
        [[name, f"{layer['share']:.0%}", f"{layer['tokens']:,}"] for name, layer in shown["layers"].items()],
    )
    if shown["sources"]:
        out()
        show_table(
            ["source", "layer", ">priority", ">at least", ">at most", "scope", "loader", ""],
            [
                [
                    item["name"],
                    item["layer"],
                    f"{item['priority']:g}",
                    f"{item['least_tokens']:,}",
                    f"{item['most_tokens']:,}",
                    item["scope"],
                    cut(item["loader"], _SHOWN_LOADER),
                    _remarks(item),
                ]
                for item in shown["sources"]
            ],
        )
    out()
    out("Task, Output and headers come off the total first; a layer that needs less leaves the rest to the others.")


def _remarks(item: dict[str, Any]) -> str:
    remarks = [] if item["enabled"] else ["off"]
    if item["tokens"] is not None:
        remarks.append(f"{item['tokens']:,} tokens")
    if item["version"] is not None:
        remarks.append(f"version {item['version']}")
    if item["authoritative"]:
        remarks.append("authoritative")
    if item["expires"] is not None:
        remarks.append(f"expires {item['expires']}")
    return ", ".join(remarks)
