"use strict";
const D = JSON.parse(document.getElementById("data").textContent), LIMIT = 200;
const $ = (id) => document.getElementById(id);
const bytes = (n) => n >= 2 ** 30 ? (n / 2 ** 30).toFixed(2) + " GiB" : n >= 2 ** 20 ? (n / 2 ** 20).toFixed(1) + " MiB" : n >= 1024 ? (n / 1024).toFixed(1) + " KiB" : n + " B";
const time = (n) => n >= 1e9 ? (n / 1e9).toFixed(2) + " s" : n >= 1e6 ? (n / 1e6).toFixed(2) + " ms" : n >= 1e3 ? (n / 1e3).toFixed(1) + " µs" : n + " ns";
function row(cells, cls) {
  const tr = document.createElement("tr");
  if (cls) tr.className = cls;
  for (const [text, right] of cells) {
    const td = document.createElement("td");
    td.textContent = text;
    if (right) td.className = "n";
    tr.append(td);
  }
  return tr;
}
// Values: columns of the data in the order of the table; 8 op and 9 source are searched too.
const shown = [0, 1, 2, 3, 4, 5, 7, 10], numeric = [3, 5, 7];
let by = 3, down = true, all = false;
function drawValues() {
  const words = $("find").value.toLowerCase().split(/\s+/).filter((w) => w);
  const list = D.values.filter((v) => {
    const text = [v[0], v[1], v[2], v[4], v[8], v[9], v[10], v[6] ? "peak" : ""].join(" ").toLowerCase();
    return words.every((w) => text.includes(w));
  });
  list.sort((a, b) => (a[by] < b[by] ? -1 : a[by] > b[by] ? 1 : 0) * (down ? -1 : 1));
  const some = all ? list : list.slice(0, LIMIT);
  $("values").tBodies[0].replaceChildren(...some.map((v) => row(shown.map((c) =>
    [c === 7 ? (v[7] ? time(v[7]) : "") : v[c], numeric.includes(c)]), v[6] && v[4] !== "resident" ? "peak" : "")));
  const sum = list.reduce((n, v) => n + v[3], 0);
  $("found").textContent = `${list.length} of ${D.values.length} values, ${bytes(sum)}; marked: in memory at the peak`;
  $("more").hidden = all || list.length <= LIMIT;
  [...$("values").tHead.rows[0].cells].forEach((th, i) => th.setAttribute("aria-sort", shown[i] === by ? (down ? "descending" : "ascending") : "none"));
}
[...$("values").tHead.rows[0].cells].forEach((th, i) => th.addEventListener("click", () => {
  down = by === shown[i] ? !down : numeric.includes(shown[i]);
  by = shown[i];
  drawValues();
}));
$("find").addEventListener("input", drawValues);
$("more").addEventListener("click", () => { all = true; drawValues(); });
// Schedule.
let allOps = false;
function drawOps() {
  const list = D.ops.map((o, i) => [i, o]).filter(([, o]) => o[3] > 0 && (!$("only").checked || o[5] > 0));
  const some = allOps ? list : list.slice(0, LIMIT);
  $("ops").tBodies[0].replaceChildren(...some.map(([i, o]) => row([[i, true], [o[0]], [o[2]], [time(o[3]), true], [bytes(o[4]), true],
    [o[5] ? `again, run ${o[5] + 1}` : ""]], o[5] ? "again" : "")));
  $("steps").textContent = `${list.length} ops`;
  $("moreops").hidden = allOps || list.length <= LIMIT;
}
$("only").addEventListener("change", drawOps);
$("moreops").addEventListener("click", () => { allOps = true; drawOps(); });
// The pointer on the picture.
const svg = $("timeline"), box = svg.viewBox.baseVal, LEFT = 86, WIDTH = box.width - 86 - 14;
svg.addEventListener("mousemove", (event) => {
  const at = svg.getBoundingClientRect(), x = (event.clientX - at.left) / at.width * box.width - LEFT;
  if (x < 0 || x >= WIDTH) return;
  const c = Math.floor(x / WIDTH * D.columns.length), pos = D.columns[c], op = D.ops[pos];
  for (const end of ["x1", "x2"]) $("cursor").setAttribute(end, LEFT + x);
  const top = D.groups.map((g, i) => [g, D.stack[i][c]]).filter((p) => p[1]).sort((a, b) => b[1] - a[1]).slice(0, 6);
  const sum = D.stack.reduce((n, s) => n + s[c], D.resident);
  $("hover").textContent = (op ? `op ${pos}: ${op[0]}${op[5] ? " (again, run " + (op[5] + 1) + ")" : ""}, ${time(op[3])}` : "end of the step") +
    `; ${bytes(sum)} (${sum} bytes) in memory. Most: ` + top.map((p) => `${p[0]} ${bytes(p[1])}`).join(", ");
});
svg.addEventListener("mouseleave", () => { for (const end of ["x1", "x2"]) $("cursor").setAttribute(end, -9); });
drawValues();
drawOps();
