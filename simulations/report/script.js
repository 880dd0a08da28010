"use strict";
// Reads charts out under the pointer or the arrow keys, sorts tables, searches decision logs, and opens what a link points
// into.
// Everything is on the page without it.

for (const figure of document.querySelectorAll("figure.chart:has(.read-out)")) {
  const plot = figure.querySelector(".plot");
  const cursor = figure.querySelector(".cursor");
  const output = figure.querySelector(".read-out");
  const { from, until } = figure.closest(".timeline").dataset;
  let told = null;
  let at = -1;

  const unpack = () => {
    told ??= {
      from: from.split("|"),
      until: until.split("|").map(Number),
      lines: [...figure.querySelectorAll(".line[data-name]")].map(({ dataset: { name, words } }) => {
        let last = "";
        return { name, words: words.split("|").map((word) => (last = word || last)) };
      }),
    };
    return told;
  };
  const show = (index) => {
    const { from, until, lines } = unpack();
    at = Math.max(0, Math.min(index, until.length - 1));
    const begin = at ? until[at - 1] : 0;
    cursor.hidden = false;
    cursor.style.left = `${((begin + until[at]) / 2) * 100}%`;
    output.textContent = `${from[at]}: ` + lines.map(({ name, words }) => `${name} ${words[at]}`).join(" · ");
  };
  const hide = () => {
    at = -1;
    cursor.hidden = true;
    output.textContent = "";
  };

  plot.tabIndex = 0;
  plot.setAttribute("role", "group");
  plot.setAttribute("aria-label", `${figure.querySelector("figcaption strong").textContent}: arrow keys read the values`);
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const index = unpack().until.findIndex((end) => share <= end);
    show(index < 0 ? told.until.length - 1 : index);
  });
  plot.addEventListener("pointerleave", () => document.activeElement === plot || hide());
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const last = unpack().until.length - 1;
    const moves = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last, PageDown: at + 10, PageUp: at - 10 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}

const UNITS = { us: 1e-6, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600 };
// The number that a cell begins with, for sorting: money, shares, counts, times and latencies. Text without one is null.
const numberOf = (text) => {
  if (/^no answer/.test(text)) return Infinity;
  const time = text.match(/^(\d+):(\d\d)(?::(\d\d))?/);
  if (time) return time[3] === undefined ? time[1] * 60 + +time[2] : time[1] * 3600 + time[2] * 60 + +time[3];
  const found = text.replaceAll(",", "").replace("−", "-").match(/^(under |over )?([+-])?\$?(-?\d+(?:\.\d+)?)\s*([µa-z]+)?/);
  if (!found) return null;
  const value = found[3] * (UNITS[found[4]] ?? 1) * (found[2] === "-" ? -1 : 1);
  return found[1] === "under " ? value / 2 : found[1] === "over " ? value * 1.000001 : value;
};
// What is sorted by: the first text of a cell, without the range over the seeds.
const keyOf = (row, column) => {
  const cell = row.cells[column].cloneNode(true);
  cell.querySelectorAll("small").forEach((part) => part.remove());
  return cell.textContent.trim();
};
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  if (body.rows.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (!head.textContent.trim()) return;
    head.classList.add("sorts");
    head.tabIndex = 0;
    head.title = "Sort by this column";
    const sort = () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const numeric = head.classList.contains("n") || [...body.rows].every((row) => numberOf(keyOf(row, column)) !== null);
      const rows = [...body.rows].map((row) => ({ row, text: keyOf(row, column) }));
      const known = ({ text }) => (numeric ? numberOf(text) !== null : text !== "–");
      rows.sort((a, b) => {
        if (known(a) !== known(b)) return known(a) ? -1 : 1; // what has no value stays last
        if (!known(a)) return 0;
        const order = numeric ? numberOf(a.text) - numberOf(b.text) || 0 : a.text.localeCompare(b.text);
        return descending ? -order : order;
      });
      body.append(...rows.map(({ row }) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort();
    });
  });
}

for (const log of document.querySelectorAll(".log")) {
  const search = log.querySelector(".search");
  const changesOnly = log.querySelector(".changes-only");
  const found = log.querySelector(".found");
  const rows = [...log.querySelectorAll("tbody tr")];
  const filter = () => {
    const word = search.value.trim().toLowerCase();
    let count = 0;
    for (const row of rows) {
      row.hidden = (changesOnly.checked && !row.classList.contains("changed")) || !row.textContent.toLowerCase().includes(word);
      count += !row.hidden;
    }
    found.textContent = word || changesOnly.checked ? `${count} of ${rows.length}` : "";
  };
  search.addEventListener("input", filter);
  changesOnly.addEventListener("change", filter);
}

const reveal = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const closed = target && target.closest("details:not([open])");
  if (closed) {
    closed.open = true;
    target.scrollIntoView();
  }
};
addEventListener("hashchange", reveal);
reveal();
