"use strict";

/**
 * The layout of a graph. Each body has a layout of its own and is one large node of the graph around
 * it, so that folding a body changes nothing inside the others.
 */

const LINE = 15;
const TITLE = 18;
const PADDING = 9;
const WIDEST = 34; // characters of a line
const MOST_OPERANDS = 4;

/** A text that fits, without its middle: the ends of names say more. */
function shortened(text, most = WIDEST) {
  if (text.length <= most) return text;
  const half = Math.floor((most - 1) / 2);
  return `${text.slice(0, half)}…${text.slice(-half)}`;
}

/** The layout of a graph with everything unfolded in it: boxes and edges, from (0, 0). */
function layoutGraph(region, graphNumber) {
  const snapshot = region.snapshot;
  const graph = snapshot.graphs.get(graphNumber);
  const { drawn, all } = region.nodesOf(graphNumber);
  const boxes = new Map();
  drawn.forEach((node) => boxes.set(`n${node.number}`, nodeBox(region, node)));
  const edges = new Map();
  drawn.forEach((node) => connectOperands(snapshot, graph, node, boxes, edges));
  graph.outputs.forEach((value, slot) => connectResult(snapshot, graph, value, slot, boxes, edges));
  return { ...arrange(boxes, edges), shown: drawn.length, all };
}

function connectOperands(snapshot, graph, node, boxes, edges) {
  const direct = new Set(node.inputs);
  for (const value of snapshot.operands(node)) {
    const producer = snapshot.producers.get(value);
    let from = null;
    if (producer?.graph === graph.number) from = `n${producer.number}`;
    else if (!producer && snapshot.given.get(value) === graph.number) {
      from = `i${value}`;
      if (!boxes.has(from) && snapshot.value(value).constant === null) {
        boxes.set(from, inputBox(snapshot, graph, value));
      }
    }
    if (from && boxes.has(from)) connect(edges, from, `n${node.number}`, value, direct.has(value));
  }
}

function connectResult(snapshot, graph, value, slot, boxes, edges) {
  const producer = snapshot.producers.get(value);
  const from = producer ? `n${producer.number}` : `i${value}`;
  if ((producer && producer.graph !== graph.number) || !boxes.has(from)) return;
  const to = `o${slot}`;
  const about = snapshot.value(value);
  boxes.set(to, pill("output", about, resultRole(snapshot, graph, slot)));
  connect(edges, from, to, value, true);
}

/** One edge for all values that go from one box to another. */
function connect(edges, from, to, value, direct) {
  const key = `${from}>${to}`;
  const edge = edges.get(key) || { from, to, values: [], captured: true };
  edge.values.push(value);
  if (direct) edge.captured = false;
  edges.set(key, edge);
}

function arrange(boxes, edges) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 22, edgesep: 10, ranksep: 34, marginx: 8, marginy: 8 });
  for (const [key, box] of boxes) graph.setNode(key, { width: box.width, height: box.height });
  for (const edge of edges.values()) graph.setEdge(edge.from, edge.to, {});
  if (boxes.size) dagre.layout(graph);
  for (const [key, box] of boxes) {
    const placed = graph.node(key);
    box.x = placed.x - box.width / 2;
    box.y = placed.y - box.height / 2;
  }
  const lines = [...edges.values()].map((edge) => ({
    ...edge,
    points: graph.edge(edge.from, edge.to).points,
  }));
  const size = boxes.size ? graph.graph() : { width: 60, height: 20 };
  return { boxes: [...boxes.values()], edges: lines, width: size.width, height: size.height };
}

// --- boxes ---

function textWidth(lines, title) {
  const longest = Math.max(0, ...lines.map((line) => line.text.length)) * 6.3;
  return Math.max(92, title.length * 7.6 + 16, longest) + 2 * PADDING;
}

function nodeBox(region, node) {
  const snapshot = region.snapshot;
  const state = region.state(node);
  const lines = [...resultLines(snapshot, node), ...operandLines(snapshot, node)];
  const title = node.op;
  const box = { kind: "node", node, state, title, lines, bodies: [] };
  const width = textWidth(lines, title) + (state === "plain" ? 0 : 20);
  const height = 2 * PADDING + TITLE + lines.length * LINE;
  Object.assign(box, { width, height, textHeight: height });
  box.hiddenSources = hidden(region, node, snapshot.sources(node));
  box.hiddenUsers = hidden(region, node, snapshot.users(node));
  if (state === "folded") addFoldedLine(snapshot, node, box);
  if (state === "part" || state === "whole") addBodies(region, node, box);
  return box;
}

function resultLines(snapshot, node) {
  const first = node.outputs.find((value) => value >= 0);
  if (first === undefined) return [];
  const { name, type } = snapshot.value(first);
  const more = node.outputs.length > 1 ? ` +${node.outputs.length - 1}` : "";
  return [
    { kind: "name", text: shortened(name, WIDEST - more.length) + more },
    { kind: "type", text: shortened(type) },
  ];
}

/** The operands without an edge: constants, and values of outer graphs. */
function operandLines(snapshot, node) {
  const lines = [];
  if (node.attributes) lines.push({ kind: "attribute", text: shortened(node.attributes) });
  const formals = snapshot.data.formals[node.op] || [];
  for (const [slot, value] of node.inputs.entries()) {
    if (value < 0) continue;
    const about = snapshot.value(value);
    const formal = formals[slot] || shortened(about.name, 16);
    const home = snapshot.producers.get(value)?.graph ?? snapshot.given.get(value);
    if (about.constant !== null) {
      lines.push({ kind: "constant", text: shortened(`${formal} = ${about.constant}`) });
    } else if (home !== node.graph) {
      lines.push({ kind: "outer", text: shortened(`${formal} ↖ ${about.name}`) });
    }
  }
  const more = lines.length - MOST_OPERANDS;
  if (more <= 0) return lines;
  return [...lines.slice(0, MOST_OPERANDS), { kind: "outer", text: `… ${more} more` }];
}

function hidden(region, node, others) {
  return others.filter((other) => {
    if (other.graph !== node.graph || region.visible.has(other.number)) return false;
    const owner = region.snapshot.nodes.get(region.snapshot.graphs.get(node.graph).owner);
    return !(owner && region.state(owner) === "whole");
  });
}

function addFoldedLine(snapshot, node, box) {
  for (const body of snapshot.bodies.get(node.number)) {
    const count = snapshot.inside(body.number).length;
    box.lines.push({ kind: "body", text: `${body.attribute}: ${count} node${count === 1 ? "" : "s"}` });
  }
  box.height = box.textHeight = 2 * PADDING + TITLE + box.lines.length * LINE;
  box.width = Math.max(box.width, textWidth(box.lines, box.title));
}

function addBodies(region, node, box) {
  let x = PADDING;
  let height = 0;
  for (const body of region.snapshot.bodies.get(node.number)) {
    const layout = layoutGraph(region, body.number);
    const title = `${body.attribute}: ${layout.shown} of ${layout.all} nodes`;
    const width = Math.max(layout.width, title.length * 6.3 + 2 * PADDING);
    box.bodies.push({ body, layout, title, x, y: box.textHeight, width, height: layout.height + TITLE });
    x += width + PADDING;
    height = Math.max(height, layout.height + TITLE);
  }
  box.width = Math.max(box.width, x);
  box.height = box.textHeight + height + PADDING;
}

function inputBox(snapshot, graph, value) {
  return pill("input", snapshot.value(value), inputRole(snapshot, graph, graph.inputs.indexOf(value)));
}

function pill(kind, about, role) {
  const lines = [{ kind: "type", text: shortened(about.type) }];
  if (role) lines.unshift({ kind: "role", text: role });
  const title = shortened(about.name, 28);
  return {
    kind,
    title,
    lines,
    bodies: [],
    width: textWidth(lines, title),
    height: PADDING + TITLE + lines.length * LINE,
  };
}

// --- roles of body inputs and outputs (ONNX operator specification: Loop, Scan) ---

function inputRole(snapshot, graph, slot) {
  const owner = snapshot.nodes.get(graph.owner);
  if (owner?.op === "Loop") return ["iteration number", "condition"][slot] ?? "carried value";
  if (owner?.op === "Scan") return slot < carriedCount(owner) ? "carried value" : "scan input";
  return owner ? "" : "input of the model";
}

function resultRole(snapshot, graph, slot) {
  const owner = snapshot.nodes.get(graph.owner);
  if (owner?.op === "Loop") {
    if (slot === 0) return "condition";
    return slot < owner.inputs.length - 1 ? "next carried value" : "scan output";
  }
  if (owner?.op === "Scan") return slot < carriedCount(owner) ? "next carried value" : "scan output";
  return owner ? "result" : "output of the model";
}

function carriedCount(scan) {
  const given = /num_scan_inputs=(\d+)/.exec(scan.attributes);
  return scan.inputs.length - Number(given ? given[1] : 0);
}
