"use strict";

/** The text beside the graphs: one commit, or one node. */

/** An element with attributes and children; texts are never parsed as HTML. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The highlighted source of a rule, which the page contains. */
function sourceOf(rule) {
  const template = document.querySelector(`template[data-rule="${CSS.escape(rule)}"]`);
  return template ? template.content.cloneNode(true) : make("p", {}, "no source");
}

function fillCommit(target, index, commit, total) {
  const place = commit.place ? ` in ${commit.place}` : "";
  target.head.replaceChildren(
    make("h2", {}, make("span", { class: "rule" }, commit.rule), ` at ${commit.node}${place}`),
    make("p", { class: "facts" },
      `commit ${index} of ${total} · phase ${commit.phase} · ${commit.ms.toFixed(2)} ms `,
      make("span", { class: `check ${commit.check.state}` }, commit.check.text)),
    ...commit.notes.map((note) => make("p", { class: "note" }, `note: ${note}`)),
  );
  target.change.replaceChildren(...commit.lines.map(lineElement), editList(commit));
  target.match.replaceChildren(
    definitions("What the match found", Object.entries(commit.bindings)),
    definitions("Facts of the operands", Object.entries(commit.facts)),
  );
  target.rule.replaceChildren(sourceOf(commit.rule));
}

function fillOverview(target) {
  const template = document.getElementById("overview");
  target.head.replaceChildren(template.content.cloneNode(true));
  for (const part of [target.change, target.match, target.rule]) part.replaceChildren();
}

function lineElement([mark, number, place, text]) {
  const kind = { "+": "plus", "-": "minus" }[mark] || "same";
  const line = make("div", { class: `line ${kind}`, "data-number": number },
    make("span", { class: "sign" }, mark === "-" ? "−" : mark), text);
  if (place) line.append(make("span", { class: "place" }, ` ${place}`));
  return line;
}

function editList(commit) {
  const title = `${commit.edits.length} edit${commit.edits.length === 1 ? "" : "s"}`;
  const edits = commit.edits.map((edit) => make("li", {}, edit));
  return make("details", {}, make("summary", {}, title), make("ol", {}, ...edits));
}

function definitions(title, entries) {
  const list = make("dl");
  for (const [name, value] of entries) {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    list.append(make("dt", {}, name), make("dd", {}, text));
  }
  return make("div", {}, make("h4", {}, title), entries.length ? list : make("p", {}, "none"));
}

// --- one node ---

function fillNode(card, history, snapshot, number, goTo) {
  const node = snapshot.nodes.get(number);
  const close = make("button", { class: "close", "aria-label": "close" }, "×");
  close.addEventListener("click", () => { card.hidden = true; });
  const when = snapshot.commit ? `after commit ${snapshot.commit}` : "in the file";
  card.replaceChildren(
    close,
    make("h3", {}, `${node.op} ${node.name}`),
    make("p", { class: "facts" }, when + placeText(snapshot, node)),
    definitions("Inputs", valueEntries(snapshot, node.inputs)),
    definitions("Outputs", valueEntries(snapshot, node.outputs)),
    definitions("Attributes", node.attributes ? [["", node.attributes]] : []),
    commitLinks(history, number, goTo),
  );
  card.hidden = false;
}

function placeText(snapshot, node) {
  const owners = snapshot.owners(node).map((owner) => `${owner.op} ${owner.name}`.trim());
  return owners.length ? `, in ${owners.join(", in ")}` : ", in the main graph";
}

function valueEntries(snapshot, values) {
  return values.map((value) => {
    if (value < 0) return ["(omitted)", ""];
    const { name, type, constant } = snapshot.value(value);
    return [name, constant === null ? type : `${type}: ${constant}`];
  });
}

function commitLinks(history, number, goTo) {
  const commits = history.commitsOf(number);
  const links = commits.slice(0, 60).map((commit) => {
    const link = make("button", { class: "link" }, String(commit));
    link.addEventListener("click", () => goTo(commit));
    return link;
  });
  if (commits.length > links.length) links.push(`… ${commits.length - links.length} more`);
  const title = make("h4", {}, "Commits that added, changed or removed it");
  return make("div", {}, title, ...(links.length ? links : ["none"]));
}
