"use strict";
// Sliders that rebuild, tables that sort and filter, "/" for the search. The pages work without any of it.
document.documentElement.classList.add("scripted");

// Times in the viewer's own zone; as they came, in UTC, they are in the title.
function localTimes(within) {
  const two = (number) => String(number).padStart(2, "0");
  for (const time of within.querySelectorAll("time[data-local]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const day = [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join("-");
    time.textContent = `${day} ${[at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":")}`;
  }
}
localTimes(document);

function sort(button) {
  const head = button.closest("th"), table = button.closest("table"), body = table.tBodies[0];
  const column = Number(button.dataset.sort), number = button.dataset.kind === "number";
  const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : number;
  for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const sign = down ? -1 : 1;
  const rows = Array.from(body.rows, (row, place) => [row.cells[column].textContent.trim(), place, row]);
  rows.sort((a, b) => sign * (number ? Number(a[0]) - Number(b[0]) : a[0].localeCompare(b[0])) || a[1] - b[1]);
  body.append(...rows.map((entry) => entry[2]));
}

function filter(input) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.getElementById(input.dataset.filter).tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
}

// A long table comes in part; whoever sorts or filters means the whole.
const wholes = new WeakMap();  // a section: the promise that it is whole
function whole(section) {
  if (!section || !section.querySelector("[data-all]")) return Promise.resolve();
  if (!wholes.has(section)) wholes.set(section, fetchRows(section, section.querySelector("[data-all]")));
  return wholes.get(section);
}

async function fetchRows(section, link) {
  const answer = await fetch(link.dataset.all);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const table = section.querySelector("table");
  table.tBodies[0].replaceWith(page.getElementById(table.id).tBodies[0]);
  section.querySelector("[data-some]").remove();
}

document.addEventListener("click", async (event) => {
  const all = event.target.closest("[data-all]");
  if (all) { event.preventDefault(); await whole(all.closest("section")); return; }
  const button = event.target.closest("[data-sort]");
  if (button) { await whole(button.closest("section")); sort(button); }
});
document.addEventListener("input", async (event) => {
  if (!event.target.matches("[data-filter]")) return;
  await whole(event.target.closest("section"));
  filter(event.target);
});
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input:not([type=range], [type=checkbox]), select, textarea")) return;
  const search = document.querySelector("[data-search], [data-filter]");
  if (search) { event.preventDefault(); search.focus(); search.select(); }
});

const sliders = document.getElementById("sliders"), live = document.getElementById("live");
if (sliders) {
  let timer = 0, running = null;

  // What the reader has opened, sorted and typed stays as it is.
  const replace = (html) => {
    const open = new Map(Array.from(live.querySelectorAll("details[id]"), (item) => [item.id, item.open]));
    const typed = live.querySelector("[data-filter]").value;
    const sorted = live.querySelector("th[aria-sort] [data-sort]");
    const way = sorted && sorted.closest("th").getAttribute("aria-sort");
    live.innerHTML = html;
    for (const [id, was] of open) {
      const item = document.getElementById(id);
      if (item) item.open = was;
    }
    document.getElementById("said").textContent = live.querySelector(".sum").textContent;
    const all = typed || sorted ? whole(live.querySelector("#all-candidates")) : Promise.resolve();
    return all.then(() => {
      if (sorted) {
        const button = live.querySelector(`[data-sort="${sorted.dataset.sort}"]`);
        while (button.closest("th").getAttribute("aria-sort") !== way) sort(button);
      }
      const box = live.querySelector("[data-filter]");
      box.value = typed;
      if (typed) filter(box);
    });
  };

  const ask = async () => {
    if (running) running.abort();
    running = new AbortController();
    const query = new URLSearchParams(new FormData(sliders)).toString();
    live.classList.add("busy");
    try {
      const answer = await fetch(`${sliders.dataset.live}?${query}`, { signal: running.signal });
      if (answer.ok) {
        await replace(await answer.text());
        history.replaceState(null, "", `?${query}`);
      } else document.getElementById("said").textContent = answer.statusText;
    } catch (error) {
      if (error.name === "AbortError") return;
    }
    live.classList.remove("busy");
  };
  sliders.addEventListener("input", (event) => {
    const shown = event.target.parentElement.querySelector("output");
    if (shown) shown.textContent = event.target.value;
    clearTimeout(timer);
    timer = setTimeout(ask, 120);
  });
  sliders.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
}
