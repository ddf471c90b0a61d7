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
});
prefersDark.addEventListener("change", showTheme);
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
  const section = filter.closest(".runs");
  const table = section.querySelector("table");
  const count = section.querySelector(".count");
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
function drawConfusion(panel, classes, counts, target) {
  const method = panel.querySelector(".method").value;
  const found = (counts[method] ?? {})[target];
  const table = panel.querySelector("table");
  const [told, frequent] = panel.querySelectorAll(".told");
  table.replaceChildren();
  frequent.textContent = "";
  told.textContent = `${method} has no predictions for ${target}.`;
  if (!found) return;
  const percent = (value, total) => `${((100 * value) / total).toFixed(1)} %`;
  const few = found.of.length < classes.length ? ` The ${found.of.length} of ${classes.length} classes with most mistakes.` : "";
  told.textContent = `${method}, ${target} held out: ${percent(...found.right)} of ${found.right[1].toLocaleString("en")} right.${few}`;
  const names = found.of.map((number) => classes[number]);
  const columns = found.rows[0].length > names.length ? [...names, "others"] : names;
  table.classList.toggle("long", columns.some((name) => name.length > 4));
  const above = document.createElement("tr");
  above.append(element("td", ""), element("th", "called", { scope: "colgroup", colspan: columns.length }));
  const head = document.createElement("tr");
  head.append(element("th", "true", { scope: "col" }), ...columns.map((name) => element("th", name, { scope: "col" })));
  table.append(document.createElement("thead"), document.createElement("tbody"));
  table.tHead.append(above, head);
  found.rows.forEach((row, i) => {
    const total = row.reduce((sum, value) => sum + value, 0);
    const line = document.createElement("tr");
    line.append(element("th", names[i], { scope: "row" }));
    row.forEach((value, k) => {
      const share = total ? value / total : 0;
      const text = value ? (share < 0.005 ? "<1" : (100 * share).toFixed(0)) : "";
      const cell = element("td", text, { title: `${names[i]} called ${columns[k]}: ${value} of ${total}` });
      cell.className = i === k ? "right" : "mistaken";
      cell.style.setProperty("--share", `${(70 * Math.sqrt(share)).toFixed(0)}%`);
      line.append(cell);
    });
    table.tBodies[0].append(line);
  });
  if (found.frequent.length) {
    frequent.textContent = "Most frequent: " + found.frequent.map(([truth, said, value, total]) =>
      `${classes[truth]} called ${classes[said]} (${value} of ${total})`).join(", ") + ".";
  }
}
for (const section of document.querySelectorAll(".confusion")) {
  const { classes, counts } = JSON.parse(section.querySelector("script").textContent);
  const target = section.querySelector(".target");
  const draw = () => section.querySelectorAll(".panel").forEach((panel) => drawConfusion(panel, classes, counts, target.value));
  section.querySelectorAll("select").forEach((select) => select.addEventListener("change", draw));
  draw();
}
