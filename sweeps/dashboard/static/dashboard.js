"use strict";
// Live parts and the front. Without this script every page works: it is a picture of its moment.

// ---- live parts: what has `data-live` and an id is replaced by what the server renders now

const state = document.getElementById("live");
const say = (text) => { if (state && state.textContent !== text) state.textContent = text; };
let busy = false, again = false, notBefore = 0;

function ask() {
  if (busy) { again = true; return; }
  busy = true;
  setTimeout(refresh, Math.max(0, notBefore - performance.now()));
}

async function refresh() {
  const begun = performance.now();
  again = false;
  try {
    const answer = await fetch(location.href, {headers: {"X-Live": "1"}, signal: AbortSignal.timeout(20000)});
    if (answer.status === 401) { say("The token is needed again: reload the page."); return; }
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (fresh.querySelector("meta[http-equiv=refresh]")) { location.reload(); return; }
    document.querySelectorAll("[data-live][id]").forEach((part) => replace(part, fresh.getElementById(part.id)));
    say("Live: this page follows the sweep.");
    if (plot) plot.load();
  } catch (error) {
    say("The server does not answer; trying again.");
    setTimeout(ask, 5000);
  } finally {
    const took = performance.now() - begun;
    notBefore = performance.now() + Math.min(10000, Math.max(300, 3 * took));
    busy = false;
    if (again) ask();
  }
}

function replace(part, fresh) {
  if (fresh) part.hidden = fresh.hidden;
  const {version} = part.dataset;  // of figures, which scripts have drawn into it since
  if (!fresh || (version ? version === fresh.dataset.version : part.innerHTML === fresh.innerHTML)) return;
  const active = document.activeElement;
  const inside = part.contains(active) && active !== part;
  if (inside && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName) && active.type !== "checkbox") return;
  const selection = getSelection();
  if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return;  // somebody copies
  const checked = new Set([...part.querySelectorAll("input:checked")].map((box) => box.name + "=" + box.value));
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  const scrolls = [...part.querySelectorAll(".scroll, .log, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
  const place = inside ? [...part.querySelectorAll("a, button, input, [tabindex], summary")].indexOf(active) : -1;
  part.replaceChildren(...fresh.childNodes);
  if (version) { part.dataset.version = fresh.dataset.version; dispatchEvent(new Event("resize")); }  // draws them
  part.querySelectorAll("input[type=checkbox]").forEach((box) => { box.checked = checked.has(box.name + "=" + box.value); });
  part.querySelectorAll("details").forEach((one, at) => { one.open = open[at] || false; });
  part.querySelectorAll(".scroll, .log, pre").forEach((one, at) => { if (scrolls[at]) [one.scrollLeft, one.scrollTop] = scrolls[at]; });
  const focused = place < 0 ? null : part.querySelectorAll("a, button, input, [tabindex], summary")[place];
  if (focused) focused.focus({preventScroll: true});
}

function listen(address) {
  const source = new EventSource(address);
  let first = true;
  source.addEventListener("changed", (event) => {
    if (!first || event.data !== document.body.dataset.mark) ask();
    first = false;
  });
  source.addEventListener("open", () => say("Live: this page follows the sweep."));
  source.addEventListener("error", () => {
    say("The server does not answer; trying again.");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { ask(); listen(address); }, 10000);
  });
  addEventListener("pagehide", () => source.close());
}

// ---- the front: points that can be dragged, zoomed and opened; the picture below it is the fallback

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (value) => {
  const size = Math.abs(value);
  return value && (size >= 1e5 || size < 1e-3) ? Number(value.toExponential(2)).toExponential() : String(Number(value.toPrecision(5)));
};

class Axis {
  constructor(values, log, names) {
    this.names = names;  // texts at 0, 1, 2, and so on; none for numbers
    let low = names.length ? -0.5 : Infinity, high = names.length ? names.length - 0.5 : -Infinity;
    for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
    this.log = low > 0 && (log || high / low > 20);
    const room = names.length ? 0 : 0.05 * (this.plain(high) - this.plain(low)) || 0.5;
    this.full = [this.plain(low) - room, this.plain(high) + room];
    this.low = this.full[0]; this.high = this.full[1];
  }
  plain(value) { return this.log ? Math.log10(value) : value; }
  value(plain) { return this.log ? 10 ** plain : plain; }
  text(value) { return this.names.length ? this.names[Math.round(value)] : short(value); }
  zoom(factor, around) {
    this.low = around + (this.low - around) * factor;
    this.high = around + (this.high - around) * factor;
  }
  move(share) { const by = share * (this.high - this.low); this.low += by; this.high += by; }
  ticks(count, most) {
    if (this.names.length) {
      const inside = [...this.names.keys()].filter((at) => at >= this.low && at <= this.high);
      const stride = Math.ceil(inside.length / most);
      return inside.filter((_, nth) => nth % stride === 0);
    }
    if (this.log && this.high - this.low > 0.3) {
      const found = [], span = this.high - this.low;
      const factors = span < 0.7 ? [1, 1.5, 2, 3, 4, 6, 8] : span < 3 ? [1, 2, 5] : [1];
      for (let power = Math.floor(this.low); power <= this.high && found.length < 40; power++) {
        for (const factor of factors) found.push(power + Math.log10(factor));
      }
      const inside = found.filter((at) => at >= this.low && at <= this.high);
      const stride = Math.ceil(inside.length / (count + 2));
      return inside.filter((_, nth) => nth % stride === 0);
    }
    const raw = (this.high - this.low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
    const found = [];
    for (let at = Math.ceil(this.low / step) * step; at <= this.high && found.length < 20; at += step) found.push(at);
    return found;
  }
}

class Plot {
  constructor(box) {
    this.box = box;
    this.picture = document.getElementById("front-picture");
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.tip = document.createElement("div");
    this.tip.className = "tip"; this.tip.hidden = true;
    this.pixels = this.canvas.getContext("2d");
    this.waiting = false;
    this.load();
  }

  async load() {
    try {
      const answer = await fetch(this.box.dataset.points);
      if (!answer.ok) return;
      this.show(await answer.json());
    } catch (error) { /* the picture stays */ }
  }

  show(data) {
    if (!data.xs.length) return;
    const before = this.across;
    const kept = before && (before.low !== before.full[0] || this.up.low !== this.up.full[0]);
    this.data = data;
    const [across, up] = [data.xs, data.ys].map((values, at) => new Axis(values, data.log[at], data.names[at]));
    const same = (now, before) => now.log === before.log && now.names.join("\n") === before.names.join("\n");
    if (!kept || !same(across, this.across) || !same(up, this.up)) { this.across = across; this.up = up; }
    this.px = Float64Array.from(data.xs, (value) => this.across.plain(value));
    this.py = Float64Array.from(data.ys, (value) => this.up.plain(value));
    this.onFront = new Set(data.front);
    this.canvas.setAttribute("aria-label", `${data.y} against ${data.x}: ${data.xs.length} trials, ` +
      `${data.front.length} on the front, which the table below lists. Arrows move, plus and minus zoom, 0 shows all.`);
    if (!this.canvas.isConnected) {
      this.picture.hidden = true;
      this.box.append(this.canvas, this.tip);
      this.attach();
    }
    this.draw();
  }

  attach() {
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    const canvas = this.canvas;
    let from = null, moved = false;
    canvas.addEventListener("pointerdown", (event) => {
      from = [event.offsetX, event.offsetY]; moved = false;
      canvas.setPointerCapture(event.pointerId); canvas.classList.add("drags");
    });
    canvas.addEventListener("pointermove", (event) => {
      if (from) {
        const [dx, dy] = [event.offsetX - from[0], event.offsetY - from[1]];
        if (!moved && Math.hypot(dx, dy) < 4) return;
        moved = true;
        this.across.move(-dx / this.wide); this.up.move(dy / this.tall);
        from = [event.offsetX, event.offsetY];
        this.tip.hidden = true;
        this.draw();
      } else this.point(event.offsetX, event.offsetY);
    });
    const end = () => { from = null; canvas.classList.remove("drags"); };
    canvas.addEventListener("pointerup", (event) => {
      const at = moved ? -1 : this.nearest(event.offsetX, event.offsetY);
      end();
      if (at >= 0) location.href = this.box.dataset.trial + this.data.trials[at];
    });
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey) return;  // the page scrolls on
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, event.offsetX, event.offsetY);
    }, {passive: false});
    canvas.addEventListener("dblclick", () => this.reset());
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const moves = {ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1]}[event.key];
    if (moves) { this.across.move(moves[0]); this.up.move(moves[1]); this.draw(); }
    else if (event.key === "+" || event.key === "=") this.zoom(0.8, this.left + this.wide / 2, this.top + this.tall / 2);
    else if (event.key === "-") this.zoom(1.25, this.left + this.wide / 2, this.top + this.tall / 2);
    else if (event.key === "0") this.reset();
    else return;
    event.preventDefault();
  }

  reset() { for (const axis of [this.across, this.up]) [axis.low, axis.high] = axis.full; this.draw(); }

  zoom(factor, x, y) {
    this.across.zoom(factor, this.across.low + (x - this.left) / this.wide * (this.across.high - this.across.low));
    this.up.zoom(factor, this.up.high - (y - this.top) / this.tall * (this.up.high - this.up.low));
    this.draw();
  }

  x(plain) { return this.left + (plain - this.across.low) / (this.across.high - this.across.low) * this.wide; }
  y(plain) { return this.top + (this.up.high - plain) / (this.up.high - this.up.low) * this.tall; }

  nearest(x, y) {
    let found = -1, least = 144;
    for (let at = 0; at < this.px.length; at++) {
      const dx = this.x(this.px[at]) - x, dy = this.y(this.py[at]) - y, far = dx * dx + dy * dy;
      if (far < least) { least = far; found = at; }
    }
    return found;
  }

  point(x, y) {
    const at = this.nearest(x, y);
    this.tip.hidden = at < 0;
    if (at < 0) return;
    const {data} = this;
    this.tip.textContent = `trial ${data.trials[at]}: ${this.up.text(data.ys[at])} at ${this.across.text(data.xs[at])}`;
    const sheet = this.tip;  // placed by properties of the element: no style stands in the page
    sheet.style.left = Math.min(x + 12, this.left + this.wide - sheet.offsetWidth) + "px";
    sheet.style.top = Math.max(0, y - 30) + "px";
  }

  draw() { if (!this.waiting) { this.waiting = true; requestAnimationFrame(() => { this.waiting = false; this.paint(); }); } }

  paint() {
    const {canvas, pixels, data} = this, ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    }
    pixels.setTransform(ratio, 0, 0, ratio, 0, 0);
    pixels.clearRect(0, 0, width, height);
    const [ink, soft, line, accent] = ["--ink", "--soft", "--line", "--accent"].map(colour);
    pixels.font = "12px system-ui, sans-serif"; pixels.lineWidth = 1;
    const widest = Math.max(50, ...this.up.names.map((name) => pixels.measureText(name).width));
    this.left = 8 + Math.min(widest, width / 3); this.top = 24;
    this.wide = width - this.left - 8; this.tall = height - this.top - 42;
    const cut = (text, room) => {
      if (pixels.measureText(text).width <= room) return text;
      while (text && pixels.measureText(text + "…").width > room) text = text.slice(0, -1);
      return text + "…";
    };
    pixels.fillStyle = soft; pixels.strokeStyle = line; pixels.textAlign = "right";
    for (const tick of this.up.ticks(5, this.tall / 16)) {
      const y = this.y(tick);
      pixels.beginPath(); pixels.moveTo(this.left, y); pixels.lineTo(this.left + this.wide, y); pixels.stroke();
      pixels.fillText(cut(this.up.text(this.up.value(tick)), this.left - 8), this.left - 6, y + 4);
    }
    pixels.textAlign = "center";
    const ticks = this.across.ticks(Math.max(2, this.wide / 70), this.wide / 40);
    const room = this.across.names.length ? this.wide / ticks.length - 6 : this.wide;
    for (const tick of ticks) {
      const text = cut(this.across.text(this.across.value(tick)), room), half = pixels.measureText(text).width / 2;
      pixels.fillText(text, Math.min(this.x(tick), width - half), this.top + this.tall + 16);
    }
    pixels.fillStyle = ink; pixels.textAlign = "right";
    pixels.fillText(data.x, this.left + this.wide, height - 8);
    pixels.textAlign = "left";
    pixels.fillText(data.y, 2, 13);
    pixels.save();
    pixels.beginPath(); pixels.rect(this.left, this.top, this.wide, this.tall); pixels.clip();
    this.paintPoints(soft, accent);
    pixels.restore();
  }

  paintPoints(soft, accent) {
    const {pixels, px, py} = this, size = px.length > 2000 ? 2.4 : 4;
    pixels.fillStyle = soft; pixels.globalAlpha = px.length > 2000 ? 0.5 : 0.75;
    for (let at = 0; at < px.length; at++) {
      const x = this.x(px[at]), y = this.y(py[at]);
      if (x > 0 && y > 0) pixels.fillRect(x - size / 2, y - size / 2, size, size);
    }
    pixels.globalAlpha = 1; pixels.fillStyle = pixels.strokeStyle = accent; pixels.lineWidth = 1.5;
    pixels.beginPath();
    const fromBest = this.data.goals[0] === "maximize" ? [...this.data.front].reverse() : this.data.front;
    fromBest.forEach((at, nth) => {
      const x = this.x(px[at]), y = this.y(py[at]);
      if (nth) { pixels.lineTo(x, this.y(py[fromBest[nth - 1]])); pixels.lineTo(x, y); } else pixels.moveTo(x, y);
    });
    pixels.stroke();
    for (const at of this.data.front) {
      pixels.beginPath(); pixels.arc(this.x(px[at]), this.y(py[at]), 4.5, 0, 7); pixels.fill();
    }
  }
}

const box = document.getElementById("front-plot");
const plot = box ? new Plot(box) : null;
if (document.body.dataset.events) listen(document.body.dataset.events);
if (document.body.dataset.every) setInterval(() => { if (!document.hidden) ask(); }, 1000 * Number(document.body.dataset.every));
