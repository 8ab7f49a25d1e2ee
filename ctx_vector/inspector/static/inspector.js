"use strict";
// Sliders that rebuild, tables that sort and filter, "/" for the search. The pages work without any of it.
document.documentElement.classList.add("scripted");

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

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-sort]");
  if (button) sort(button);
});
document.addEventListener("input", (event) => {
  if (event.target.matches("[data-filter]")) filter(event.target);
});
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey) return;
  const search = document.querySelector("[data-search], [data-filter]");
  if (search) { event.preventDefault(); search.focus(); search.select(); }
});

const sliders = document.getElementById("sliders"), live = document.getElementById("live");
if (sliders) {
  let timer = 0, running = null;
  const ask = async () => {
    if (running) running.abort();
    running = new AbortController();
    const query = new URLSearchParams(new FormData(sliders)).toString();
    live.classList.add("busy");
    try {
      const answer = await fetch(`${sliders.dataset.live}?${query}`, { signal: running.signal });
      if (answer.ok) live.innerHTML = await answer.text();
      history.replaceState(null, "", `?${query}`);
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
