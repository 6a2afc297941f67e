"use strict";

/** The part of a graph that is drawn: some nodes, their neighbours, and the bodies around them. */

const MOST_NODES = 120;
const MOST_NEIGHBOURS = 8; // of one node; a constant may have thousands of readers
const SMALL_BODY = 24; // nodes of a body that is unfolded by default
const FEW = 8; // nodes of a focus whose small bodies are unfolded by default

class Region {
  /**
   * @param focus numbers of the nodes to show; ignores those that are not in the snapshot
   * @param view radius, and the nodes that the reader revealed, unfolded and folded, by number
   */
  constructor(snapshot, focus, view) {
    this.snapshot = snapshot;
    this.view = view;
    this.visible = new Set();
    this.unfoldedBy = new Set();
    this.focus = this.outermost(focus);
    this.cut = Math.max(0, this.focus.length - MOST_NODES);
    const start = this.focus.slice(0, MOST_NODES);
    start.forEach((node) => this.add(node));
    this.spread(start, view.radius);
    view.revealed.forEach((number) => {
      const node = snapshot.nodes.get(number);
      if (node) this.add(node);
    });
  }

  /** The focus without nodes whose owner is added or removed with them. */
  outermost(focus) {
    const all = new Set(focus);
    const nodes = focus.map((number) => this.snapshot.nodes.get(number)).filter((node) => node);
    return nodes.filter((node) => {
      const comesWithOwner = (owner) => all.has(owner.number) && this.view.gone?.has(owner.number);
      return !(this.view.gone?.has(node.number) && this.snapshot.owners(node).some(comesWithOwner));
    });
  }

  add(node) {
    this.visible.add(node.number);
    for (const owner of this.snapshot.owners(node)) {
      this.visible.add(owner.number);
      this.unfoldedBy.add(owner.number);
    }
  }

  /** Adds the neighbours of the nodes, then theirs, up to the radius. */
  spread(start, radius) {
    let border = start;
    for (let round = 0; round < radius; round += 1) {
      const next = [];
      for (const node of border) {
        for (const near of this.neighbours(node)) {
          if (this.visible.size >= MOST_NODES) return;
          if (this.visible.has(near.number)) continue;
          this.visible.add(near.number);
          next.push(near);
        }
      }
      border = next;
    }
  }

  neighbours(node) {
    return [
      ...this.snapshot.sources(node).slice(0, MOST_NEIGHBOURS),
      ...this.snapshot.users(node).slice(0, MOST_NEIGHBOURS),
    ];
  }

  /** `plain` without bodies, or `folded`, `part` (what the region needs), or `whole`. */
  state(node) {
    const bodies = this.snapshot.bodies.get(node.number);
    if (!bodies) return "plain";
    if (this.view.folded.has(node.number)) return "folded";
    if (this.view.unfolded.has(node.number)) return "whole";
    if (this.unfoldedBy.has(node.number)) return "part";
    const size = bodies.reduce((sum, body) => sum + this.snapshot.inside(body.number).length, 0);
    const focused = this.focus.length <= FEW && this.focus.includes(node);
    return focused && size <= SMALL_BODY ? "whole" : "folded";
  }

  /** The nodes of a graph that are drawn, and the number of all. */
  nodesOf(graph) {
    const members = this.snapshot.members.get(graph) || [];
    const owner = this.snapshot.nodes.get(this.snapshot.graphs.get(graph)?.owner);
    const whole = owner && this.state(owner) === "whole";
    const drawn = members.filter((node) => whole || this.visible.has(node.number));
    return { drawn: drawn.slice(0, MOST_NODES), all: members.length };
  }
}
