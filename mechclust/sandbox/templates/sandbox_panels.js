// ---- panels: Plotly draws them once; then what it drew is moved, which is many times faster than drawing again ----

class Panel {
  constructor(spec) {
    this.spec = spec;
    this.key = el("span", "key");
    this.plot = el("div", "plot");
    const title = el("h2", "", spec.title, this.key), grow = button("grow", "⤢", () => this.section.classList.toggle("large"));
    title.title = spec.explanation;
    grow.title = "Enlarge this panel";
    this.section = el("section", spec.kind, title, grow, this.plot);
    this.section.id = `panel-${spec.name}`;
    $("panels").append(this.section);
    this.margin = MARGIN; this.inView = true; this.drawn = false; this.shown = -1; this.marked = null;
  }
  start() {
    this.create();
    new IntersectionObserver(entries => { this.inView = entries.at(-1).isIntersecting; this.refresh(); }, { root: $("panels"), rootMargin: "40px" }).observe(this.section);
    new ResizeObserver(() => this.resize()).observe(this.plot);
    this.plot.onmousemove = event => this.over(this.find(event));
    this.plot.onmouseleave = () => this.over(null);
    this.plot.onclick = event => this.clicked(this.find(event));
  }
  draw(traces, layout) {
    const { width, height } = this.size();
    this.drawn = true; this.width = width; this.height = height;
    Plotly.newPlot(this.plot, traces, { margin: this.margin, width, height, showlegend: false, font: { color: INK }, paper_bgcolor: "#0000", plot_bgcolor: "#0000", ...layout }, { staticPlot: true });
  }
  // A picture of one pixel a cell under the axes. The browser scales it.
  canvas(width, height) {
    this.picture = el("canvas");
    Object.assign(this.picture, { width, height });
    this.pixels = new ImageData(width, height);
    this.plot.prepend(this.picture);
  }
  size() { return { width: Math.max(90, this.plot.clientWidth), height: Math.max(60, this.plot.clientHeight) }; }
  inner() { const { l, r, t, b } = this.margin; return { width: this.width - l - r, height: this.height - t - b }; }
  resize() {
    const { width, height } = this.size();
    if (!this.drawn || !this.plot.clientWidth || (width === this.width && height === this.height)) return;
    this.width = width; this.height = height;
    this.fit();
  }
  fit() { Plotly.relayout(this.plot, { width: this.width, height: this.height }); }
  refresh() {
    if (!this.inView || this.section.hidden || !this.drawn) return;
    const chosen = selected(), moved = this.shown !== state.frame || this.auto !== state.autoscale;
    if (moved || this.marked !== chosen) this.update(moved, chosen);
    this.shown = state.frame; this.marked = chosen; this.auto = state.autoscale;
  }
  again() { this.shown = -1; this.refresh(); }
  place(event) {
    const box = this.plot.getBoundingClientRect();
    return [event.clientX - box.left - this.margin.l, event.clientY - box.top - this.margin.t];
  }
  over(found) { this.plot.style.cursor = found ? "pointer" : ""; point(found); }
  clicked(found) { if (found) hold(found); }
  find() { return null; }
}

const BESIDE = [[0, -1], [1, 0], [-1, 0], [0, 1], [1, -1], [-1, -1], [1, 1], [-1, 1]];
class Plane extends Panel {
  create() {
    const { spec } = this, traces = [], { frame } = state;
    this.share = data.variance[spec.name];
    if (this.share) this.key.title = "Share of this frame's variance that lies in the plane drawn";
    const background = spec.background === "map" ? data.map : null;
    if (background) this.canvas(background.width, background.height);
    if (spec.background === "circle") traces.push(circle(Math.SQRT2));
    if (spec.background === "triangle") traces.push({ ...still, mode: "lines+text", x: [0, 1, 0.5, 0], y: [0, 0, Math.sqrt(3) / 2, 0], text: [`${data.corners[0]}\u2003`, `\u2003${data.corners[1]}`, data.corners[2], ""], textposition: ["middle left", "middle right", "top center"], textfont: { size: 12 }, cliponaxis: false, line: { color: "#aab3bc", width: 1 } });
    this.moving = { lines: [], cloud: null, arrow: null };
    const add = trace => traces.push(trace) - 1, dots = n => ({ x: Array(n).fill(0), y: Array(n).fill(0) }), stroke = (color, width) => add({ ...still, ...dots(2), line: { color, width, simplify: false } });
    if (spec.background === "cloud") this.moving.cloud = add({ type: "scatter", mode: "markers", ...dots(data.cloudAnswers.length), marker: { size: 2.5, opacity: 0.5, color: data.cloudAnswers.map(a => data.answerColors[a]), line: { width: 0 } } });
    if (spec.background === "lines") this.moving.lines = data.answerColors.map(color => stroke(color, 1.2));
    if (spec.arrow) this.moving.arrow = stroke(MARK, 2);
    const n = xy(spec.points, frame)[0].length;
    this.moving.main = add({ type: "scatter", mode: "markers", ...dots(n), marker: LOOKS[spec.of]() });
    const slots = spec.of === "pair" ? Math.max(data.digits, data.length) : spec.of === "token" ? data.length : 1;
    this.moving.ring = add({ type: "scatter", mode: "markers", ...dots(slots), marker: { size: spec.of === "pair" ? 11 : 14, symbol: "circle-open", color: MARK, line: { width: 2.4 } } });
    this.width = this.size().width; this.height = this.size().height;
    const hide = spec.background === "triangle" ? { visible: false } : {};
    this.limits(frame);
    this.draw(traces, { xaxis: { ...axis, ...hide, range: this.range[0] }, yaxis: { ...axis, ...hide, range: this.range[1] } });
    this.named = this.labels(n).map(text => {
      const node = el("span", "label", text);
      this.plot.append(node);
      return { node, width: node.offsetWidth, height: node.offsetHeight };
    });
    this.catch();
  }
  // The elements that Plotly made, trace by trace; they are new after every call that draws.
  catch() {
    this.groups = [...this.plot.querySelectorAll(".scatterlayer > .trace")];
    const { main, cloud, ring, lines, arrow } = this.moving, points = i => i === null ? [] : [...this.groups[i].querySelectorAll("path.point")];
    this.nodes = { main: points(main), cloud: points(cloud), ring: points(ring), lines: lines.map(i => this.groups[i].querySelector(".js-line")), arrow: arrow === null ? null : this.groups[arrow].querySelector(".js-line") };
  }
  fit() {
    this.limits(state.frame);
    Plotly.relayout(this.plot, { width: this.width, height: this.height, "xaxis.range": this.range[0], "yaxis.range": this.range[1] });
    this.catch();
    this.again();
  }
  labels(n) {
    if (!["position", "token"].includes(this.spec.of)) return [];
    return this.spec.labels.length ? this.spec.labels : [...Array(n).keys()].map(String);
  }
  // Each label at the first place beside its point where it covers no other label and no other point; else it is hidden.
  name() {
    const { l, t } = this.margin, { width, height } = this.inner(), boxes = [], radius = 5;
    this.named.forEach(({ node, width: w, height: h }, i) => {
      const [x, y] = this.spots[i], seen = x > 0 && x < width && y > 0 && y < height;
      const place = seen && BESIDE.map(([across, down]) => [x + across * (w / 2 + radius) - w / 2, y + down * (h / 2 + radius) - h / 2]).find(([a, b]) =>
        a >= -l && a + w <= width + 4 && b >= -t && b + h <= height && boxes.every(([c, d, e, f]) => a >= e || a + w <= c || b >= f || b + h <= d)
        && this.spots.every(([px, py], j) => j === i || px < a - 2 || px > a + w + 2 || py < b - 2 || py > b + h + 2));
      node.style.visibility = place ? "visible" : "hidden";
      if (!place) return;
      boxes.push([place[0], place[1], place[0] + w, place[1] + h]);
      node.style.transform = `translate(${(l + place[0]).toFixed(1)}px,${(t + place[1]).toFixed(1)}px)`;
    });
  }
  limits(frame) {
    const { width, height } = this.inner(), { background, points } = this.spec, ratio = width / height;
    if (background === "triangle") { const up = Math.max(0.56, 0.62 / ratio); this.range = [[0.5 - up * ratio, 0.5 + up * ratio], [0.45 - up, 0.45 + up]]; return; }
    let half = background === "map" ? data.map.reach : data.reach[points];
    if (state.autoscale) half = roundUp(1.1 * at(points, frame).reduce((most, v) => Math.max(most, Math.abs(v)), 0));
    if (background === "circle") half = Math.max(half, 1.55);
    if (background === "map") half = Math.min(half, data.map.reach);
    // Equal units on both axes, so that angles and circles look as they are.
    this.range = ratio >= 1 ? [[-half * ratio, half * ratio], [-half, half]] : [[-half, half], [-half / ratio, half / ratio]];
  }
  pixel(x, y) {
    const { width, height } = this.inner(), [[x0, x1], [y0, y1]] = this.range;
    return [(x - x0) / (x1 - x0) * width, (y1 - y) / (y1 - y0) * height];
  }
  update(moved, chosen) {
    const { spec, nodes } = this, { frame } = state;
    if (moved && (state.autoscale || this.auto !== state.autoscale)) {
      const before = String(this.range);
      this.limits(frame);
      if (String(this.range) !== before) { Plotly.relayout(this.plot, { "xaxis.range": this.range[0], "yaxis.range": this.range[1] }); this.catch(); }
    }
    const [x, y] = xy(spec.points, frame);
    if (moved) {
      this.spots = this.shift(nodes.main, x, y);
      if (this.named.length) this.name();
      if (this.share) this.key.textContent = this.share[frame] === null ? "" : `${Math.round(100 * this.share[frame])}% var.`;
      if (nodes.cloud.length) this.shift(nodes.cloud, ...xy("cloud", frame));
      if (nodes.arrow) nodes.arrow.setAttribute("d", this.arrow(frame));
      nodes.lines.forEach((node, answer) => node.setAttribute("d", this.path(...levelLines(frame, answer))));
      if (spec.of === "neuron") { const colors = neuronColors(frame); nodes.main.forEach((node, i) => { node.style.fill = colors[i]; }); }
      if (this.picture) this.paint(frame);
    }
    const marked = members(spec.of, chosen);
    nodes.ring.forEach((node, i) => node.setAttribute("transform", i < marked.length ? `translate(${this.spots[marked[i]]})` : AWAY));
  }
  shift(nodes, x, y) {
    return nodes.map((node, i) => {
      const spot = this.pixel(x[i], y[i]);
      node.setAttribute("transform", Number.isFinite(spot[0] + spot[1]) ? `translate(${spot[0].toFixed(2)},${spot[1].toFixed(2)})` : AWAY);
      return spot;
    });
  }
  path(x, y) {
    let d = "", pen = "M";
    for (let i = 0; i < x.length; i++) {
      if (Number.isNaN(x[i])) { pen = "M"; continue; }
      const [a, b] = this.pixel(x[i], y[i]);
      d += `${pen}${a.toFixed(1)},${b.toFixed(1)}`; pen = "L";
    }
    return d;
  }
  arrow(frame) {
    const [[qx], [qy]] = xy("query", frame), [a, b] = this.pixel(0, 0), [c, d] = this.pixel(qx, qy), angle = Math.atan2(d - b, c - a);
    const barb = turn => `${c - 8 * Math.cos(angle + turn)},${d - 8 * Math.sin(angle + turn)}`;
    return Number.isFinite(angle) ? `M${a},${b}L${c},${d}M${barb(0.45)}L${c},${d}L${barb(-0.45)}` : "";
  }
  paint(frame) {
    const { width, height, reach, shades } = data.map, cells = at("class_map", frame), out = this.pixels.data;
    for (let row = 0; row < height; row++) for (let column = 0; column < width; column++) {
      const cell = cells[row * width + column], color = answerRgb[Math.floor(cell / shades)], share = 0.1 + 0.42 * (cell % shades) / (shades - 1), o = 4 * ((height - 1 - row) * width + column);
      for (let k = 0; k < 3; k++) out[o + k] = 255 + (color[k] - 255) * share;
      out[o + 3] = 255;
    }
    this.picture.getContext("2d").putImageData(this.pixels, 0, 0);
    const [left, top] = this.pixel(-reach * width / height, reach), [right, bottom] = this.pixel(reach * width / height, -reach), inner = this.inner(), { l, t } = this.margin;
    Object.assign(this.picture.style, { left: `${l + left}px`, top: `${t + top}px`, width: `${right - left}px`, height: `${bottom - top}px`,
      clipPath: `inset(${Math.max(0, -top)}px ${Math.max(0, right - inner.width)}px ${Math.max(0, bottom - inner.height)}px ${Math.max(0, -left)}px)` });
  }
  find(event) {
    const [px, py] = this.place(event);
    let best = -1, least = 14 ** 2;
    (this.spots || []).forEach(([x, y], i) => { const d = (x - px) ** 2 + (y - py) ** 2; if (d < least) { least = d; best = i; } });
    return best < 0 ? null : { of: this.spec.of, index: best };
  }
}
const levelLines = (frame, answer) => {
  const i = frame * data.answerColors.length + answer, n = lines.all.length / 2, from = i ? lines.ends[i - 1] : 0, to = lines.ends[i];
  return [lines.all.subarray(from, to), lines.all.subarray(n + from, n + to)];
};
// In few steps, so that axes that follow the points stand still most of the time.
const roundUp = v => { const power = 10 ** Math.floor(Math.log10(v || 1)); return power * [1, 1.5, 2, 3, 4, 6, 8, 10].find(step => step * power >= (v || 1)); };

class Heat extends Panel {
  create() {
    const { columns, points } = this.spec, rows = data.tokens.length;
    this.wide = at(points, 0).length / rows;
    const places = [...Array(this.wide).keys()], edges = columns.length ? [] : places.slice(1).filter(t => inSupport(t) !== inSupport(t - 1));
    const every = Math.ceil(this.wide / 16), ticks = places.filter(t => t % every === 0), short = text => text.length > 9 ? `${text.slice(0, 8)}…` : text;
    this.margin = { ...MARGIN, l: 18 };
    this.canvas(this.wide, rows);
    this.picture.className = "cells";
    this.edges = edges.map(t => ({ type: "line", x0: t - 0.5, x1: t - 0.5, y0: -0.5, y1: rows - 0.5, line: { color: INK, width: 2 } }));
    const bands = data.clusters.map((c, s) => ({ type: "rect", xref: "paper", x0: -0.028, x1: -0.008, y0: s - 0.5, y1: s + 0.5, fillcolor: data.clusterColors[c], line: { width: 0 } }));
    this.edges.push(...bands);
    this.mark = el("div", "mark");
    this.mark.hidden = true;
    this.draw([{ ...still, x: [0, 0], y: [0, 0], opacity: 0 }], { shapes: this.edges, xaxis: { ...axis, zeroline: false, showgrid: false, range: [-0.5, this.wide - 0.5], tickangle: 0, tickvals: ticks, ticktext: ticks.map(t => columns.length ? plain(short(columns[t])) : inSupport(t) ? `<b>${t}</b>` : t) }, yaxis: { ...axis, zeroline: false, showgrid: false, showticklabels: false, range: [rows - 0.5, -0.5] } });
    this.plot.append(this.mark);
  }
  update(moved, chosen) {
    if (moved) {
      const { points } = this.spec, weights = at(points, state.frame), top = state.autoscale ? weights.reduce((a, b) => Math.max(a, b), 0) : data.reach[points], out = this.pixels.data;
      weights.forEach((w, i) => { const share = Math.min(1, w / top); SHADE.forEach((c, k) => { out[4 * i + k] = 255 + (c - 255) * share; }); out[4 * i + 3] = 255; });
      this.picture.getContext("2d").putImageData(this.pixels, 0, 0);
      const { width, height } = this.inner(), { l, t } = this.margin;
      Object.assign(this.picture.style, { left: `${l}px`, top: `${t}px`, width: `${width}px`, height: `${height}px` });
    }
    if (this.marked === chosen && !moved) return;
    const { width, height } = this.inner(), { l, t } = this.margin, rows = data.tokens.length;
    const row = chosen && chosen.of === "sequence" ? chosen.index : null, column = chosen && ["position", "pair"].includes(chosen.of) && !this.spec.columns.length ? chosen.index % data.length : null;
    this.mark.hidden = row === null && column === null;
    if (row !== null) Object.assign(this.mark.style, { left: `${l}px`, top: `${t + row / rows * height}px`, width: `${width}px`, height: `${height / rows}px` });
    if (column !== null) Object.assign(this.mark.style, { left: `${l + column / this.wide * width}px`, top: `${t}px`, width: `${width / this.wide}px`, height: `${height}px` });
  }
  fit() { super.fit(); this.again(); }
  find(event) {
    const [, y] = this.place(event), row = Math.floor(y / this.inner().height * data.tokens.length);
    return row >= 0 && row < data.tokens.length ? { of: "sequence", index: row } : null;
  }
}
const SHADE = rgb("#14213d"), SPIKE = "#b3382c";

class Curves extends Panel {
  fit() { super.fit(); this.again(); }
  create() {
    const { spec } = this, series = data.curves.panels[spec.name], x = data.curves.epochs;
    this.series = series;
    if (!series.length) { this.plot.classList.add("none"); this.plot.textContent = "not measured"; return; }
    this.margin = { ...MARGIN, l: 36, r: 10 };
    const traces = series.map(s => ({ ...still, x, y: spec.log ? s.values.map(v => v > 0 ? v : null) : s.values, line: { color: s.color, width: 1.2 } }));
    const marks = ["loss", "spikes"].includes(spec.name), where = spikes => ({ type: "scatter", mode: "markers", x: spikes.map(s => s.epoch), y: spikes.map(s => traces[0].y[x.indexOf(s.epoch)]), cliponaxis: false });
    this.spikes = marks ? [...data.curves.spikes, ...data.curves.small] : [];
    if (marks && data.curves.spikes.length) traces.push({ ...where(data.curves.spikes), marker: { symbol: "triangle-down", size: 8, color: SPIKE } });
    if (marks && data.curves.small.length) traces.push({ ...where(data.curves.small), marker: { symbol: "triangle-down-open", size: 7, color: SPIKE } });
    const range = this.span(traces);
    this.draw(traces, { xaxis: { ...axis, zeroline: false, range: [data.epochs[0], data.last] }, yaxis: { ...axis, zeroline: false, range, type: spec.log ? "log" : "linear", exponentformat: "power", dtick: spec.log && range[1] - range[0] > 1.2 ? Math.max(1, Math.ceil((range[1] - range[0]) / 4)) : undefined } });
    // What lies ahead is veiled, and a line stands at now: both are moved without drawing anything again.
    this.veil = el("div", "veil");
    this.plot.append(this.veil);
    if (series.length > 2) { this.section.append(this.key); this.key.classList.add("inside"); }
  }
  span(traces) {
    const all = traces.flatMap(t => t.y).filter(v => Number.isFinite(v));
    let low = all.reduce((a, b) => Math.min(a, b), Infinity), high = all.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!all.length) [low, high] = [0.1, 1];
    if (this.spec.log) [low, high] = [Math.log10(low), Math.log10(high)];
    else if (low >= 0 && high <= 1) [low, high] = [this.spec.name === "accuracy" ? Math.min(low, 0.4) : 0, 1];
    const pad = 0.05 * (high - low || 1);
    return [low - pad, high + pad];
  }
  update(moved) {
    if (!moved) return;
    const { width, height } = this.inner(), { l, t } = this.margin, share = (data.epochs[state.frame] - data.epochs[0]) / (data.last - data.epochs[0]);
    Object.assign(this.veil.style, { left: `${(l + share * width).toFixed(1)}px`, top: `${t}px`, width: `${(width - share * width).toFixed(1)}px`, height: `${height}px` });
    const place = data.curves.epochs.findLastIndex(epoch => epoch <= data.epochs[state.frame]);
    this.key.replaceChildren(...this.series.map(({ name, color, values }) =>
      el("span", "", mark({ hue: color }), ` ${name} ${Number.isFinite(values[place]) ? pretty(values[place]) : "–"} `)));
  }
  find(event) {
    const share = this.place(event)[0] / this.inner().width;
    return this.drawn && share > -0.02 && share < 1.02 ? data.epochs[0] + share * (data.last - data.epochs[0]) : null;
  }
  over(epoch) {
    const reach = 6 / this.inner().width * (data.last - data.epochs[0]), spike = epoch !== null && this.drawn && this.spikes.find(s => Math.abs(s.epoch - epoch) < reach);
    hint(spike ? spikeText(spike) : null);
  }
  clicked(epoch) {
    if (epoch === null) return;
    const reach = 6 / this.inner().width * (data.last - data.epochs[0]), spike = this.spikes.find(s => Math.abs(s.epoch - epoch) < reach);
    go(nearest(spike ? spike.epoch : epoch));
  }
}
const spikeText = spike => `${data.curves.small.includes(spike) ? "Rise of the loss below the floor of spikes, not counted," : "Loss spike"} at ${data.unit} ${spike.epoch}: ${spike.text}`;
const plain = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");  // Plotly reads some HTML
const pretty = v => Math.abs(v) >= 1e-3 && Math.abs(v) < 1e4 || v === 0 ? String(+v.toPrecision(3)) : v.toExponential(1);
