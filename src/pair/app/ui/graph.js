// A neighbourhood of the graph as a drawing: settled by forces before it is shown, so nothing moves.

import { draw } from "./dom.js";
import { go, link } from "./route.js";

const WIDE = { width: 860, height: 540, names: 24, documents: 10, letters: 26 };
const NARROW = { width: 430, height: 560, names: 12, documents: 5, letters: 18 };
const STEPS = 200;
const PARTINGS = 60;
const LETTER_WIDTH = 6.6;
const NODE_HEIGHT = 40;

/** `centre`: the document in the middle, or null when it is the first entity. */
export function drawn(around, centre) {
  const frame = matchMedia("(max-width: 640px)").matches ? NARROW : WIDE;
  const { nodes, edges } = gathered(around, centre, frame);
  settle(nodes, edges, frame);
  const picture = draw("svg", {
    viewBox: `0 0 ${frame.width} ${frame.height}`, class: "graph", role: "group", "aria-label": "Graph; all of it is in the lists below, too",
  });
  for (const { from, to, kind, weight } of edges) {
    picture.append(draw("line", {
      x1: from.x.toFixed(1), y1: from.y.toFixed(1), x2: to.x.toFixed(1), y2: to.y.toFixed(1),
      class: kind === "together" || kind === "names" ? "edge" : "edge strong",
      "stroke-width": Math.min(4, 0.8 + weight / 2).toFixed(1),
    }, draw("title", {}, kind)));
  }
  for (const node of nodes) picture.append(pictured(node));
  return picture;
}

function shortened(name, letters) {
  const characters = [...name];
  return characters.length > letters ? `${characters.slice(0, letters - 1).join("")}…` : name;
}

function gathered(around, centre, frame) {
  const nodes = [];
  const byName = new Map();
  const add = (node) => {
    node.label = shortened(node.name, frame.letters);
    node.reach = Math.max(node.size * 2, [...node.label].length * LETTER_WIDTH) / 2 + 4;
    nodes.push(node);
    return node;
  };
  const named = around.entities.slice(0, frame.names);
  if (centre) add({ kind: "document", name: centre.name, id: centre.id, size: 12, isCentre: true });
  for (const each of named) byName.set(each.name, add({ kind: "entity", name: each.name, size: 6 + Math.min(6, Math.sqrt(each.weight)) }));
  if (!centre && nodes.length) nodes[0].isCentre = true;
  const edges = [];
  const join = (from, to, kind, weight) => from && to && from !== to && edges.push({ from, to, kind, weight });
  if (centre) for (const each of named) join(nodes[0], byName.get(each.name), "names", each.weight);
  for (const edge of around.edges) join(byName.get(edge.source), byName.get(edge.target), edge.kind, edge.weight);
  for (const each of around.documents.slice(0, frame.documents)) {
    const node = add({ kind: "document", name: each.title || each.id, id: each.id, size: 8 });
    for (const name of each.entities.slice(0, 3)) join(node, byName.get(name), "names", 1);
  }
  return { nodes, edges };
}

/** Return the same layout for the same graph. */
function settle(nodes, edges, frame) {
  nodes.forEach((node, number) => {
    const angle = number * 2.39996;
    const reach = node.isCentre ? 0 : 60 + 8 * number;
    node.x = Math.cos(angle) * reach;
    node.y = Math.sin(angle) * reach;
  });
  const degrees = degreesOf(edges);
  for (let step = 0; step < STEPS; step += 1) {
    const heat = 18 * (1 - step / STEPS);
    for (const node of nodes) [node.dx, node.dy] = [0, 0];
    push(nodes);
    pull(edges, degrees);
    for (const node of nodes) {
      const length = Math.hypot(node.dx, node.dy) || 1;
      const move = node.isCentre ? 0 : Math.min(length, heat) / length;
      node.x += node.dx * move;
      node.y += node.dy * move;
    }
  }
  fill(nodes, frame);
  for (let step = 0; step < PARTINGS; step += 1) part(nodes, frame);
}

function degreesOf(edges) {
  const degrees = new Map();
  for (const { from, to } of edges) for (const node of [from, to]) degrees.set(node, (degrees.get(node) || 0) + 1);
  return degrees;
}

function push(nodes) {
  for (let one = 0; one < nodes.length; one += 1) {
    for (let other = one + 1; other < nodes.length; other += 1) {
      const [a, b] = [nodes[one], nodes[other]];
      const [x, y] = [a.x - b.x || 0.1, a.y - b.y || 0.1];
      const force = 900 / Math.max(60, x * x + y * y);
      a.dx += x * force; b.dx -= x * force;
      a.dy += y * force; b.dy -= y * force;
    }
  }
}

function pull(edges, degrees) {
  for (const { from, to } of edges) {
    const [x, y] = [to.x - from.x, to.y - from.y];
    // A node with many edges is not pulled to the middle of all of them.
    const force = ((Math.hypot(x, y) - 110) * 0.006) / Math.sqrt(Math.min(degrees.get(from), degrees.get(to)));
    from.dx += x * force; from.dy += y * force;
    to.dx -= x * force; to.dy -= y * force;
  }
}

/** Stretch to the frame. */
function fill(nodes, frame) {
  for (const [axis, size, margin] of [["x", frame.width, 70], ["y", frame.height, 36]]) {
    const values = nodes.map((node) => node[axis]);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const scale = Math.min(3, (size - 2 * margin) / (most - least || 1));
    for (const node of nodes) node[axis] = size / 2 + (node[axis] - (least + most) / 2) * scale;
  }
}

/** Move overlapping names apart, a little at a time. */
function part(nodes, frame) {
  for (let one = 0; one < nodes.length; one += 1) {
    for (let other = one + 1; other < nodes.length; other += 1) {
      const [a, b] = [nodes[one], nodes[other]];
      const [wide, high] = [a.reach + b.reach - Math.abs(a.x - b.x), NODE_HEIGHT - Math.abs(a.y - b.y)];
      if (wide <= 0 || high <= 0) continue;
      const axis = wide < high * 1.5 ? "x" : "y";
      const shift = (axis === "x" ? wide : high) / 4;
      const sign = a[axis] <= b[axis] ? -1 : 1;
      a[axis] += sign * shift;
      b[axis] -= sign * shift;
    }
  }
  for (const node of nodes) {
    node.x = Math.min(frame.width - node.reach, Math.max(node.reach, node.x));
    node.y = Math.min(frame.height - 30, Math.max(18, node.y));
  }
}

function pictured(node) {
  const open = () => go(node.kind === "entity" ? link({ doc: "", span: "", tab: "", entity: node.name }) : link({ doc: node.id, span: "", tab: "", entity: "" }));
  const pressed = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open();
  };
  const size = node.size.toFixed(1);
  // What is shown must be part of the name, so that it can be said to open it.
  const said = node.label === node.name ? node.name : `${node.label} ${node.name}`;
  const shape = node.kind === "entity"
    ? draw("circle", { r: size })
    : draw("rect", { x: -size, y: -size, width: size * 2, height: size * 2, rx: 4 });
  return draw("g", {
    class: `node ${node.kind}${node.isCentre ? " centre" : ""}`, transform: `translate(${node.x.toFixed(1)} ${node.y.toFixed(1)})`,
    tabindex: 0, role: "button", "aria-label": `${node.kind === "entity" ? "Name" : "Document"} ${said}`, onclick: open, onkeydown: pressed,
  }, shape, draw("text", { y: node.size + 13, "text-anchor": "middle" }, node.label), draw("title", {}, node.name));
}
