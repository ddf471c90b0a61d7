"use strict";
const theme = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : prefersDark.matches;
}
function showTheme() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-pressed", String(isDark()));
}
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  showTheme();
  document.querySelectorAll(".confusion").forEach(drawConfusion);
});
prefersDark.addEventListener("change", () => {
  showTheme();
  document.querySelectorAll(".confusion").forEach(drawConfusion);
});
showTheme();

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.sort ?? cell.textContent.trim().replace("−", "-");
  const number = Number.parseFloat(text);
  return Number.isNaN(number) ? text.toLowerCase() : number;
}
function compare(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const descending = head.getAttribute("aria-sort") === "ascending" || (column > 0 && !head.hasAttribute("aria-sort"));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].sort((a, b) => compare(valueOf(a, column), valueOf(b, column)));
    table.tBodies[0].append(...(descending ? rows.reverse() : rows));
  }));
}

for (const filter of document.querySelectorAll("input.filter")) {
  const paragraph = filter.closest("p");
  const table = paragraph.nextElementSibling.querySelector("table");
  const count = paragraph.querySelector(".count");
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = [...row.cells].slice(0, 3).map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${table.tBodies[0].rows.length} runs`;
  };
  filter.addEventListener("input", show);
  show();
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
function drawConfusion(section) {
  const { classes, counts } = JSON.parse(section.querySelector("script").textContent);
  const method = section.querySelector(".method").value;
  const target = section.querySelector(".target").value;
  const matrix = (counts[method] ?? {})[target];
  const table = section.querySelector("table");
  table.replaceChildren();
  table.append(element("caption", matrix
    ? `${method}, ${target} held out: rows are the true classes, columns what was said; percent of the row.`
    : `${method} has no predictions for ${target}.`));
  if (!matrix) return;
  const head = document.createElement("tr");
  head.append(element("td", ""), ...classes.map((name) => element("th", name, { scope: "col" })));
  table.append(document.createElement("thead"), document.createElement("tbody"));
  table.tHead.append(head);
  const ink = isDark() ? "122,184,255" : "11,92,173";
  matrix.forEach((row, i) => {
    const total = row.reduce((sum, value) => sum + value, 0);
    const line = document.createElement("tr");
    line.append(element("th", classes[i], { scope: "row" }));
    row.forEach((value, k) => {
      const share = total ? value / total : 0;
      const cell = element("td", value ? (100 * share).toFixed(share >= 0.095 ? 0 : 1) : "", {
        title: `${classes[i]} called ${classes[k]}: ${value} of ${total}`,
      });
      cell.style.background = `rgba(${ink},${(0.55 * share).toFixed(3)})`;
      if (i === k) cell.className = "right";
      line.append(cell);
    });
    table.tBodies[0].append(line);
  });
}
for (const section of document.querySelectorAll(".confusion")) {
  section.querySelectorAll("select").forEach((select) => select.addEventListener("change", () => drawConfusion(section)));
  drawConfusion(section);
}
