// The search box: finds entries of INDEX, which stands above, by names of gpunn and of PyTorch.
// An entry: name, address, kind, words, summary, names of its arguments or values.
"use strict";
const box = document.getElementById("search"), list = document.getElementById("results");
const MOST = 12;
let chosen = 0;

// The rank of an entry for a query, smaller is better; Infinity: not found.
function rank([name, , kind, words, summary, more], query) {
  const all = words.split(" ");
  if (all.includes(query)) return 0;
  if (all.some((word) => word.startsWith(query))) return 1;
  if (words.includes(query)) return 2;
  if (more.split(" ").includes(query)) return 3;
  const text = words + " " + more + " " + summary.toLowerCase();
  return query.split(/\s+/).every((word) => text.includes(word)) ? 4 : Infinity;
}

function find(text) {
  const query = text.trim().toLowerCase().replace(/\(.*/, "");
  if (!query) return [];
  return INDEX.map((entry) => [rank(entry, query), entry]).filter(([score]) => score < Infinity)
    .sort(([a, x], [b, y]) => a - b || (x[2] !== "") - (y[2] !== "") || x[0].length - y[0].length)
    .slice(0, MOST).map(([, entry]) => entry);
}

function element(tag, text, parent) {
  const made = parent.appendChild(document.createElement(tag));
  made.textContent = text;
  return made;
}

function show() {
  const found = find(box.value);
  list.replaceChildren();
  found.forEach(([name, address, kind, , summary], number) => {
    const link = element("a", "", element("li", "", list));
    link.href = address;
    if (number === chosen) link.className = "chosen";
    element("b", name, link);
    if (kind) element("small", kind, link);
    element("span", summary, link);
  });
  if (!found.length && box.value.trim()) element("li", "Nothing has this name.", list).className = "none";
  list.hidden = !list.firstChild;
}

box.addEventListener("input", () => { chosen = 0; show(); });
box.addEventListener("focus", show);
box.addEventListener("keydown", (event) => {
  const links = list.querySelectorAll("a");
  if (event.key === "Enter" && links[chosen]) links[chosen].click();
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    chosen = Math.max(0, Math.min(links.length - 1, chosen + (event.key === "ArrowDown" ? 1 : -1)));
    event.preventDefault();
    show();
  } else if (event.key === "Escape") { box.blur(); list.hidden = true; }
});
document.addEventListener("click", (event) => {
  if (!event.target.closest(".search") || event.target.closest("#results a")) list.hidden = true;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== box) { event.preventDefault(); box.focus(); }
});

// index.html?q=conv2d searches; index.html#gpunn_conv2d leads to the place of that name.
const query = new URLSearchParams(location.search).get("q");
if (query) { box.value = query; show(); }
const target = location.hash && INDEX.find(([name]) => "#" + name === location.hash);
if (target && /(^|\/)(index\.html)?$/.test(location.pathname)) location.replace(target[1]);
// A value within a closed list opens it.
const opened = location.hash && document.getElementById(location.hash.slice(1));
if (opened && opened.closest("details")) { opened.closest("details").open = true; opened.scrollIntoView(); }
