"use strict";

const report = JSON.parse(document.getElementById("data").textContent);
const history_ = new History(report.history);
const LAST = report.commits.length;
const MOST_OVERVIEW = 30;
const OVERVIEW = new Set(["If", "Loop", "Scan", "LSTM", "GRU", "RNN"]);
const byId = (id) => document.getElementById(id);

/** What the reader sees. */
const state = {
  tab: "commits",
  focused: null, // a node found by a search, drawn instead of the nodes that a commit touches
  view: null,
};

const target = { head: byId("commit-head"), change: byId("change"), match: byId("match"), rule: byId("rule") };
const actions = {
  select: (number, snapshot) => fillNode(byId("node-card"), history_, snapshot, number, goToCommit),
  hover: (number) => panes().forEach((pane) => pane.mark("hovered", (node) => node.number === number)),
  fold: (number, how) => {
    state.view.folded.delete(number);
    state.view.unfolded.delete(number);
    state.view[how === "fold" ? "folded" : "unfolded"].add(number);
    draw();
  },
  reveal: (numbers) => {
    numbers.forEach((number) => state.view.revealed.add(number));
    draw();
  },
};
const before = new Pane(byId("before"), actions);
const after = new Pane(byId("after"), actions);
const remaining = new Pane(byId("remaining"), actions);
const panes = () => (state.tab === "why" ? [remaining] : [before, after]);

const commitList = new ChoiceList(byId("commit-list"), showCommit);
const whyList = new ChoiceList(byId("why-list"), showRemaining);
const activeList = () => ({ commits: commitList, why: whyList })[state.tab];

function newView(radius) {
  state.view = { radius, revealed: new Set(), unfolded: new Set(), folded: new Set(), gone: null };
}

// --- commits ---

function showCommit(index) {
  state.focused = null;
  newView(state.view?.radius ?? 1);
  byId("node-card").hidden = true;
  byId("cards").hidden = index === 0;
  if (index === 0) fillOverview(target);
  else fillCommit(target, index, report.commits[index - 1], LAST);
  remember();
  draw();
}

function goToCommit(number) {
  showTab("commits");
  commitList.choose(number);
}

let waiting = 0;

/** Draws before the next frame, so that fast key presses need only one drawing. */
function draw() {
  if (!waiting) waiting = window.requestAnimationFrame(drawNow);
}

function drawNow() {
  waiting = 0;
  const fold = document.activeElement?.closest(".fold")?.parentNode;
  const place = fold && `#${fold.closest("svg").id} [data-number="${fold.dataset.number}"] > .fold`;
  if (state.tab === "commits" && commitList.chosen >= 0) drawCommit(commitList.chosen);
  if (state.tab === "why" && whyList.chosen >= 0) drawRemaining(whyList.chosen);
  markFound();
  if (place) document.querySelector(place)?.focus();
}

function drawCommit(index) {
  const old = history_.at(index === 0 ? 0 : index - 1);
  const now = history_.at(index === 0 ? LAST : index);
  const commit = index === 0 ? null : report.commits[index - 1];
  state.view.gone = new Set(commit && !state.focused ? [...commit.removed, ...commit.added] : []);
  drawPane(before, old, now, focusOf(commit, old, now), "removed");
  drawPane(after, now, old, focusOf(commit, now, old), "added");
}

/** The numbers of the nodes to draw in a snapshot; `other` is that of the other pane. */
function focusOf(commit, snapshot, other) {
  if (state.focused !== null) return [state.focused];
  if (!commit) return overviewOf(snapshot);
  const touched = [commit.root, ...commit.removed, ...commit.added, ...commit.touched];
  const there = touched.filter((number) => snapshot.nodes.has(number));
  return there.length ? [...new Set(there)] : survivors(touched, snapshot, other);
}

/** The neighbours of the touched nodes, for a snapshot that has none of these. */
function survivors(touched, snapshot, other) {
  const gone = touched.map((number) => other.nodes.get(number)).filter((node) => node);
  const near = gone.flatMap((node) => [...other.sources(node), ...other.users(node)]);
  return [...new Set(near.map((node) => node.number))].filter((n) => snapshot.nodes.has(n));
}

/** The control flow and recurrences of the main graph, or all nodes of a small graph. */
function overviewOf(snapshot) {
  const main = snapshot.members.get(0) || [];
  const important = main.filter((node) => OVERVIEW.has(node.op));
  const chosen = main.length <= MOST_OVERVIEW || !important.length ? main : important;
  return chosen.slice(0, MOST_OVERVIEW).map((node) => node.number);
}

function drawPane(pane, snapshot, other, focus, missing) {
  const region = new Region(snapshot, focus, state.view);
  const commit = commitList.chosen === 0 ? null : report.commits[commitList.chosen - 1];
  pane.draw(region, (number) => {
    if (!commit) return "";
    const root = number === commit.root ? " root" : "";
    return changeOf(snapshot.nodes.get(number), other.nodes.get(number), missing) + root;
  });
  showCount(pane, region);
}

function showCount(pane, region) {
  const cut = region.cut ? `, ${region.cut} touched nodes omitted` : "";
  pane.svg.node().closest("figure").querySelector(".count").textContent =
    `${region.visible.size} of ${region.snapshot.nodes.size} nodes${cut}`;
}

function changeOf(node, other, missing) {
  if (!other) return missing;
  if (node.graph !== other.graph) return "moved";
  return node.record === other.record ? "" : "changed";
}

// --- what remains ---

function showRemaining(index) {
  newView(state.view?.radius ?? 1);
  document.querySelectorAll("#why-details > article").forEach((article, number) => {
    article.hidden = number !== index;
  });
  remember();
  draw();
}

function drawRemaining(index) {
  const region = new Region(history_.at(LAST), [report.remaining[index]], state.view);
  remaining.draw(region, (number) => (number === report.remaining[index] ? "root" : ""));
  showCount(remaining, region);
}

// --- tabs ---

function showTab(name) {
  state.tab = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.dataset.tab === name;
    tab.setAttribute("aria-selected", String(chosen));
    byId(`panel-${tab.dataset.tab}`).hidden = !chosen;
  }
  byId("node-card").hidden = true;
  const list = activeList();
  search(byId("search").value);
  if (list && list.chosen < 0) list.first();
  else {
    remember();
    draw();
  }
}

/** Keeps the position in the address, so that it can be shared and survives a reload. */
function remember() {
  const list = activeList();
  const place = list ? `${state.tab}=${Math.max(0, list.chosen)}` : state.tab;
  window.history.replaceState(null, "", `#${place}`);
}

function recall() {
  const [name, number] = window.location.hash.slice(1).split("=");
  const known = document.querySelector(`[role=tab][data-tab="${CSS.escape(name)}"]`);
  showTab(known ? name : "commits");
  if (number !== undefined) activeList()?.choose(Number(number));
}

// --- start ---

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
setTheme(prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
byId("theme").addEventListener("click", () => {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
});
byId("search").addEventListener("input", (event) => search(event.target.value));
byId("bookkeeping")?.addEventListener("change", (event) => {
  commitList.showsBookkeeping = event.target.checked;
  search(byId("search").value);
});
byId("help-button").addEventListener("click", () => byId("help").showModal());
document.querySelectorAll("[role=tab]").forEach((tab) => {
  tab.addEventListener("click", () => showTab(tab.dataset.tab));
});
document.querySelectorAll("[data-widen]").forEach((button) => {
  button.addEventListener("click", () => widen(Number(button.dataset.widen)));
});
document.querySelectorAll("[data-fit]").forEach((button) => {
  button.addEventListener("click", () => panes().forEach((pane) => pane.fit()));
});
document.querySelectorAll("[data-source]").forEach((details) => {
  details.addEventListener("toggle", () => {
    const place = details.querySelector(".source");
    if (details.open && !place.childNodes.length) place.append(sourceOf(details.dataset.source));
  });
});
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", recall);
makeSortable(byId("rules"));
recall();
