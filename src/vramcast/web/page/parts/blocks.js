/**
 * Every block of a recording over its events, on a canvas: block by block at any closeness, with the stack of what the
 * pointer is on. Imports nothing, as the files that `vramcast replay --html` writes hold it too.
 *
 * A column of pixels shows the moment of its events at which most was allocated, so no peak is lost. Blocks that are
 * less than a pixel high are drawn together, above the larger ones of their kind: a frame takes one look at each block
 * and at most one write a pixel, however many blocks there are.
 */

const PAGE = 512; // bytes that totals count
const SEEN = 0.75; // pixels of height from which a block is drawn by itself
const LEFT = 76;
const RIGHT = 14;
const TOP = 22;
const BOTTOM = 40;
const STRIP = 30; // height of the whole run below
const CHUNK = 512; // events or blocks of which the most is known
const CLOSEST = 8; // events that are shown at least
const HEADROOM = 1.05;
const FRAMES = 6; // of a stack, beside the pointer
const DIGITS = 6; // behind the point of a size, at most
const LARGEST = 12; // blocks of a moment that are listed
const TEXTURES = { // kind -> rows of eight pixels that are marked, so that no colour has to be told from another
  gradients: (x, y) => (x & 3) === 1 && (y & 3) === 1,
  optimizer: (x, y) => ((x + y) & 7) === 0,
  temporaries: (x, y) => ((x - y) & 7) === 0,
  communication: (x) => (x & 7) === 0,
  backward: (x, y) => ((x - y) & 7) === 0,
  "held before": (x, y) => (y & 7) === 0,
  workspaces: (x, y) => (x & 7) === 0 || (y & 7) === 0,
};

function column(text, Kind) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place += 1) bytes[place] = raw.charCodeAt(place);
  return new Kind(bytes.buffer);
}

/** Round values up to the most, in powers of two of bytes or of ten of anything else. */
function rounds(low, high, wanted, base) {
  const rough = Math.max((high - low) / wanted, Number.MIN_VALUE);
  const power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const step = (base === 2 ? [1, 2] : [1, 2, 5, 10]).map((one) => one * power).find((one) => one >= rough) ?? power;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(value);
  return found;
}

/** Sizes in as few digits as tell them apart: close by, "217.9 MiB" would stand at three heights. */
function labels(sizes, bytes) {
  for (let digits = 1; ; digits += 1) {
    const texts = sizes.map((size) => bytes(size, digits));
    if (digits === DIGITS || new Set(texts).size === texts.length) return texts;
  }
}

/** "#rrggbb" or "rgb(r, g, b)" -> a pixel, darkened by a share. */
function pixel(colour, share = 1) {
  const parts = colour.startsWith("#")
    ? [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)) : colour.match(/\d+/g).slice(0, 3).map(Number);
  const [red, green, blue] = parts.map((part) => Math.round(part * share));
  return (255 << 24) | (blue << 16) | (green << 8) | red;
}

/** The columns of a recording, and what follows from them. */
export class Blocks {
  constructor(data, peak) {
    this.names = data.names;
    this.events = data.events;
    this.starts = column(data.starts, Int32Array);
    this.ends = column(data.ends, Uint32Array);
    this.sizes = column(data.sizes, Float64Array);
    this.kinds = column(data.categories, Uint8Array);
    this.stacks = column(data.stacks, Uint32Array);
    this.frames = data.frames;
    this.stackFrames = data.stack_frames;
    this.allocated = column(data.allocated, Uint32Array);
    this.reserved = data.reserved === undefined ? null : column(data.reserved, Uint32Array);
    this.times = data.times_us ?? null;
    this.capacity = data.capacity_bytes ?? null;
    this.ranges = []; // [kind, first, last] upwards
    for (let first = 0; first < this.kinds.length;) {
      let last = first;
      while (last < this.kinds.length && this.kinds[last] === this.kinds[first]) last += 1;
      this.ranges.push([this.names[this.kinds[first]], first, last]);
      first = last;
    }
    this.rest = this.ranges.length ? "slack" : "unknown"; // what no block holds; there is none where frees name no address
    this.tops = new Int32Array(Math.ceil(this.events / CHUNK)); // events of most allocated memory
    this.tops.forEach((_, chunk) => {
      this.tops[chunk] = this.#top(chunk * CHUNK, Math.min(this.events, (chunk + 1) * CHUNK), this.allocated);
    });
    this.lastEnds = new Uint32Array(Math.ceil(this.ends.length / CHUNK));
    this.ends.forEach((end, block) => {
      const chunk = Math.floor(block / CHUNK);
      this.lastEnds[chunk] = Math.max(this.lastEnds[chunk], end);
    });
    this.peak = peak ?? this.topBetween(0, this.events);
  }

  #top(low, high, sizes) {
    let best = low;
    for (let event = low + 1; event < high; event += 1) if (sizes[event] > sizes[best]) best = event;
    return best;
  }

  /** The event of most allocated memory from one to before another. */
  topBetween(low, high) {
    const first = Math.ceil(low / CHUNK);
    const last = Math.floor(high / CHUNK);
    if (first >= last) return this.#top(low, high, this.allocated);
    let best = this.#top(low, first * CHUNK, this.allocated);
    for (let chunk = first; chunk < last; chunk += 1)
      if (this.allocated[this.tops[chunk]] > this.allocated[best]) best = this.tops[chunk];
    const end = this.#top(last * CHUNK, high, this.allocated);
    return last * CHUNK < high && this.allocated[end] > this.allocated[best] ? end : best;
  }

  allocatedAt(event) {
    return this.allocated[event] * PAGE;
  }

  reservedAt(event) {
    return this.reserved ? this.reserved[event] * PAGE : undefined;
  }

  /** Since the first event, in seconds; undefined where no times are known. */
  secondsAt(event) {
    if (!this.times) return undefined;
    const step = Math.max(1, Math.floor(this.events / 1024));
    return this.times[Math.min(this.times.length - 1, Math.floor(event / step))] / 1e6;
  }

  stackOf(block) {
    return (this.stackFrames[this.stacks[block]] ?? []).map((frame) => this.frames[frame]);
  }

  /** Bytes of each kind at an event, and its largest blocks. */
  at(event) {
    const kinds = new Map();
    const largest = [];
    if (!this.ranges.length) kinds.set(this.rest, [this.allocatedAt(event), 0]);
    for (let block = 0; block < this.starts.length; block += 1) {
      if (this.starts[block] > event || this.ends[block] <= event) continue;
      const name = this.names[this.kinds[block]];
      const [size, number] = kinds.get(name) ?? [0, 0];
      kinds.set(name, [size + this.sizes[block], number + 1]);
      if (largest.length < LARGEST || this.sizes[block] > this.sizes[largest[LARGEST - 1]]) {
        largest.push(block);
        largest.sort((one, other) => this.sizes[other] - this.sizes[one]);
        largest.length = Math.min(largest.length, LARGEST);
      }
    }
    return { kinds: [...kinds].map(([name, [size, number]]) => ({ name, size, number }))
      .sort((one, other) => other.size - one.size), largest };
  }

  /** The moment that each column of pixels shows: that of most allocated memory among its events. */
  moments([first, last], columns) {
    const moments = new Int32Array(columns);
    const wide = (last - first) / columns;
    for (let at = 0; at < columns; at += 1) {
      const low = Math.min(this.events - 1, Math.floor(first + at * wide));
      const high = Math.min(this.events, Math.max(low + 1, Math.floor(first + (at + 1) * wide)));
      moments[at] = this.topBetween(low, high);
    }
    return moments;
  }

  /**
   * Calls `large(block, from, to)` for each block that is high enough, upwards, and `small(kind, sizes)` after those of a
   * kind with what its smaller ones take in each column.
   */
  stacked(moments, perByte, { large, small }) {
    const columns = moments.length;
    const [begin, end] = [moments[0], moments[columns - 1]];
    const wide = (end - begin) / columns || 1;
    const { starts, ends, sizes } = this;
    const place = (event) => { // the first column whose moment is not before an event
      if (event <= begin) return 0;
      if (event > end) return columns;
      let at = Math.min(columns - 1, Math.max(0, Math.floor((event - begin) / wide)));
      while (at > 0 && moments[at - 1] >= event) at -= 1;
      while (at < columns && moments[at] < event) at += 1;
      return at;
    };
    for (const [kind, first, last] of this.ranges) {
      const rest = new Float64Array(columns + 1);
      for (let block = first; block < last && starts[block] <= end; block += 1) {
        if (block % CHUNK === 0 && this.lastEnds[block / CHUNK] <= begin) {
          block += CHUNK - 1;
          continue;
        }
        if (ends[block] <= begin) continue;
        const from = place(starts[block]);
        const to = place(ends[block]);
        if (from >= to) continue;
        if (sizes[block] * perByte >= SEEN) large(block, from, to);
        else { rest[from] += sizes[block]; rest[to] -= sizes[block]; }
      }
      for (let at = 1; at < columns; at += 1) rest[at] += rest[at - 1];
      small(kind, rest);
    }
  }
}

/** A canvas of `Blocks` with its mouse and keys. */
export class BlockPicture {
  /**
   * @param {Blocks} blocks
   * @param {object} how  marks: [{ event, text }]; colour(kind); name(kind); words: { event, memory, reserved, capacity,
   *   smaller, none, ... }; bytes, count, seconds: how figures are written; ink(name): a colour of the page;
   *   moved(event), picked(event): what is told when the line moves, and when a moment is chosen
   */
  constructor(blocks, how) {
    this.blocks = blocks;
    this.how = how;
    this.range = [0, blocks.events];
    this.levels = null; // bytes that are shown, from and to; null: all
    this.at = blocks.peak;
    this.canvas = document.createElement("canvas");
    this.canvas.className = "blocks";
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "slider");
    this.canvas.setAttribute("aria-label", how.words.timeline);
    this.tip = document.createElement("div");
    this.tip.className = "block-tip";
    this.tip.hidden = true;
    this.node = document.createElement("div");
    this.node.className = "block-picture";
    this.node.append(this.canvas, this.tip);
    this.#listen();
    this.#tell();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** Shows the events between two. */
  look([first, last]) {
    const wide = Math.min(this.blocks.events, Math.max(Math.min(CLOSEST, this.blocks.events), last - first));
    const low = Math.min(Math.max(0, first), this.blocks.events - wide);
    this.range = [low, low + wide];
    this.at = Math.min(Math.max(this.at, Math.ceil(low)), Math.ceil(low + wide) - 1);
    this.#tell();
    this.draw();
  }

  whole() {
    this.levels = null;
    this.look([0, this.blocks.events]);
  }

  /** Shows a hundredth of the run around an event. */
  around(event) {
    this.at = event;
    this.levels = null;
    const half = Math.max(CLOSEST, this.blocks.events / 100) / 2;
    this.look([event - half, event + half]);
  }

  zoom(factor, event = this.at) {
    const [first, last] = this.range;
    this.look([event - (event - first) * factor, event + (last - event) * factor]);
  }

  #size() {
    const ratio = window.devicePixelRatio || 1;
    const { width, height } = this.canvas.getBoundingClientRect();
    return { ratio, width, height, box: { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM - STRIP } };
  }

  #most() {
    const { blocks, drawn: { moments } } = this;
    const most = moments.reduce((so, event) => Math.max(so, blocks.allocatedAt(event), blocks.reservedAt(event) ?? 0), 1);
    const { capacity } = blocks;
    return HEADROOM * (capacity !== null && capacity > most && capacity < 1.3 * most ? capacity : most);
  }

  draw() {
    const { ratio, width, height, box } = this.#size();
    if (!width || box.right <= box.left || box.bottom <= box.top) return;
    const { canvas } = this;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    const columns = Math.max(1, Math.round((box.right - box.left) * ratio));
    const rows = Math.max(1, Math.round((box.bottom - box.top) * ratio));
    this.drawn = { box, columns, rows, moments: this.blocks.moments(this.range, columns) };
    [this.drawn.low, this.drawn.high] = this.levels ?? [0, this.#most()];
    const image = pen.createImageData(columns, rows);
    this.#paint(new Uint32Array(image.data.buffer));
    pen.putImageData(image, Math.round(box.left * ratio), Math.round(box.top * ratio));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    this.#axes(pen);
    this.#lines(pen);
    this.#strip(pen, height);
    this.#cursor(pen);
  }

  /** The blocks, pixel by pixel. */
  #paint(pixels) {
    const { blocks, how, drawn: { low: floor, columns, rows, moments } } = this;
    const perByte = this.#perByte();
    const ground = new Float64Array(columns);
    const shades = new Map(blocks.ranges.map(([kind]) => {
      const colour = how.colour(kind);
      return [kind, [pixel(colour), pixel(colour, 0.9), pixel(colour, 0.72)]];
    }));
    const row = (bytes) => Math.min(rows, Math.max(0, rows - Math.round((bytes - floor) * perByte)));
    const fill = (at, low, high, colour, dark, texture) => {
      const bottom = row(low);
      for (let y = row(high); y < bottom; y += 1)
        pixels[y * columns + at] = texture && texture(at, y) ? dark : colour;
    };
    blocks.stacked(moments, perByte, {
      large: (block, from, to) => {
        const kind = blocks.names[blocks.kinds[block]];
        const [light, shade, dark] = shades.get(kind);
        const texture = TEXTURES[kind];
        const size = blocks.sizes[block];
        const colour = block & 1 ? shade : light;
        const isFramed = size * perByte >= 5;
        for (let at = from; at < to; at += 1) {
          const low = ground[at];
          ground[at] = low + size;
          fill(at, low, low + size, colour, dark, texture);
          if (isFramed) pixels[Math.min(rows - 1, row(low + size)) * columns + at] = dark;
        }
      },
      small: (kind, sizes) => {
        const [, shade, dark] = shades.get(kind);
        for (let at = 0; at < columns; at += 1) {
          if (sizes[at] <= 0) continue;
          fill(at, ground[at], ground[at] + sizes[at], shade, dark, TEXTURES[kind]);
          ground[at] += sizes[at];
        }
      },
    });
    const slack = pixel(how.colour(blocks.rest));
    moments.forEach((event, at) => fill(at, ground[at], blocks.allocatedAt(event), slack, slack));
  }

  /** Pixels of a byte. */
  #perByte() {
    const { low, high, rows } = this.drawn;
    return rows / (high - low);
  }

  #x(event) {
    const { drawn: { box }, range: [first, last] } = this;
    return box.left + ((event - first) / (last - first)) * (box.right - box.left);
  }

  #y(size) {
    const { drawn: { box, low, high } } = this;
    return box.bottom - ((size - low) / (high - low)) * (box.bottom - box.top);
  }

  #axes(pen) {
    const { blocks, how, drawn: { box, low, high }, range: [first, last] } = this;
    pen.fillStyle = how.ink("soft");
    pen.strokeStyle = how.ink("line");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const sizes = rounds(low, high, 5, 2);
    const written = labels(sizes, how.bytes);
    for (const [place, size] of sizes.entries()) {
      pen.globalAlpha = 0.5;
      pen.beginPath(); pen.moveTo(box.left, this.#y(size)); pen.lineTo(box.right, this.#y(size)); pen.stroke();
      pen.globalAlpha = 1;
      pen.fillText(written[place], box.left - 8, this.#y(size), LEFT - 10);
    }
    pen.textBaseline = "top";
    pen.textAlign = "center";
    const wanted = Math.max(3, (box.right - box.left) / 120);
    let before = "";
    for (const event of rounds(first, last, wanted, 10).filter(Number.isInteger)) {
      const time = blocks.secondsAt(Math.min(event, blocks.events - 1));
      const x = Math.min(Math.max(this.#x(event), box.left + 20), box.right - 20);
      pen.fillText(how.count(event), x, box.bottom + 5);
      const moment = time === undefined ? "" : how.seconds(time);
      if (moment !== before) pen.fillText(moment, x, box.bottom + 20); // closer than times are known it would stand again
      before = moment;
    }
    pen.textAlign = "right";
    pen.fillText(how.words.event, box.left - 8, box.bottom + 5);
  }

  /** Reserved memory, the card, and marks. */
  #lines(pen) {
    const { blocks, how, drawn: { box, low, high, columns, moments }, range: [first, last] } = this;
    const isShown = (size) => size >= low && size <= high;
    if (blocks.reserved) {
      pen.strokeStyle = how.ink("ink");
      pen.lineWidth = 1.4;
      pen.setLineDash([5, 3]);
      pen.beginPath();
      const wide = (box.right - box.left) / columns;
      for (let at = 0; at < columns; at += 1) {
        const size = blocks.reservedAt(moments[at]);
        const place = isShown(size) ? "lineTo" : "moveTo"; // beyond what is shown there is no line
        pen[place](box.left + at * wide, this.#y(size));
        pen[place](box.left + (at + 1) * wide, this.#y(size));
      }
      pen.stroke();
      pen.setLineDash([]);
    }
    if (blocks.capacity !== null && isShown(blocks.capacity)) {
      const y = this.#y(blocks.capacity);
      pen.strokeStyle = how.ink("bad");
      pen.fillStyle = how.ink("bad");
      pen.lineWidth = 1.2;
      pen.beginPath(); pen.moveTo(box.left, y); pen.lineTo(box.right, y); pen.stroke();
      pen.textAlign = "right"; pen.textBaseline = "bottom";
      pen.fillText(`${how.words.capacity} ${how.bytes(blocks.capacity)}`, box.right, y - 2);
    }
    pen.textBaseline = "bottom";
    const taken = [];
    for (const { event, text, kind } of how.marks) {
      if (event < first || event > last) continue;
      const x = this.#x(event);
      pen.strokeStyle = pen.fillStyle = how.ink(kind);
      pen.lineWidth = 1.2;
      pen.beginPath(); pen.moveTo(x, box.top); pen.lineTo(x, box.bottom); pen.stroke();
      const wide = pen.measureText(text).width;
      const from = Math.min(Math.max(x - wide / 2, box.left), box.right - wide);
      if (taken.some(([low, high]) => from < high && from + wide > low)) continue;
      taken.push([from - 6, from + wide + 6]);
      pen.textAlign = "left";
      pen.fillText(text, from, box.top - 3);
    }
  }

  /** The whole run, and which part of it is shown. */
  #strip(pen, height) {
    const { blocks, how, drawn: { box } } = this;
    const wide = Math.max(1, Math.round(box.right - box.left));
    if (this.outline?.length !== wide) this.outline = blocks.moments([0, blocks.events], wide);
    const most = Math.max(1, blocks.allocatedAt(blocks.peak));
    const bottom = height - 2;
    pen.fillStyle = how.ink("soft");
    pen.globalAlpha = 0.45;
    pen.beginPath(); pen.moveTo(box.left, bottom);
    this.outline.forEach((event, at) => pen.lineTo(box.left + at,
      bottom - (blocks.allocatedAt(event) / most) * (STRIP - 6)));
    pen.lineTo(box.right, bottom); pen.fill();
    const [low, high] = this.range.map((event) => box.left + (event / blocks.events) * (box.right - box.left));
    pen.globalAlpha = 0.2;
    pen.fillStyle = how.ink("accent");
    pen.fillRect(low, bottom - STRIP + 4, Math.max(2, high - low), STRIP - 4);
    pen.globalAlpha = 1;
    pen.strokeStyle = how.ink("accent");
    pen.lineWidth = 1.2;
    pen.strokeRect(low, bottom - STRIP + 4, Math.max(2, high - low), STRIP - 4);
  }

  #cursor(pen) {
    const { how, drawn: { box } } = this;
    const x = this.#x(this.at + 0.5);
    pen.strokeStyle = how.ink("ink");
    pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(x, box.top); pen.lineTo(x, box.bottom); pen.stroke();
  }

  /** Draws anew with the next frame, once however often it is asked for. */
  #soon() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.draw();
      if (this.pointer) this.#pointed(this.pointer); // what is under it has moved
    });
  }

  #tell() {
    const { blocks, canvas, how } = this;
    canvas.setAttribute("aria-valuemin", 0);
    canvas.setAttribute("aria-valuemax", blocks.events - 1);
    canvas.setAttribute("aria-valuenow", this.at);
    canvas.setAttribute("aria-valuetext", how.moved(this.at));
  }

  /** The block under a place of the picture, or the kind whose smaller blocks are; null where there is none. */
  blockAt(event, bytes) {
    const { blocks } = this;
    let [low, found] = [0, null];
    blocks.stacked(Int32Array.of(event), this.#perByte(), {
      large: (block) => {
        const high = low + blocks.sizes[block];
        if (found === null && bytes >= low && bytes < high) found = { block };
        low = high;
      },
      small: (kind, sizes) => {
        const high = low + sizes[0];
        if (found === null && bytes >= low && bytes < high) found = { kind, size: sizes[0] };
        low = high;
      },
    });
    const rest = blocks.allocatedAt(event) - low;
    return found ?? (rest > 0 && bytes >= low && bytes < low + rest ? { kind: blocks.rest, size: rest } : null);
  }

  #listen() {
    const { canvas } = this;
    let held = null; // { x, range, isStrip, isMoved }
    const placeOf = (event) => {
      const bounds = canvas.getBoundingClientRect();
      return { x: event.clientX - bounds.left, y: event.clientY - bounds.top };
    };
    canvas.addEventListener("wheel", (event) => {
      if (!this.drawn) return;
      event.preventDefault();
      this.pointer = placeOf(event);
      const { x, y } = this.pointer;
      const factor = 1.0015 ** (event.deltaY || event.deltaX); // with the shift key some browsers turn the wheel
      if (event.shiftKey) this.#raised(factor, y);
      else this.#zoomed(factor, x);
    }, { passive: false });
    const down = new Map(); // pointer -> where; two fingers show more or less
    const pinched = (id, place) => {
      const [, other] = [...down].find(([one]) => one !== id);
      const before = down.get(id);
      down.set(id, place);
      const apart = ({ x }) => Math.max(20, Math.abs(x - other.x));
      this.#zoomed(apart(before) / apart(place), (place.x + other.x) / 2);
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (!this.drawn || event.button !== 0) return;
      const place = placeOf(event);
      down.set(event.pointerId, place);
      canvas.setPointerCapture(event.pointerId);
      if (down.size > 1) {
        held = null;
        this.#left();
        return;
      }
      held = { ...place, range: this.range, levels: this.levels, isMoved: false,
        isStrip: place.y > this.drawn.box.bottom + BOTTOM - 6 };
      if (held.isStrip) this.#middle(place.x);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.drawn) return;
      const place = placeOf(event);
      if (down.size > 1) {
        if (down.has(event.pointerId)) pinched(event.pointerId, place);
      } else if (held?.isStrip) this.#middle(place.x);
      else if (held && (held.isMoved || Math.abs(place.x - held.x) > 3)) {
        held.isMoved = true;
        this.#left();
        const { box } = this.drawn;
        const shift = ((held.x - place.x) / (box.right - box.left)) * (held.range[1] - held.range[0]);
        if (this.levels) {
          const highest = Math.max(0, this.#most() - held.levels[1]);
          const raise = ((place.y - held.y) / (box.bottom - box.top)) * (held.levels[1] - held.levels[0]);
          this.levels = held.levels.map((level) => level + Math.max(Math.min(raise, highest), -held.levels[0]));
        }
        this.#shown([held.range[0] + shift, held.range[1] + shift]);
      } else {
        this.pointer = place;
        this.#pointed(place);
      }
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held && !held.isMoved && !held.isStrip) this.how.picked(this.#eventAt(placeOf(event).x));
    });
    canvas.addEventListener("pointercancel", () => this.#left()); // a finger scrolls the page
    canvas.addEventListener("lostpointercapture", (event) => { // in whatever way it ended
      down.delete(event.pointerId);
      held = null;
    });
    canvas.addEventListener("pointerleave", () => this.#left());
    canvas.addEventListener("dblclick", () => { this.whole(); this.#soon(); });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #zoomed(factor, x) {
    const { box } = this.drawn;
    const [first, last] = this.range;
    const event = first + ((x - box.left) / (box.right - box.left)) * (last - first);
    this.#shown([event - (event - first) * factor, event + (last - event) * factor]);
  }

  /** Shows fewer or more bytes around those at a height. */
  #raised(factor, y) {
    const { box, low, high } = this.drawn;
    const most = this.#most();
    const level = high - ((y - box.top) / (box.bottom - box.top)) * (high - low);
    const [from, to] = [Math.max(0, level - (level - low) * factor), Math.min(most, level + (high - level) * factor)];
    this.levels = from <= 0 && to >= most ? null : [from, Math.max(to, from + PAGE)];
    this.#soon();
  }

  /** As `look`, drawn with the next frame. */
  #shown([first, last]) {
    const wide = Math.min(this.blocks.events, Math.max(Math.min(CLOSEST, this.blocks.events), last - first));
    const low = Math.min(Math.max(0, first), this.blocks.events - wide);
    this.range = [low, low + wide];
    this.at = Math.min(Math.max(this.at, Math.ceil(low)), Math.ceil(low + wide) - 1);
    this.#soon();
  }

  #middle(x) {
    const { box } = this.drawn;
    const middle = ((x - box.left) / (box.right - box.left)) * this.blocks.events;
    const half = (this.range[1] - this.range[0]) / 2;
    this.#shown([middle - half, middle + half]);
  }

  /** Nothing is pointed at any more. */
  #left() {
    this.pointer = null;
    this.tip.hidden = true;
  }

  #eventAt(x) {
    const { box, columns, moments } = this.drawn;
    const at = Math.floor(((x - box.left) / (box.right - box.left)) * columns);
    return moments[Math.min(columns - 1, Math.max(0, at))];
  }

  #pointed({ x, y }) {
    const { box, low, high } = this.drawn;
    if (x < box.left || x > box.right || y < box.top || y > box.bottom) {
      this.tip.hidden = true;
      return;
    }
    const event = this.#eventAt(x);
    if (event !== this.at) {
      this.at = event;
      this.#tell();
      this.#soon();
    }
    const found = this.blockAt(event, low + ((box.bottom - y) / (box.bottom - box.top)) * (high - low));
    this.tip.hidden = found === null;
    if (found === null) return;
    this.tip.replaceChildren(...this.#said(found));
    const { width } = this.canvas.getBoundingClientRect();
    this.tip.classList.toggle("before", x > width / 2);
    this.tip.style.setProperty("left", x > width / 2 ? "auto" : `${x + 14}px`);
    this.tip.style.setProperty("right", x > width / 2 ? `${width - x + 14}px` : "auto");
    this.tip.style.setProperty("top", `${Math.max(0, y - 20)}px`);
  }

  /** What the tip says of a block. */
  #said({ block, kind, size }) {
    const { blocks, how } = this;
    const line = (name, text) => Object.assign(document.createElement(name), { textContent: text });
    if (block === undefined && kind === blocks.rest) return [line("b", `${how.bytes(size)} ${how.name(kind)}`)];
    if (block === undefined) return [line("b", how.words.smaller(how.name(kind), how.bytes(size)))];
    const [start, end] = [blocks.starts[block], blocks.ends[block]];
    const lived = how.words.lived(start < 0 ? null : how.count(start), end >= blocks.events ? null : how.count(end));
    const frames = blocks.stackOf(block);
    return [
      line("b", `${how.bytes(blocks.sizes[block])} ${how.name(blocks.names[blocks.kinds[block]])}`), line("span", lived),
      ...(frames.length ? frames.slice(0, FRAMES).map((text) => line("code", text)) : [line("span", how.words.none)]),
    ];
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return; // they are the browser's
    this.#left();
    const { range: [first, last] } = this;
    const step = Math.max(1, Math.round((last - first) / 200));
    const to = { ArrowLeft: this.at - step, ArrowRight: this.at + step, PageDown: this.at - 20 * step,
      PageUp: this.at + 20 * step, Home: 0, End: this.blocks.events - 1 }[event.key];
    if (to !== undefined) {
      this.at = Math.min(Math.max(to, 0), this.blocks.events - 1);
      const half = (last - first) / 2;
      if (this.at < first || this.at >= last) this.look([this.at - half, this.at + half]);
      else { this.#tell(); this.draw(); }
    } else if (event.shiftKey && (event.key === "ArrowUp" || event.key === "ArrowDown"))
      this.#raised(event.key === "ArrowUp" ? 0.7 : 1.4, this.#y(this.blocks.allocatedAt(this.at) / 2));
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "Enter" || event.key === " ") this.how.picked(this.at);
    else return;
    event.preventDefault();
  }
}
