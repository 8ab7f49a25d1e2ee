"""What to paste into an agent program so that it starts `ctx-vector mcp`: one entry a program, in its own format."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, Final

NAME: Final = "ctx_vector"

#: Where each program keeps its settings.
PLACES: Final = {
    "claude-desktop": "claude_desktop_config.json (Settings, Developer, Edit Config)",
    "claude-code": ".mcp.json of the project",
    "cursor": ".cursor/mcp.json of the project, or ~/.cursor/mcp.json",
    "vscode": ".vscode/mcp.json of the workspace",
    "cline": "cline_mcp_settings.json (MCP Servers, Configure)",
    "windsurf": "~/.codeium/windsurf/mcp_config.json",
    "zed": "settings.json of Zed",
    "codex": "~/.codex/config.toml",
}


def settings(program: str, arguments: Sequence[str]) -> str:
    """Return the settings of one of PLACES that start this installation with `arguments` (after ``ctx-vector mcp``)."""
    command, args = launch_command(arguments)
    entry: dict[str, Any] = {"command": command, "args": args}
    if program == "codex":
        listed = ", ".join(json.dumps(word, ensure_ascii=False) for word in args)
        return f"[mcp_servers.{NAME}]\ncommand = {json.dumps(command, ensure_ascii=False)}\nargs = [{listed}]"
    if program in ("vscode", "claude-code"):
        entry = {"type": "stdio", **entry}
    elif program == "cline":
        entry |= {"disabled": False, "autoApprove": []}
    elif program == "zed":
        entry |= {"env": {}}
    key = {"vscode": "servers", "zed": "context_servers"}.get(program, "mcpServers")
    return json.dumps({key: {NAME: entry}}, ensure_ascii=False, indent=2)


def launch_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return a command with its arguments that works without a PATH: agent programs often have another one."""
    beside = os.path.join(os.path.dirname(sys.executable), "ctx-vector")
    script = beside if os.path.exists(beside) else shutil.which("ctx-vector", path=os.path.dirname(sys.executable))
    if script is not None:
        return script, ["mcp", *arguments]
    return sys.executable, ["-m", "ctx_vector", "mcp", *arguments]
