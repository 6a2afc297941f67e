"use strict";

/** Draws a region of a graph into a pane: SVG with pan and zoom. */

const curve = d3.line((point) => point.x, (point) => point.y).curve(d3.curveBasis);
const SMALLEST = 0.55; // the scale below which names are not readable
const LARGEST_PART = 0.85; // the scale at which some context of a part is visible

class Pane {
  /** @param actions what a click does: select(number), fold(number, state), reveal(numbers) */
  constructor(element, actions) {
    this.actions = actions;
    this.svg = d3.select(element);
    this.root = this.svg.append("g");
    this.zoom = d3.zoom().scaleExtent([0.05, 3]).on("zoom", (event) => {
      this.root.attr("transform", event.transform);
    });
    this.svg.call(this.zoom).on("dblclick.zoom", null);
    addArrow(this.svg);
  }

  /** @param status a function from node number to the class that colours it */
  draw(region, status) {
    this.status = status;
    this.region = region;
    this.layout = layoutGraph(region, 0);
    this.root.selectAll("*").remove();
    drawLayout(this, this.root, this.layout);
    this.fit();
  }

  clear() {
    this.root.selectAll("*").remove();
    this.layout = null;
  }

  /** Shows the whole graph, or only the focus of the region if that would be too small. */
  fit() {
    if (!this.layout) return;
    const whole = { x: 0, y: 0, width: this.layout.width, height: this.layout.height };
    const scale = Math.min(this.scaleFor(whole), 1);
    if (scale >= SMALLEST) this.show(whole, scale);
    else {
      const part = this.focusFrame() ?? whole;
      this.show(part, Math.max(SMALLEST, Math.min(this.scaleFor(part), LARGEST_PART)));
    }
  }

  scaleFor(frame) {
    const { clientWidth, clientHeight } = this.svg.node();
    return Math.min(clientWidth / frame.width, clientHeight / frame.height);
  }

  show(frame, scale) {
    const { clientWidth, clientHeight } = this.svg.node();
    const x = clientWidth / 2 - scale * (frame.x + frame.width / 2);
    const y = clientHeight / 2 - scale * (frame.y + frame.height / 2);
    this.svg.call(this.zoom.transform, d3.zoomIdentity.translate(x, y).scale(scale));
  }

  /** The frame around the focus of the region, without the boxes of unfolded bodies. */
  focusFrame() {
    const about = new Set(this.region.focus.map((node) => node.number));
    const drawn = this.root.selectAll(".node").data();
    const chosen = drawn.filter(({ box }) => about.has(box.node.number) && !box.bodies.length);
    if (!chosen.length) return null;
    const left = d3.min(chosen, ({ place }) => place.x);
    const top = d3.min(chosen, ({ place }) => place.y);
    const right = d3.max(chosen, ({ place, box }) => place.x + box.width);
    const bottom = d3.max(chosen, ({ place, box }) => place.y + box.height);
    return { x: left - 20, y: top - 20, width: right - left + 40, height: bottom - top + 40 };
  }

  /** Gives a class to the nodes that pass a test: search hits, or the node under the mouse. */
  mark(name, test) {
    this.root.selectAll(".node").classed(name, (each) => test(each.box.node));
  }
}

function addArrow(svg) {
  const id = `arrow-${svg.attr("id")}`;
  svg.append("defs").append("marker")
    .attr("id", id).attr("viewBox", "0 0 8 8").attr("refX", 7).attr("refY", 4)
    .attr("markerWidth", 7).attr("markerHeight", 7).attr("orient", "auto")
    .append("path").attr("d", "M0 0.5 L8 4 L0 7.5 z").attr("class", "arrow");
}

function drawLayout(pane, parent, layout, offset = { x: 0, y: 0 }) {
  const marker = `url(#arrow-${pane.svg.attr("id")})`;
  const edges = parent.append("g").selectAll("path").data(layout.edges).join("path")
    .attr("class", (edge) => (edge.captured ? "edge captured" : "edge"))
    .attr("d", (edge) => curve(edge.points))
    .attr("marker-end", marker);
  edges.append("title").text((edge) => edgeText(pane.region.snapshot, edge));
  for (const box of layout.boxes) drawBox(pane, parent, box, offset);
}

function edgeText(snapshot, edge) {
  const lines = edge.values.map((number) => {
    const value = snapshot.value(number);
    return `${value.name}: ${value.type}`;
  });
  return (edge.captured ? "read in a body:\n" : "") + lines.join("\n");
}

function drawBox(pane, parent, box, offset) {
  const group = parent.append("g").attr("transform", `translate(${box.x},${box.y})`);
  const place = { x: offset.x + box.x, y: offset.y + box.y };
  group.append("rect").attr("width", box.width).attr("height", box.height)
    .attr("rx", box.kind === "node" ? 5 : 13);
  drawTexts(group, box);
  if (box.kind !== "node") {
    group.attr("class", box.kind);
    return;
  }
  drawNode(pane, group, box, place);
  for (const body of box.bodies) {
    const inner = group.append("g").attr("class", "body").attr("transform", `translate(${body.x},${body.y})`);
    inner.append("rect").attr("width", body.width).attr("height", body.height).attr("rx", 4);
    inner.append("text").attr("x", PADDING).attr("y", TITLE - 5).text(body.title);
    const graph = inner.append("g").attr("transform", `translate(0,${TITLE})`);
    drawLayout(pane, graph, body.layout, { x: place.x + body.x, y: place.y + body.y + TITLE });
  }
}

function drawTexts(group, box) {
  const x = box.bodies.length || box.state === "folded" ? PADDING + 18 : PADDING;
  const top = box.kind === "node" ? PADDING : PADDING / 2;
  group.append("text").attr("class", "title").attr("x", x).attr("y", top + 12).text(box.title);
  box.lines.forEach((line, row) => {
    group.append("text").attr("class", line.kind).attr("x", PADDING)
      .attr("y", top + TITLE + 10 + row * LINE).text(line.text);
  });
}

function drawNode(pane, group, box, place) {
  const node = box.node;
  const status = pane.status(node.number);
  group.datum({ box, place }).attr("class", `node ${status}`)
    .attr("data-number", node.number).attr("data-op", node.op)
    .attr("tabindex", 0).attr("role", "button")
    .attr("aria-label", `${node.op} ${node.name}${status ? `, ${status}` : ""}`);
  group.on("click", (event) => {
    event.stopPropagation();
    pane.actions.select(node.number, pane.region.snapshot);
  });
  group.on("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.stopPropagation();
    pane.actions.select(node.number, pane.region.snapshot);
  });
  group.on("mouseover", (event) => {
    event.stopPropagation();
    pane.actions.hover(node.number);
  });
  group.on("mouseout", () => pane.actions.hover(null));
  if (status) drawMark(group, box, status);
  if (box.state !== "plain") drawFold(pane, group, box);
  drawMore(pane, group, box, box.hiddenSources, "▲", 0);
  drawMore(pane, group, box, box.hiddenUsers, "▼", box.height);
}

const MARKS = { removed: "−", added: "+", changed: "~", moved: "↗" };

/** A sign in addition to the colour, for readers who cannot distinguish the colours. */
function drawMark(group, box, status) {
  const sign = MARKS[status.split(" ")[0]];
  if (!sign) return;
  group.append("text").attr("class", "mark").attr("x", box.width - PADDING).attr("y", PADDING + 13)
    .attr("text-anchor", "end").text(sign);
}

function drawFold(pane, group, box) {
  const folded = box.state === "folded";
  const button = group.append("g").attr("class", "fold").attr("role", "button").attr("tabindex", 0)
    .attr("aria-expanded", String(!folded))
    .attr("aria-label", `${folded ? "unfold" : "fold"} ${box.node.op} ${box.node.name}`);
  button.append("rect").attr("x", 3).attr("y", 5).attr("width", 20).attr("height", 20).attr("rx", 4);
  button.append("text").attr("x", 13).attr("y", 20).attr("text-anchor", "middle").text(folded ? "▸" : "▾");
  onPress(button, () => pane.actions.fold(box.node.number, folded ? "unfold" : "fold"));
  if (box.state !== "part" || box.bodies.every((body) => body.layout.shown === body.layout.all)) return;
  const all = group.append("g").attr("class", "all").attr("role", "button").attr("tabindex", 0);
  all.append("text").attr("x", box.width - PADDING - 16).attr("y", PADDING + 12)
    .attr("text-anchor", "end").text("show all");
  onPress(all, () => pane.actions.fold(box.node.number, "unfold"));
}

function drawMore(pane, group, box, nodes, sign, y) {
  if (!nodes.length) return;
  const button = group.append("g").attr("class", "more").attr("role", "button").attr("tabindex", 0)
    .attr("aria-label", `show ${nodes.length} more nodes`)
    .attr("transform", `translate(${box.width - 22},${y})`);
  button.append("rect").attr("x", -17).attr("y", -8).attr("width", 34).attr("height", 16).attr("rx", 8);
  button.append("text").attr("y", 4).attr("text-anchor", "middle").text(`${sign} ${nodes.length}`);
  const next = nodes.slice(0, MOST_NEIGHBOURS).map((node) => node.number);
  onPress(button, () => pane.actions.reveal(next));
}

function onPress(button, action) {
  button.on("click", (event) => {
    event.stopPropagation();
    action();
  });
  button.on("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.stopPropagation();
    event.preventDefault();
    action();
  });
}
