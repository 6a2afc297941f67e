"use strict";

/** What is told of one step and of one node, as text beside the graphs. */

/** An element with attributes and children; texts are never read as HTML. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The source of a rule, which the page holds highlighted. */
function sourceOf(rule) {
  const template = document.querySelector(`template[data-rule="${CSS.escape(rule)}"]`);
  return template ? template.content.cloneNode(true) : make("p", {}, "no source");
}

function fillStep(target, index, step, total) {
  const place = step.place ? ` in ${step.place}` : "";
  target.head.replaceChildren(
    make("h2", {}, make("span", { class: "rule" }, step.rule), ` at ${step.node}${place}`),
    make("p", { class: "facts" },
      `step ${index} of ${total} · phase ${step.phase} · ${step.ms.toFixed(2)} ms `,
      make("span", { class: `check ${step.check.state}` }, step.check.text)),
    ...step.notes.map((note) => make("p", { class: "note" }, `note: ${note}`)),
  );
  target.change.replaceChildren(...step.lines.map(lineElement), editList(step));
  target.match.replaceChildren(
    definitions("What the match found", Object.entries(step.bindings)),
    definitions("What is known of the operands", Object.entries(step.facts)),
  );
  target.rule.replaceChildren(sourceOf(step.rule));
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

function editList(step) {
  const title = `${step.edits.length} edit${step.edits.length === 1 ? "" : "s"}`;
  const edits = step.edits.map((edit) => make("li", {}, edit));
  return make("details", {}, make("summary", {}, title), make("ol", {}, ...edits));
}

function definitions(title, entries) {
  const list = make("dl");
  for (const [name, value] of entries) {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    list.append(make("dt", {}, name), make("dd", {}, text));
  }
  return make("div", {}, make("h4", {}, title), entries.length ? list : make("p", {}, "nothing"));
}

// --- one node ---

function fillNode(card, history, snapshot, number, goTo) {
  const node = snapshot.nodes.get(number);
  const close = make("button", { class: "close", "aria-label": "close" }, "×");
  close.addEventListener("click", () => { card.hidden = true; });
  const when = snapshot.step ? `after step ${snapshot.step}` : "as it was read";
  card.replaceChildren(
    close,
    make("h3", {}, `${node.op} ${node.name}`),
    make("p", { class: "facts" }, when + placeText(snapshot, node)),
    definitions("Inputs", valueEntries(snapshot, node.inputs)),
    definitions("Outputs", valueEntries(snapshot, node.outputs)),
    definitions("Attributes", node.attributes ? [["", node.attributes]] : []),
    stepLinks(history, number, goTo),
  );
  card.hidden = false;
}

function placeText(snapshot, node) {
  const owners = snapshot.owners(node).map((owner) => `${owner.op} ${owner.name}`.trim());
  return owners.length ? `, in ${owners.join(", in ")}` : ", in the main graph";
}

function valueEntries(snapshot, values) {
  return values.map((value) => {
    if (value < 0) return ["(left out)", ""];
    const { name, type, constant } = snapshot.value(value);
    return [name, constant === null ? type : `${type}: ${constant}`];
  });
}

function stepLinks(history, number, goTo) {
  const steps = history.stepsOf(number);
  const links = steps.slice(0, 60).map((step) => {
    const link = make("button", { class: "link" }, String(step));
    link.addEventListener("click", () => goTo(step));
    return link;
  });
  if (steps.length > links.length) links.push(`… ${steps.length - links.length} more`);
  const title = make("h4", {}, "Steps that made, changed or removed it");
  return make("div", {}, title, ...(links.length ? links : ["none"]));
}
