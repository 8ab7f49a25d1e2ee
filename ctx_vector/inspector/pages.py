"""The pages: each reads what a request asks for, and renders one template.

Pages run in Starlette's threads, for what they read is on disk. The builds opened last are kept, so that sliders answer
without reading anything again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from ctx_vector.errors import CtxVectorError, InputError
from ctx_vector.inspector import views
from ctx_vector.inspector.reasons import said_in
from ctx_vector.inspector.words import WORDS, counted, language_of
from ctx_vector.lru import LRU

if TYPE_CHECKING:
    from ctx_vector.audit_decode import BuildRecord
    from ctx_vector.built import BuiltContext
    from ctx_vector.inspector.app import Stores
    from ctx_vector.stages import TokenCounter

_HERE: Final = Path(__file__).resolve().parent
_PAGE: Final = 50
_MOST: Final = 500  # documents, chunks or memories on a page before "show all"
_KEPT_BUILDS: Final = 8
_LONGEST_FORM: Final = 10_000  # bytes
_LANGUAGE: Final = "ctx_vector_language"
_REPORT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"


class Pages:
    """All pages over some stores."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        self._templates.filters |= {
            "thousands": lambda value: f"{value:,}",
            "visible": views.visible,
            "plain": views.plain,
            "preview": views.preview,
            "moment": _moment,
            "counted": counted,
            "said_in": lambda text, language: said_in(language, text),
            "section": views.section_name,
            "source": views.source_name,
            "step": lambda value: "0.01" if round(value, 2) == value else "any",
        }
        self._counters: dict[str, TokenCounter] = {}
        self._records: LRU[str, BuildRecord] = LRU(_KEPT_BUILDS)
        self._lock = threading.Lock()

    # -- builds -------------------------------------------------------------------------------------------------------

    def builds(self, request: Request) -> Response:
        """List the builds, newest first, a page at a time; with a search over their queries."""
        audit, given = self.stores.audit, request.query_params
        if audit is None:
            return self._page(request, "empty.html", "builds", message="no_audit")
        session, search = given.get("session") or None, (given.get("q") or "").strip() or None
        before = given.get("before") or None
        try:
            rows = audit.list(session, _PAGE + 1, before=before, search=search)
            total, sessions = audit.count(session, search=search), audit.sessions(50)
        except CtxVectorError:
            if audit.path.exists():
                raise
            rows, total, sessions = [], 0, []  # nothing was built yet
        shown = {"session": session or "", "q": search or "", "before": before}
        older = rows[_PAGE - 1]["id"] if len(rows) > _PAGE else None
        return self._page(
            request,
            "builds.html",
            "builds",
            rows=rows[:_PAGE],
            total=total,
            sessions=sessions,
            older=older,
            given=shown,
        )

    def build(self, request: Request) -> Response:
        """Show one build: the context, where its tokens went, every candidate, and sliders."""
        record = self._record(request.path_params["id"])
        sliders = views.Sliders.of(record, request.query_params)
        built, changes, error = self._with(record, sliders)
        return self._page(
            request,
            "build.html",
            "builds",
            head=views.head_of(record),
            sliders=sliders,
            **self._shown(request, record, built, changes, error),
            previous=self._previous(record),
        )

    def what_if(self, request: Request) -> Response:
        """Return the part of a build's page that sliders change."""
        record = self._record(request.path_params["id"])
        built, changes, error = self._with(record, views.Sliders.of(record, request.query_params))
        shown = self._shown(request, record, built, changes, error)
        head = views.head_of(record)
        return self._page(request, "_live.html", "builds", head=head, **shown)

    def item(self, request: Request) -> Response:
        """Show one candidate whole, with its metadata."""
        record = self._record(request.path_params["id"])
        built, _, _ = self._with(record, views.Sliders.of(record, request.query_params))
        found = views.candidate_of(built, request.path_params["number"], self._sizes(record, built))
        if found is None:
            return self.not_found(request, None)
        row, decision = found
        packet = decision.packet.to_dict()
        metadata = json.dumps(packet["metadata"], ensure_ascii=False, indent=2)
        return self._page(
            request, "item.html", "builds", row=row, packet=packet, decision=decision, metadata=metadata, id=record.id,
            asked=_asked(request), limit=views.FOLDED,
        )  # fmt: skip

    def diff(self, request: Request) -> Response:
        """Show what came, went and moved from build `a` to `b`, or between two `id`s, the older first."""
        from ctx_vector.audit_compare import diff

        if self.stores.audit is None:
            return self._page(request, "empty.html", "builds", message="no_audit")
        given, chosen = request.query_params, request.query_params.getlist("id")
        ids = chosen if chosen else [given.get("a", ""), given.get("b", "")]
        if len(ids) != 2 or not all(ids):
            return self._page(request, "empty.html", "builds", message="choose_two", status=400)
        a, b = (self._record(id) for id in ids)
        if chosen and a.created_at > b.created_at:
            a, b = b, a
        change = views.changes_of(diff(a.built, b.built))
        return self._page(request, "diff.html", "builds", a=views.head_of(a), b=views.head_of(b), change=change)

    def _record(self, id: str) -> BuildRecord:
        if self.stores.audit is None:
            raise InputError("there is no audit log")
        record = self._records.get(id)
        if record is None:
            record = self.stores.audit.show(id)
            self._records.put({record.id: record})
        return record

    def _counter(self, record: BuildRecord) -> TokenCounter:
        """Return the tokenizer of a build; it remembers what it has counted. Raises InputError when it has no name."""
        from ctx_vector.audit_decode import restored_counter

        facts = record.built.trace.facts
        name = f"{facts['tokenizer']} {facts['framing']}"
        with self._lock:
            if name not in self._counters:
                self._counters[name] = restored_counter(facts)
            return self._counters[name]

    def _sizes(self, record: BuildRecord, built: BuiltContext) -> views.Size:
        from ctx_vector.sizes import sizes

        try:
            return sizes(built, self._counter(record))
        except InputError:
            return lambda item: item.tokens if item.kept else None

    def _with(
        self, record: BuildRecord, sliders: views.Sliders
    ) -> tuple[BuiltContext, dict[str, Any] | None, CtxVectorError | None]:
        """Return the build with the sliders as they are set, what that changes (None: nothing was set), and why not."""
        from ctx_vector.audit_compare import diff
        from ctx_vector.replay import rebuild

        changes = sliders.changes(record)
        if not changes or record.purged:
            return record.built, None, None
        trace = record.built.trace
        try:
            built = rebuild(trace, self._counter(record), config=trace.config.with_(**changes))
        except CtxVectorError as error:
            return record.built, None, error
        return built, views.changes_of(diff(record.built, built)), None

    def _shown(
        self,
        request: Request,
        record: BuildRecord,
        built: BuiltContext,
        changes: dict[str, Any] | None,
        error: CtxVectorError | None,
    ) -> dict[str, Any]:
        words, sections = WORDS[self._language(request)], views.sections_of(built)
        size_of = self._sizes(record, built)
        return {
            "id": record.id,
            "sections": sections,
            "bars": views.bars(built, sections, words),
            "candidates": views.candidates_of(built, size_of, whole="all" in request.query_params),
            "kept": len(built.kept),
            "dropped": len(built.dropped),
            "messages": views.messages_of(built),
            "budget": built.budget,
            "changes": changes,
            "error": error,
            "asked": _asked(request),
        }

    def _previous(self, record: BuildRecord) -> str | None:
        assert self.stores.audit is not None
        rows = self.stores.audit.list(record.session_id, 1, before=record.id)
        return str(rows[0]["id"]) if rows else None

    # -- knowledge and memories ---------------------------------------------------------------------------------------

    def knowledge(self, request: Request) -> Response:
        """List documents and versions of the knowledge base, and try a query."""
        kb = self.stores.knowledge
        if kb is None:
            return self._page(request, "empty.html", "knowledge", message="no_kb")
        query = (request.query_params.get("q") or "").strip()
        hits = kb.search(query, 10) if query and kb.version else []
        documents = kb.documents()
        return self._page(
            request, "knowledge.html", "knowledge", query=query, hits=hits, documents=_some(request, documents),
            count=len(documents), versions=list(reversed(kb.versions())), active=kb.version,
        )  # fmt: skip

    def document(self, request: Request) -> Response:
        """Show the chunks of one document."""
        kb, source = self.stores.knowledge, request.query_params.get("source", "")
        chunks = kb.chunks(source) if kb is not None and kb.version else []
        if not chunks:
            return self.not_found(request, None)
        return self._page(
            request, "document.html", "knowledge", source=source, count=len(chunks), chunks=_some(request, chunks)
        )

    def memory(self, request: Request) -> Response:
        """List or search the memories of one user."""
        opened, given = self.stores.memory, request.query_params
        if opened is None:
            return self._page(request, "empty.html", "memory", message="no_memory")
        users, query = list(self.stores.users()) if self.stores.users else [], (given.get("q") or "").strip()
        user = given.get("user") or (self.stores.user if self.stores.user in users or not users else users[0])
        memories = opened(user) if user in users else None  # a name made up makes nothing
        kept = list(reversed(memories.all())) if memories else []
        return self._page(
            request, "memory.html", "memory", user=user, query=query, rows=[] if query else _some(request, kept),
            count=len(kept), hits=memories.search(query, 50) if memories and query else [],
            users=users if user in users else [user, *users], deleted="deleted" in given,
        )  # fmt: skip

    async def delete_memory(self, request: Request) -> Response:
        """Delete one memory for good."""
        form = await _form(request)
        user, memory_id = form.get("user") or "default", form.get("id", "")
        if self.stores.memory is None or not memory_id:
            return self.not_found(request, None)
        memories = await run_in_threadpool(self.stores.memory, user)
        await run_in_threadpool(memories.remove, memory_id)
        return RedirectResponse("/memory?" + urlencode({"user": user, "deleted": "1"}), 303)

    # -- reports ------------------------------------------------------------------------------------------------------

    def reports(self, request: Request) -> Response:
        """List the HTML reports of a folder, and show one."""
        folder = self.stores.reports
        if folder is None:
            return self._page(request, "empty.html", "reports", message="no_reports")
        names = sorted((path.name for path in folder.glob("*.html")), reverse=True)
        chosen = request.query_params.get("name") or (names[0] if names else "")
        return self._page(request, "reports.html", "reports", names=names, chosen=chosen if chosen in names else "")

    def report(self, request: Request) -> Response:
        """Return one report as it is; it may run nothing and load nothing."""
        folder, name = self.stores.reports, request.path_params["name"]
        if folder is None or name not in {path.name for path in folder.glob("*.html")}:
            return self.not_found(request, None)
        return HTMLResponse((folder / name).read_bytes(), headers={"content-security-policy": _REPORT_POLICY})

    # -- all pages ----------------------------------------------------------------------------------------------------

    def not_found(self, request: Request, error: Any) -> Response:
        """Say that there is no such page."""
        return self._page(request, "empty.html", "", message="not_found", status=404)

    def wrong(self, request: Request, error: Exception) -> Response:
        """Say what is wrong: with a request (404), or with a store (500)."""
        status = 404 if isinstance(error, InputError) else 500
        if request.url.path.endswith("/what-if"):
            return PlainTextResponse(str(error), status)
        return self._page(request, "empty.html", "", message="", detail=str(error), status=status)

    @staticmethod
    def _language(request: Request) -> str:
        chosen = request.query_params.get("lang") or request.cookies.get(_LANGUAGE) or ""
        return chosen if chosen in WORDS else language_of(request.headers.get("accept-language", ""))

    def _page(self, request: Request, template: str, here: str, *, status: int = 200, **values: Any) -> Response:
        language = self._language(request)
        values.setdefault("detail", "")
        html = self._templates.get_template(template).render(
            words=WORDS[language], lang=language, here=here, path=request.url.path,
            other_query=_query(request, lang=WORDS[language]["other"]), **values,
        )  # fmt: skip
        answer = HTMLResponse(html, status)
        if request.query_params.get("lang") in WORDS:
            answer.set_cookie(_LANGUAGE, language, samesite="strict", max_age=31_536_000)
        return answer


def _asked(request: Request) -> str:
    """Return the part of a query that sets sliders."""
    given = request.query_params
    return urlencode({name: given[name] for name in views.SLIDERS if name in given})


def _query(request: Request, **changes: str) -> str:
    rest = [(name, value) for name, value in request.query_params.multi_items() if name not in changes]
    return urlencode([*rest, *changes.items()])


def _some(request: Request, rows: Sequence[Any]) -> Sequence[Any]:
    return rows if "all" in request.query_params else rows[:_MOST]


def _moment(text: str) -> Markup:
    """Return an ISO 8601 time to the second, of midnight the day; a script shows it in the viewer's own time."""
    if not text:
        return escape("")
    shown = text[:19].replace("T", " ").removesuffix(" 00:00:00")
    if not text.endswith("+00:00") or len(shown) <= 10:  # a day is the same day everywhere
        return Markup('<time datetime="{}">{}</time>').format(text, shown)
    return Markup('<time datetime="{0}" title="{1} UTC" data-local>{1} UTC</time>').format(text, shown)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form sent as a browser does by default; Starlette's reader wants one more package."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_FORM:
            raise HTTPException(413)
    return dict(parse_qsl(body.decode("utf-8", "replace")))
