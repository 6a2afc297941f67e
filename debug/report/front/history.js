"use strict";

/** The version that holds after a commit: the last one that began by then, or null. */
function versionAt(versions, commit) {
  let low = 0;
  let high = versions.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (versions[middle][0] <= commit) low = middle + 1;
    else high = middle;
  }
  return low ? versions[low - 1] : null;
}

/** The graph after each commit; debug/report/graph_history.py describes the data. */
class History {
  constructor(data) {
    this.data = data;
    this.recent = new Map();
  }

  /** The graph after a commit, 0 for the model in the file. Keeps the last few. */
  at(commit) {
    let snapshot = this.recent.get(commit);
    if (!snapshot) {
      snapshot = new Snapshot(this.data, commit);
      this.recent.set(commit, snapshot);
      if (this.recent.size > 6) this.recent.delete(this.recent.keys().next().value);
    }
    return snapshot;
  }

  /** The commits that changed a node. */
  commitsOf(number) {
    return (this.data.nodes[number] || []).map((version) => version[0]).filter((commit) => commit > 0);
  }
}

/** The graph after one commit: nodes by number, def-use chains, the tree of bodies. */
class Snapshot {
  constructor(data, commit) {
    this.data = data;
    this.commit = commit;
    this.nodes = new Map();
    this.producers = new Map();
    this.readers = new Map();
    this.members = new Map();
    this.bodies = new Map();
    this.given = new Map();
    this.graphs = new Map();
    this.capturesOf = new Map();
    data.nodes.forEach((versions, number) => this.readNode(versions, number));
    data.graphs.forEach((about, number) => this.readGraph(about, number));
    // `then_branch` before `else_branch`, whatever the order in the file.
    for (const bodies of this.bodies.values()) {
      bodies.sort((a, b) => b.attribute.localeCompare(a.attribute));
    }
  }

  readNode(versions, number) {
    const version = versionAt(versions, this.commit);
    if (!version || version[1] < 0) return;
    const [op, name, attributes, graph, inputs, outputs] = this.data.records[version[1]];
    const texts = this.data.texts;
    const node = { number, op: texts[op], name, attributes: texts[attributes], graph, inputs, outputs };
    node.record = version[1];
    this.nodes.set(number, node);
    append(this.members, graph, node);
    for (const value of outputs) if (value >= 0) this.producers.set(value, node);
    for (const value of new Set(inputs)) if (value >= 0) append(this.readers, value, node);
  }

  readGraph(about, number) {
    const version = versionAt(about.versions, this.commit);
    if (!version || (about.owner >= 0 && !this.nodes.has(about.owner))) return;
    const [, inputs, outputs] = version;
    const attribute = versionAt(about.attribute, this.commit)[1];
    const graph = { number, name: about.name, owner: about.owner, attribute, inputs, outputs };
    this.graphs.set(number, graph);
    if (about.owner >= 0) append(this.bodies, about.owner, graph);
    for (const value of inputs) this.given.set(value, number);
  }

  value(number) {
    const [, name, type, constant] =
      versionAt(this.data.values[number], this.commit) || this.data.values[number][0];
    const texts = this.data.texts;
    return { number, name, type: texts[type], constant: constant < 0 ? null : texts[constant] };
  }

  /** The nodes whose bodies contain a node, the innermost first. */
  owners(node) {
    const found = [];
    let owner = this.nodes.get(this.graphs.get(node.graph)?.owner);
    while (owner) {
      found.push(owner);
      owner = this.nodes.get(this.graphs.get(owner.graph)?.owner);
    }
    return found;
  }

  /** The node of a graph that is this node or contains it in a body; undefined if none does. */
  ancestorIn(node, graph) {
    return [node, ...this.owners(node)].find((each) => each.graph === graph);
  }

  /** The nodes of a body and of the bodies inside it. */
  inside(graph) {
    return (this.members.get(graph) || []).flatMap((node) => [
      node,
      ...(this.bodies.get(node.number) || []).flatMap((body) => this.inside(body.number)),
    ]);
  }

  /** The outer values that the bodies of a node read, without constants. */
  captures(node) {
    let found = this.capturesOf.get(node.number);
    if (!found) {
      found = this.findCaptures(node);
      this.capturesOf.set(node.number, found);
    }
    return found;
  }

  findCaptures(node) {
    const bodies = this.bodies.get(node.number) || [];
    const nodes = bodies.flatMap((body) => this.inside(body.number));
    const graphs = new Set([...bodies.map((body) => body.number), ...nodes.map((n) => n.graph)]);
    const read = new Set(nodes.flatMap((inner) => inner.inputs));
    for (const graph of graphs) this.graphs.get(graph)?.outputs.forEach((value) => read.add(value));
    return [...read].filter((value) => {
      if (value < 0) return false;
      const home = this.producers.get(value)?.graph ?? this.given.get(value);
      return home !== undefined && !graphs.has(home);
    });
  }

  /** The values that a node reads, including those that its bodies capture. */
  operands(node) {
    const values = new Set([...node.inputs.filter((value) => value >= 0), ...this.captures(node)]);
    return [...values];
  }

  /** The nodes that a node depends on, each once. */
  sources(node) {
    const found = this.operands(node).map((value) => this.producers.get(value));
    return [...new Set(found.filter((each) => each))];
  }

  /** The nodes of the same graph that read results of a node, directly or in their bodies. */
  users(node) {
    const found = node.outputs.flatMap((value) => this.readers.get(value) || []);
    return [...new Set(found.map((reader) => this.ancestorIn(reader, node.graph)).filter((n) => n))];
  }
}

function append(map, key, item) {
  const there = map.get(key);
  if (there) there.push(item);
  else map.set(key, [item]);
}
