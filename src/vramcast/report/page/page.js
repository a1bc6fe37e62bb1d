"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const W = DATA.words;
const COLOURS = DATA.colours;
const MOST_ROWS = 40;

// Every text of the recording goes into the page as text, never as markup.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(node.style, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function bytes(value, digits = 2) {
  const size = Math.abs(value);
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (size >= factor) return (value / factor).toFixed(Math.max(2, digits)) + " " + unit;
  return value + " bytes";
}
function seconds(us) {
  if (us >= 1e6) return (us / 1e6).toPrecision(3) + " s";
  return us >= 1e3 ? (us / 1e3).toPrecision(3) + " ms" : us + " us";
}
const percent = (part, whole) => (whole ? ((100 * part) / whole).toFixed(1) + "%" : "");
const count = (value) => value.toLocaleString("en-US");
const category = (name) => W["category." + name] ?? name;
const kindOf = (name) => (name === "slack" ? W.rounding : category(name));
const swatch = (colour) => el("span", { class: "swatch", style: { background: colour } });
const probe = document.body.appendChild(el("i", { hidden: true }));
// A colour as a canvas takes it: a variable may hold a pair, of light and of dark.
function css(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

function card(title, ...children) {
  return el("section", { class: "card" }, el("h2", {}, title), ...children);
}
function row(cells, attributes = {}) {
  return el("tr", attributes, ...cells.map(([text, kind]) => el("td", { class: kind ?? "name" }, text)));
}
function head(cells) {
  return el("thead", {}, el("tr", {}, ...cells.map(([text, kind]) => el("th", { class: kind ?? "" }, text))));
}
function framesOf(device, stack) {
  const frames = DATA.stacks[stack] ?? [];
  if (!frames.length) return el("p", { class: "soft" }, W.no_stack);
  return el("ol", { class: "frames mono" }, ...frames.map(([text, user]) => el("li", user ? {} : { class: "deep" }, text)));
}
// A row that shows its stack when it is clicked.
function opening(body, cells, device, stack) {
  const line = row(cells, { class: "can", tabindex: "0" });
  let below = null;
  const toggle = () => {
    if (below) { below.remove(); below = null; line.classList.remove("open"); return; }
    below = el("tr", {}, el("td", { colspan: cells.length }, framesOf(device, stack)));
    line.classList.add("open");
    line.after(below);
  };
  line.addEventListener("click", toggle);
  line.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(); });
  body.append(line);
}

function figures(device) {
  const figure = (value, text) => el("div", { class: "figure" }, el("b", {}, value), el("span", {}, text));
  return el("div", { class: "figures" },
    figure(device.peak.reserved === null ? "-" : bytes(device.peak.reserved), W.reserved), figure(bytes(device.peak.allocated), W.allocated),
    figure(device.fragmentation ?? "-", W.fragmentation),
    figure((device.matched !== null && percent(device.matched, device.allocations)) || "-", W.matched));
}

function sized(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11.5px system-ui, sans-serif";
  return { pen, width, height };
}
// Every block over the events, by the picture of the page (parts/blocks.js), and what was live where it is clicked.
function timeline(device) {
  if (!device.blocks) return null;
  const blocks = new Blocks(device.blocks, device.peak.event);
  const told = el("p", { class: "soft" }), below = el("div");
  const moved = (event) => {
    const reserved = blocks.reservedAt(event);
    told.textContent = W.event + " " + count(event) + ": " + bytes(blocks.allocatedAt(event)) + " " + W.allocated +
      (reserved === undefined ? "" : ", " + bytes(reserved) + " " + W.reserved);
    return told.textContent;
  };
  function picked(event) {
    const { kinds, largest } = blocks.at(event), total = kinds.reduce((sum, { size }) => sum + size, 0);
    const sums = kinds.map(({ name, size, number }) => el("tr", {}, el("td", {}, swatch(COLOURS[name]), category(name)),
      el("td", { class: "number" }, bytes(size)), el("td", { class: "number" }, percent(size, total)), el("td", { class: "number" }, number ? count(number) : W.unlisted)));
    const rows = largest.map((block) => row([[bytes(blocks.sizes[block]), "number"], [category(blocks.names[blocks.kinds[block]])],
      [blocks.stackOf(block).slice(0, 4).join(" < ") || W.no_stack, "mono"]]));
    below.replaceChildren(el("h3", {}, W.event + " " + count(event) + ": " + bytes(total)), el("table", {}, el("tbody", {}, ...sums)),
      el("table", {}, el("tbody", {}, ...rows)));
  }
  const picture = new BlockPicture(blocks, {
    bytes, count, seconds: (value) => seconds(1e6 * value), name: kindOf, moved, picked,
    colour: (kind) => COLOURS[kind] ?? COLOURS.unknown, ink: (name) => css("--" + name),
    marks: [{ event: blocks.peak, text: W.peak, kind: "ink" }, ...device.failures.map(({ event }) => ({ event, text: "OOM", kind: "bad" }))],
    words: {
      timeline: W.timeline, event: W.event, capacity: W.card, none: W.no_stack,
      smaller: (kind, size) => W.smaller.replace("{size}", size).replace("{kind}", kind),
      lived: (start, end) => W["lived" + (start === null ? ".before" : "") + (end === null ? ".on" : "")].replace("{start}", start).replace("{end}", end),
    },
  });
  redraw.push(() => picture.draw());
  const legend = el("div", { class: "legend" }, ...blocks.ranges.map(([name]) => el("span", {}, swatch(COLOURS[name]), category(name))),
    el("span", {}, swatch(COLOURS[blocks.rest]), kindOf(blocks.rest)), blocks.reserved ? el("span", {}, "┄ ", W.reserved) : null);
  return card(W.timeline, picture.node, told, legend, el("p", { class: "soft" }, W.hint), below);
}

function groups(title, rows, total, name) {
  if (!rows.length) return null;
  const body = el("tbody");
  for (const [text, size, blocks, stack] of rows) {
    const cells = [[name(text)], [bytes(size), "number"], [percent(size, total), "number"], [blocks ? count(blocks) : W.unlisted, "number"]];
    if (stack === undefined) body.append(row(cells)); else opening(body, cells, null, stack);
  }
  return el("div", {}, el("h3", {}, title), el("table", {}, body));
}
function held(device) {
  const peak = device.peak, total = peak.held;
  const bar = el("div", { class: "bar" }, ...peak.categories.map(([name, size]) =>
    el("i", { title: category(name) + ": " + bytes(size), style: { width: (100 * size) / total + "%", background: COLOURS[name] } })));
  const body = el("tbody", {}, ...peak.categories.map(([name, size, blocks]) =>
    el("tr", {}, el("td", {}, swatch(COLOURS[name]), category(name)), el("td", { class: "number" }, bytes(size)),
      el("td", { class: "number" }, percent(size, total)), el("td", { class: "number" }, blocks ? count(blocks) : W.unlisted))));
  return card(W.held, bar, el("div", { class: "columns" },
    el("div", {}, el("table", {}, body), ...peak.said.map((text) => el("p", { class: "soft" }, text)),
      groups(W.modules, peak.modules, total, (name) => name || W.no_module)),
    el("div", {}, groups(W.lines, peak.lines, total, (name) => name || W.unnamed))),
    groups(W.stacks, peak.stacks, total, (name) => name || W.no_stack));
}
function largest(device) {
  const body = el("tbody");
  const search = el("input", { type: "search", placeholder: W.filter, "aria-label": W.filter });
  const said = el("p", { class: "soft" });
  function fill() {
    const wanted = search.value.toLowerCase();
    const text = (block) => (category(block.category) + " " + (DATA.stacks[block.stack] ?? []).map(([frame]) => frame).join(" ")).toLowerCase();
    const found = device.peak.blocks.filter((block) => !wanted || text(block).includes(wanted));
    body.replaceChildren();
    for (const block of found.slice(0, MOST_ROWS)) {
      const name = el("span", {}, swatch(COLOURS[block.category]), category(block.category));
      opening(body, [[bytes(block.size), "number"], [name], [block.line], [block.age], [block.address, "mono"]], device, block.stack);
    }
    said.textContent = W.shown.replace("{count}", count(Math.min(found.length, MOST_ROWS))).replace("{total}", count(wanted ? found.length : device.peak.num_blocks));
  }
  search.addEventListener("input", fill);
  fill();
  return card(W.largest, search, el("table", {}, head([[W.size, "number"], [W.category], [W.stack], [W.age], [W.address]]), body), said);
}

const PARTS = ["--blue", "--good", "--orange", "--bad", "--room"];
function fragmentation(device) {
  const found = device.unallocated;
  if (!found || !found.reserved) return null;
  const bar = el("div", { class: "bar" }, ...found.parts.map(([name, size], place) =>
    el("i", { title: name + ": " + bytes(size), style: { width: (100 * size) / found.reserved + "%", background: `var(${PARTS[place]})` } })));
  const parts = el("tbody", {}, ...found.parts.map(([name, size], place) =>
    el("tr", {}, el("td", {}, swatch(`var(${PARTS[place]})`), name), el("td", { class: "number" }, bytes(size)), el("td", { class: "number" }, percent(size, found.reserved)))));
  const classes = el("tbody", {}, ...found.classes.map(([name, size, blocks]) => row([[name], [bytes(size), "number"], [count(blocks), "number"]])));
  const holes = el("tbody"), pinned = el("tbody");
  for (const hole of found.holes) {
    holes.append(row([[hole.text]]));
    for (const [side, size, first, stack] of hole.sides) {
      if (stack === null) holes.append(row([["    " + side + ": " + W.edge, "soft"]]));
      else opening(holes, [[side + ": " + bytes(size) + "  " + first]], device, stack);
    }
  }
  for (const segment of found.pinned) {
    pinned.append(row([[segment.text]]));
    for (const [size, first, stack] of segment.pins) opening(pinned, [[bytes(size) + "  " + first]], device, stack);
  }
  return card(found.title, el("p", {}, found.said), bar, el("div", { class: "columns" }, el("table", {}, parts), el("table", {}, classes)),
    el("div", { class: "columns" }, found.holes.length ? el("div", {}, el("h3", {}, W.holes), el("table", {}, holes)) : null,
      found.pinned.length ? el("div", {}, el("h3", {}, W.pinned), el("table", {}, pinned)) : null));
}

// Segments as one tape over several lines, in order of address; widths are bytes.
function segments(device) {
  const bars = device.segments;
  if (!bars.length) return null;
  const canvas = el("canvas", { role: "img", "aria-label": W.map }), tip = el("div", { class: "tip" });
  const total = bars.reduce((sum, bar) => sum + bar.size, 0), HEIGHT = 18, GAP = 5;
  const lines = Math.max(1, Math.min(28, Math.ceil(bars.length / 6)));
  canvas.style.height = lines * (HEIGHT + GAP) + "px";
  let drawn = [];
  function draw() {
    const { pen, width } = sized(canvas);
    const scale = (width * lines) / total, colours = [css("--blue"), css("--room"), css("--orange")];
    drawn = [];
    let start = 0;
    for (const bar of bars) {
      let at = start;
      for (const [part, size] of bar.stretches) { stretch(pen, at, size, scale, width, colours[part]); at += size; }
      drawn.push([start * scale, (start + bar.size) * scale, bar]);
      stretch(pen, start + bar.size - Math.min(1.4 / scale, bar.size / 3), 1.4 / scale, scale, width, css("--sheet"));
      start += bar.size;
    }
  }
  function stretch(pen, from, size, scale, width, colour) {
    pen.fillStyle = colour;
    let low = from * scale;
    const high = (from + size) * scale;
    while (low < high - 0.01) {
      const line = Math.floor(low / width + 1e-9), end = Math.min(high, (line + 1) * width);
      if (end <= low) break;
      pen.fillRect(low - line * width, line * (HEIGHT + GAP), end - low, HEIGHT);
      low = end;
    }
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const where = Math.floor((event.clientY - box.top) / (HEIGHT + GAP)) * box.width + event.clientX - box.left;
    const hit = drawn.find(([low, high]) => where >= low && where < high)?.[2];
    if (!hit) { tip.style.visibility = "hidden"; return; }
    tip.replaceChildren(el("b", { class: "mono" }, hit.address), el("table", {},
      row([[W.size], [bytes(hit.size), "number"]]), row([[W.live], [bytes(hit.live), "number"]]), row([[W.free], [bytes(hit.free), "number"]])),
      el("span", { class: "soft" }, hit.kind));
    const left = event.clientX - box.left;
    tip.style.left = (left > box.width / 2 ? left - tip.offsetWidth - 14 : left + 14) + "px";
    tip.style.top = event.clientY - box.top + 16 + "px"; tip.style.visibility = "visible";
  });
  canvas.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
  redraw.push(draw);
  const key = [["--blue", W.live], ["--room", W.free], ["--orange", W.awaits]];
  return card(W.map, el("div", { class: "frame" }, canvas, tip),
    el("div", { class: "legend" }, ...key.map(([colour, name]) => el("span", {}, swatch(`var(${colour})`), name))));
}

function settings(device) {
  const found = device.variants;
  if (!found.rows.length) return null;
  const most = Math.max(...found.rows.map((entry) => entry.reserved));
  const body = el("tbody", {}, ...found.rows.map((entry) => {
    const [name, reserved, change, retries, stopped] = entry.cells;
    const meter = el("div", { class: "meter" }, el("i", { style: { width: (100 * entry.reserved) / most + "%" } }));
    return row([[name], [meter, "thin"], [reserved, "number"], [change, "number"], [retries, "number"], [stopped]]);
  }));
  const kind = found.helps ? "said good" : "said";
  const [name, reserved, change, retries, stopped] = found.head;
  return card(found.title, found.said ? el("p", { class: kind }, found.said) : null,
    el("table", {}, head([[name], ["", "thin"], [reserved, "number"], [change, "number"], [retries, "number"], [stopped]]), body),
    found.note ? el("p", { class: "soft" }, found.note) : null);
}
function failures(device) {
  if (!device.failures.length) return null;
  const body = el("tbody");
  for (const failure of device.failures) opening(body, [[el("span", {}, failure.text, el("br"), el("span", { class: "soft" }, failure.room))]], device, failure.stack);
  return card(W.failures, el("table", {}, body));
}
function leaks(device) {
  if (!device.leaks) return null;
  const body = el("tbody");
  for (const leak of device.leaks.rows) opening(body, [[leak.text], [leak.first]], device, leak.stack);
  return card(W.leaks, el("p", { class: device.leaks.rows.length ? "said bad" : "said" }, device.leaks.said), el("table", {}, body));
}
function difference(device) {
  if (!device.difference) return null;
  const [first, ...rows] = device.difference.rows;
  const cells = ([change, before, after, what]) => [[change, "number"], [before, "number"], [after, "number"], [what]];
  const body = el("tbody", {}, ...rows.map((entry) => row(cells(entry))));
  return card(device.difference.title, el("p", {}, device.difference.said), el("table", {}, head(cells(first)), body));
}

// The answer that a predicted recording belongs to, as the terminal shows it.
function lead() {
  if (!DATA.lead) return [];
  const [first, ...rest] = DATA.lead.lines;
  return [el("p", { class: "said" }, first), ...rest.map((text) => el("div", { class: "soft" }, text)),
    ...DATA.lead.sections.map(([title, text]) => card(title, el("pre", { class: "mono" }, text)))];
}

let redraw = [];
function show(place) {
  redraw = [];
  const device = DATA.devices[place];
  const nav = el("nav", {}, ...(DATA.devices.length < 2 ? [] : DATA.devices.map((other, number) =>
    el("button", { "aria-pressed": String(number === place), onclick: () => show(number) }, other.name))));
  const sections = [failures, settings, timeline, held, largest, fragmentation, segments, leaks, difference];
  document.querySelector("main").replaceChildren(
    el("h1", {}, DATA.title), ...lead(), ...device.about.map((text) => el("div", { class: "soft" }, text)), nav, figures(device),
    ...sections.map((section) => section(device)).filter((section) => section !== null),
    ...(DATA.remarks.length ? [card(W.notes, ...DATA.remarks.map((text) => el("p", {}, text)))] : []));
  redraw.forEach((draw) => draw());
}
show(DATA.shown);
window.addEventListener("resize", () => redraw.forEach((draw) => draw()));
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw.forEach((draw) => draw()));
