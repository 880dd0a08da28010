"use strict";
// Reads charts out under the pointer or the arrow keys, searches decision logs, and opens what a link points into.
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
