"use strict";

/** Search and keyboard of the page; they use the state in page.js. */

const MOST_FOUND = 8; // nodes that a search offers

// --- search ---

function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word);
  const list = activeList();
  const count = list ? list.filter(words) : filterRules(words);
  byId("search-count").textContent = words.length ? `${count} found` : "";
  findNodes(words);
  markFound();
}

function filterRules(words) {
  const rows = [...byId("rules").tBodies];
  for (const row of rows) {
    const text = row.dataset.text.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
  return rows.filter((row) => !row.hidden).length;
}

/** Offers nodes of the model at this commit. */
function findNodes(words) {
  const list = byId("found");
  const commit = Math.max(0, commitList.chosen);
  const nodes = state.tab === "commits" && words.length ? matching(history_.at(commit), words) : [];
  list.replaceChildren(...nodes.map((node) => {
    const button = make("button", { class: "link", "data-number": node.number }, nodeText(node));
    button.addEventListener("click", () => focusOn(node.number));
    return make("li", {}, button);
  }));
  list.hidden = !nodes.length;
}

function matching(snapshot, words) {
  const found = [];
  for (const node of snapshot.nodes.values()) {
    if (isFound(snapshot, node, words)) found.push({ ...node, snapshot });
    if (found.length === MOST_FOUND) break;
  }
  return found;
}

function isFound(snapshot, node, words) {
  const names = node.outputs.filter((value) => value >= 0).map((value) => snapshot.value(value).name);
  const text = `${node.op} ${node.name} ${names.join(" ")}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function nodeText(node) {
  const first = node.outputs.find((value) => value >= 0);
  return `${node.op} ${node.name || (first === undefined ? "" : node.snapshot.value(first).name)}`;
}

function focusOn(number) {
  state.focused = number;
  newView(state.view.radius);
  draw();
}

function markFound() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter((word) => word);
  for (const pane of panes()) {
    if (!pane.layout) continue;
    const snapshot = pane.region.snapshot;
    pane.mark("found", (node) => words.length > 0 && isFound(snapshot, node, words));
  }
}

// --- keyboard ---

const KEYS = {
  j: () => activeList()?.move(1),
  ArrowDown: () => activeList()?.move(1),
  k: () => activeList()?.move(-1),
  ArrowUp: () => activeList()?.move(-1),
  g: () => activeList()?.first(),
  Home: () => activeList()?.first(),
  G: () => activeList()?.last(),
  End: () => activeList()?.last(),
  1: () => showTab("commits"),
  2: () => showTab("why"),
  3: () => showTab("rules"),
  f: () => panes().forEach((pane) => pane.fit()),
  "[": () => widen(-1),
  "]": () => widen(1),
  "/": () => byId("search").select(),
  "?": () => byId("help").showModal(),
  Escape: () => {
    byId("node-card").hidden = true;
    if (state.focused !== null) showCommit(commitList.chosen);
  },
};

function widen(by) {
  const radius = Math.min(6, Math.max(0, state.view.radius + by));
  state.view.radius = radius;
  document.querySelectorAll(".radius").forEach((each) => { each.textContent = String(radius); });
  draw();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (event.target === byId("search")) {
    onSearchKey(event);
    return;
  }
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function onSearchKey(event) {
  if (event.key === "Enter") {
    activeList()?.first();
    event.target.blur();
  } else if (event.key === "Escape") {
    event.target.value = "";
    search("");
    event.target.blur();
  }
}
