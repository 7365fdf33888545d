"use strict";
// What peers say is only ever written as text (textContent) or as numbers into SVG, never as markup.
const SVG = "http://www.w3.org/2000/svg";
const active = (peer) => ["training", "settling"].includes(peer.state), well = (peer) => active(peer) || peer.state === "done";
const at = (id) => document.getElementById(id);
let chosen = null, board = null;

function make(parent, name, text, classes) {
  const element = parent instanceof SVGElement || name === "svg" ? document.createElementNS(SVG, name) : document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (classes) element.setAttribute("class", classes);
  parent.append(element);
  return element;
}
function place(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
function choose(key) { chosen = chosen === key ? null : key; draw(); }
function bytes(count) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 1000 || unit === "GB") return (unit === "B" ? count : count.toFixed(count < 10 ? 2 : 1)) + " " + unit;
    count /= 1000;
  }
}
const number = (value) => value === null ? "–" : String(Number(value.toPrecision(4)));
const label = (peer) => peer.node === undefined ? peer.where : peer.name === "node-" + peer.node ? "node " + peer.node : peer.node + " " + peer.name;
const mood = (peer) => well(peer) ? "good" : peer.state === "starting" ? "wait" : "bad";

function summarise() {
  const known = board.peers.filter((peer) => peer.node !== undefined), now = known.filter(active), ended = known.filter((peer) => peer.state === "done");
  at("title").textContent = board.network || "A network of peers";
  document.title = (board.network || "cesar") + ": live";
  const silent = now.flatMap((peer) => peer.groups.filter((group) => group.waits)).length, rounds = now.map((peer) => peer.round);
  const least = Math.min(...rounds), most = Math.max(...rounds);
  at("summary").textContent = [
    now.length + " of " + board.peers.length + " peers are there" + (ended.length ? ", " + ended.length + " done" : ""),
    now.length ? "round " + (least === most ? least : least + " to " + most) : "",
    now.some((peer) => peer.groups.length) ? (silent ? silent + (silent === 1 ? " group waits" : " groups wait") + " for a member" : "all group sums are complete") : "",
    bytes(known.reduce((sum, peer) => sum + peer.bytes, 0)) + " sent",
  ].filter(Boolean).join(" · ");
}
function drawGraph() {
  const graph = at("graph"), nodes = board.peers.map((peer, index) => ({ ...peer, index, key: peer.where })).filter((peer) => peer.node !== undefined)
    .concat(board.others.map((other) => ({ ...other, far: true }))).sort((a, b) => a.node - b.node);
  const size = Math.max(3, Math.min(13, 150 / Math.max(nodes.length, 1))), where = new Map();
  nodes.forEach((node, index) => {
    const turn = 2 * Math.PI * index / nodes.length - Math.PI / 2;
    where.set(node.node, [82 * Math.cos(turn), 82 * Math.sin(turn)]);
  });
  graph.replaceChildren();
  const far = new Set(board.others.map((other) => other.node));
  for (const { ends: [a, b], up } of board.links) {
    if (!where.has(a) || !where.has(b)) continue;
    const [[x1, y1], [x2, y2]] = [where.get(a), where.get(b)];
    place(make(graph, "line", undefined, up === false ? "down" : up === null || far.has(a) || far.has(b) ? "far" : "up"), { x1, y1, x2, y2, "data-ends": a + "-" + b });
  }
  for (const node of nodes) {
    const [x, y] = where.get(node.node);
    const group = make(graph, "g", undefined, node.far ? "far" : ["k" + node.index % 8, node.state.replace(" ", "-"), mood(node), chosen === node.key ? "chosen" : ""].join(" "));
    make(group, "title", (node.far ? node.node + " " + node.name + ": not looked at" : label(node) + ": " + node.state));
    place(make(group, "circle"), { cx: x, cy: y, r: size });
    if (size > 5) place(make(group, "text", node.node), { x, y });
    if (!node.far) group.addEventListener("click", () => choose(node.key));
  }
}
function drawTable() {
  const body = at("peers");
  while (body.rows.length < board.peers.length) {
    const row = make(body, "tr"), key = board.peers[body.rows.length - 1].where;
    const cells = ["peer", "state", "round", "links", "groups", "sent", "figures"].map((name) => { const cell = make(row, "td"); cell.dataset.name = name; return cell; });
    make(cells[0], "button").addEventListener("click", () => choose(key));
    make(cells[0], "small");
  }
  board.peers.forEach((peer, index) => {
    const row = body.rows[index], [name, state, round, links, groups, sent, figures] = row.cells, known = peer.node !== undefined;
    row.className = ["k" + index % 8, chosen === peer.where ? "chosen" : "", known ? "" : "mute", known && !well(peer) ? "old" : ""].join(" ");
    row.dataset.state = peer.state;
    const button = name.firstChild;
    if (button.textContent !== label(peer)) button.textContent = label(peer);
    button.setAttribute("aria-pressed", chosen === peer.where);
    state.replaceChildren(); make(state, "span", peer.state, mood(peer));
    const why = peer.why || (known && active(peer) ? peer.errors.join("; ") : "");
    name.lastChild.textContent = why;
    round.textContent = known ? peer.round : "";
    links.textContent = known ? peer.up + "/" + peer.near : "";
    links.className = known && active(peer) && peer.up < peer.near ? "bad" : "";
    const whole = known ? peer.groups.filter((group) => !group.waits).length : 0;
    groups.textContent = known ? (peer.groups.length ? whole + "/" + peer.groups.length : "none") : "";
    groups.className = known && active(peer) && whole < peer.groups.length ? "bad" : "";
    sent.textContent = known ? bytes(peer.bytes) : "";
    figures.replaceChildren();
    for (const [figure, value] of Object.entries(known ? peer.figures : {})) make(figures, "span", figure.replaceAll("_", " ") + " " + number(value));
  });
  at("waits").replaceChildren();
  for (const peer of board.peers) for (const group of active(peer) ? peer.groups : [])
    if (group.told) make(at("waits"), "p", label(peer) + ": " + group.told + ".");
}
function drawCurves() {
  const names = [...new Set(board.peers.flatMap((peer) => Object.keys(peer.curves || {})))].sort((a, b) => (a === "bytes sent") - (b === "bytes sent"));
  at("curves").replaceChildren();
  for (const name of names) {
    const lines = board.peers.map((peer, index) => ({ peer, index, points: (peer.curves || {})[name] || [] })).filter(({ points }) => points.length)
      .map((line) => ({ ...line, points: line.peer.round > line.points.at(-1)[0] ? [...line.points, [line.peer.round, line.points.at(-1)[1]]] : line.points }));
    const all = lines.flatMap(({ points }) => points);
    const span = (k) => all.reduce(([low, high], point) => [Math.min(low, point[k]), Math.max(high, point[k])], [Infinity, -Infinity]);
    const [[x0, x1], [y0, y1]] = [span(0), span(1)];
    const X = (x) => 44 + 276 * (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5), Y = (y) => 140 - 128 * (y1 > y0 ? (y - y0) / (y1 - y0) : 0.5);
    const figure = make(at("curves"), "figure"); figure.dataset.figure = name;
    make(figure, "h3", name.replaceAll("_", " "));
    const plot = place(make(figure, "svg"), { viewBox: "0 0 324 164", role: "img", "aria-label": name.replaceAll("_", " ") + " over the rounds" });
    const written = name === "bytes sent" ? bytes : (value) => String(Number(value.toPrecision(3)));
    for (const [y, value] of y1 > y0 ? [[Y(y0), y0], [Y(y1), y1]] : [[Y(y0), y0]]) {
      place(make(plot, "line"), { x1: 44, x2: 320, y1: y, y2: y });
      place(make(plot, "text", written(value), "ends"), { x: 38, y: y + 4 });
    }
    place(make(plot, "text", x0), { x: 44, y: 158 });
    place(make(plot, "text", x1 > x0 ? "round " + x1 : "", "ends"), { x: 320, y: 158 });
    for (const { peer, index, points } of lines) {
      const line = make(plot, "polyline", undefined, "k" + index % 8 + (chosen && chosen !== peer.where ? " faint" : ""));
      place(line, { points: points.map(([x, y]) => X(x) + "," + Y(y)).join(" ") });
    }
  }
}
function draw() { summarise(); drawGraph(); drawTable(); drawCurves(); }
async function look() {
  let heard = null;
  try { heard = await (await fetch("board.json", { signal: AbortSignal.timeout(10000) })).json(); } catch { /* said below */ }
  at("ended").hidden = heard !== null;
  if (heard !== null) { board = heard; draw(); }
  setTimeout(look, 1000);
}
look();
