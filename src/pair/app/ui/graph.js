// A neighbourhood of the graph as a drawing: settled by forces before it is shown, so nothing moves.

import { draw } from "./dom.js";
import { go, link } from "./route.js";

const [WIDTH, HEIGHT] = [860, 520];
const STEPS = 220;
const NAMES = 24;
const DOCUMENTS = 10;

/** `centre`: the document in the middle, or null when it is the first entity. */
export function drawn(around, centre) {
  const { nodes, edges } = gathered(around, centre);
  settle(nodes, edges);
  const picture = draw("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "graph", role: "group", "aria-label": "Graph; all of it is in the lists below, too",
  });
  for (const { from, to, kind, weight } of edges) {
    picture.append(draw("line", {
      x1: from.x.toFixed(1), y1: from.y.toFixed(1), x2: to.x.toFixed(1), y2: to.y.toFixed(1),
      class: kind === "together" || kind === "names" ? "edge" : "edge strong",
      "stroke-width": Math.min(4, 0.8 + weight / 2).toFixed(1),
    }, draw("title", {}, kind)));
  }
  for (const node of nodes) picture.append(picturedNode(node));
  return picture;
}

function gathered(around, centre) {
  const nodes = [];
  const byName = new Map();
  const add = (node) => {
    nodes.push(node);
    return node;
  };
  if (centre) add({ kind: "document", name: centre.name, id: centre.id, size: 13, isCentre: true });
  for (const each of around.entities.slice(0, NAMES)) {
    byName.set(each.name, add({ kind: "entity", name: each.name, size: 6 + Math.min(7, Math.sqrt(each.weight) * 2) }));
  }
  if (!centre && nodes.length) nodes[0].isCentre = true;
  const edges = [];
  const join = (from, to, kind, weight) => from && to && from !== to && edges.push({ from, to, kind, weight });
  if (centre) for (const each of around.entities.slice(0, NAMES)) join(nodes[0], byName.get(each.name), "names", each.weight);
  for (const edge of around.edges) join(byName.get(edge.source), byName.get(edge.target), edge.kind, edge.weight);
  for (const each of around.documents.slice(0, DOCUMENTS)) {
    const node = add({ kind: "document", name: each.title || each.id, id: each.id, size: 9 });
    for (const name of each.entities.slice(0, 3)) join(node, byName.get(name), "names", 1);
  }
  return { nodes, edges };
}

/** The same drawing for the same graph. */
function settle(nodes, edges) {
  nodes.forEach((node, number) => {
    const angle = number * 2.39996;
    const reach = node.isCentre ? 0 : 60 + 9 * number;
    node.x = WIDTH / 2 + Math.cos(angle) * reach * 1.3;
    node.y = HEIGHT / 2 + Math.sin(angle) * reach * 0.8;
  });
  const degrees = degreesOf(edges);
  for (let step = 0; step < STEPS; step += 1) {
    const heat = 1 - step / STEPS;
    for (const node of nodes) [node.dx, node.dy] = [0, 0];
    push(nodes);
    pull(edges, degrees);
    for (const node of nodes) {
      if (node.isCentre) continue;
      const length = Math.hypot(node.dx, node.dy) || 1;
      const move = Math.min(length, 18 * heat);
      node.x = Math.min(WIDTH - 80, Math.max(80, node.x + (node.dx / length) * move));
      node.y = Math.min(HEIGHT - 26, Math.max(26, node.y + (node.dy / length) * move));
    }
  }
}

function push(nodes) {
  for (let one = 0; one < nodes.length; one += 1) {
    for (let other = one + 1; other < nodes.length; other += 1) {
      const [a, b] = [nodes[one], nodes[other]];
      // Names are wide: nodes side by side need more room than nodes above each other.
      const [x, y] = [(a.x - b.x) / 1.9 || 0.1, a.y - b.y || 0.1];
      const force = 9000 / Math.max(60, x * x + y * y);
      a.dx += x * force * 0.1; b.dx -= x * force * 0.1;
      a.dy += y * force * 0.1; b.dy -= y * force * 0.1;
    }
  }
}

function degreesOf(edges) {
  const degrees = new Map();
  for (const { from, to } of edges) for (const node of [from, to]) degrees.set(node, (degrees.get(node) || 0) + 1);
  return degrees;
}

function pull(edges, degrees) {
  for (const { from, to } of edges) {
    const [x, y] = [to.x - from.x, to.y - from.y];
    // What has many edges is not torn to the middle of all of them.
    const force = ((Math.hypot(x, y) - 130) * 0.006) / Math.sqrt(Math.min(degrees.get(from), degrees.get(to)));
    from.dx += x * force; from.dy += y * force;
    to.dx -= x * force; to.dy -= y * force;
  }
}

function picturedNode(node) {
  const open = () => go(node.kind === "entity" ? link({ doc: "", at: "", tab: "", entity: node.name }) : link({ doc: node.id, at: "", tab: "", entity: "" }));
  const pressed = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open();
  };
  const shape = node.kind === "entity"
    ? draw("circle", { r: node.size.toFixed(1) })
    : draw("rect", { x: -node.size, y: -node.size, width: node.size * 2, height: node.size * 2, rx: 4 });
  return draw("g", {
    class: `node ${node.kind}${node.isCentre ? " centre" : ""}`, transform: `translate(${node.x.toFixed(1)} ${node.y.toFixed(1)})`,
    tabindex: 0, role: "button", "aria-label": `${node.kind === "entity" ? "Name" : "Document"} ${node.name}`, onclick: open, onkeydown: pressed,
  }, shape, draw("text", { y: node.size + 13, "text-anchor": "middle" }, shortened(node.name)), draw("title", {}, node.name));
}

function shortened(name) {
  const characters = [...name];
  return characters.length > 26 ? `${characters.slice(0, 25).join("")}…` : name;
}
