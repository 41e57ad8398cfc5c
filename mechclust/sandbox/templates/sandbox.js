// A sandbox page: what is shown and pointed at, and the controls.

// ---- state: the frame, and what is pointed at ----

const state = { frame: 0, held: null, pointed: null, autoscale: false, playing: false };
const panels = [];
const selected = () => state.pointed || state.held;

// Which points of a kind belong to what is selected.
const members = (of, chosen) => {
  if (!chosen) return [];
  if (chosen.of === of) return [chosen.index];
  if (of === "pair" && chosen.of === "sequence") return data.tokens[chosen.index].map((token, t) => token * data.length + t);
  if (of === "pair" && chosen.of === "position") return [...Array(data.digits).keys()].map(token => token * data.length + chosen.index);
  if (of === "pair" && chosen.of === "token" && chosen.index < data.digits) return [...Array(data.length).keys()].map(t => chosen.index * data.length + t);
  if (of === "token" && chosen.of === "sequence" && !data.digits) return [...new Set(data.tokens[chosen.index])].filter(token => token >= 0);
  if (of === "position" && chosen.of === "pair") return [chosen.index % data.length];
  if (of === "token" && chosen.of === "pair") return [Math.floor(chosen.index / data.length)];
  return [];
};

// ---- readout ----

const span = (text, className) => el("span", className, text), bold = text => el("b", "", text);
let hinted = null;
const hint = text => { if (text !== hinted) { hinted = text; readout(); } };
function tokenSpans(s) {
  const words = data.tokens[s].flatMap((token, t) => token < 0 ? [] : [el(inSupport(t) ? "u" : "span", "", data.tokenNames[token]), " "]);
  return el("span", "tokens", ...words);
}
function readout() {
  const chosen = selected(), out = $("readout"), frame = state.frame;
  if (hinted) return out.replaceChildren(span(hinted));
  if (!chosen) return out.replaceChildren(span("Point at anything to follow it through every panel; click to hold it."));
  const held = state.held === chosen ? [span("held (Esc lets go)")] : [];
  if (chosen.of === "sequence") {
    const s = chosen.index, n = data.answerColors.length, parts = [tokenSpans(s)];
    parts.push(span([data.notes[s], data.clusters && `cluster ${data.clusterNames[data.clusters[s]]}`].filter(Boolean).join(", ")));
    if (data.answers && arrays.probabilities) {
      const p = at("probabilities", frame).subarray(s * n, (s + 1) * n), best = arrays.predicted ? Math.round(at("predicted", frame)[s]) : p.indexOf(Math.max(...p)), right = best === data.answers[s], first = [...p.keys()].sort((a, b) => n > 6 ? p[b] - p[a] : a - b).slice(0, 6);
      parts.push(bold(`answer ${data.answerNames[data.answers[s]]}`), span(first.map(a => `p(${data.answerNames[a]}) ${p[a].toFixed(3)}`).join("  ")), span(right ? "✓ right" : `✗ says ${data.answerNames[best]}`, right ? "" : "wrong"));
    }
    if (arrays.xi) { const [x, y] = xy("xi", frame); parts.push(span(`ξ (${x[s].toFixed(2)}, ${y[s].toFixed(2)})`)); }
    if (arrays.attention && data.support.length) parts.push(span(`attention on the support ${data.support.reduce((sum, t) => sum + at("attention", frame)[s * data.length + t], 0).toFixed(2)}`));
    return out.replaceChildren(...parts, ...held);
  }
  const where = t => `position ${t}${known ? ` (${inSupport(t) ? "support" : "spurious"})` : ""}`;
  if (chosen.of === "pair") return out.replaceChildren(bold(`token ${Math.floor(chosen.index / data.length)} at ${where(chosen.index % data.length)}`), ...held);
  if (chosen.of === "position") return out.replaceChildren(bold(where(chosen.index)), ...held);
  if (chosen.of === "token") return out.replaceChildren(bold(`token ${data.tokenNames[chosen.index] ?? chosen.index}${data.digits && chosen.index >= data.digits ? " (in no sequence; never the answer)" : ""}`), ...held);
  return out.replaceChildren(bold(`neuron ${chosen.index}`), span(`argues for answer ${at("votes", frame)[chosen.index]}`), span(`bias ${pretty(at("biases", frame)[chosen.index])}`), ...held);
}

// ---- moving ----

const same = (a, b) => a === b || (a && b && a.of === b.of && a.index === b.index);
function refresh() { for (const panel of panels) panel.refresh(); readout(); }
function point(what) { if (!same(what, state.pointed)) { state.pointed = what && state.held && same(what, state.held) ? state.held : what; refresh(); } }
function hold(what) { if (what) { state.held = same(what, state.held) ? null : what; state.pointed = state.held; refresh(); } }
const nearest = epoch => data.epochs.reduce((best, e, i) => Math.abs(e - epoch) < Math.abs(data.epochs[best] - epoch) ? i : best, 0);
function go(frame) {
  state.frame = Math.max(0, Math.min(LAST, frame));
  $("slider").value = state.frame;
  $("epoch").replaceChildren(`${data.unit} `, bold(data.epochs[state.frame].toLocaleString("en")), ` of ${data.last.toLocaleString("en")} · ${data.kept}`);
  $("slider").setAttribute("aria-valuetext", `${data.unit} ${data.epochs[state.frame]}`);
  refresh();
}
let due = 0;
function tick(now) {
  if (!state.playing) return;
  if (now >= due) {
    due = Math.max(due + 1000 / $("speed").value, now - 50);
    if (state.frame >= LAST) return play(false);
    go(state.frame + 1);
  }
  requestAnimationFrame(tick);
}
function play(on) {
  if (on && !state.playing && state.frame >= LAST) go(0);
  const start = on && !state.playing;
  state.playing = on; $("play").textContent = on ? "❚❚" : "▶";
  if (start) { due = 0; requestAnimationFrame(tick); }
}
const KEYS = { ArrowLeft: e => go(state.frame - (e.shiftKey ? 10 : 1)), ArrowRight: e => go(state.frame + (e.shiftKey ? 10 : 1)), Home: () => go(0), End: () => go(LAST), " ": () => play(!state.playing), Escape: () => { state.held = state.pointed = null; refresh(); } };
addEventListener("keydown", event => {
  const { target } = event, typing = target.matches("select") || (event.key === " " && target.matches("button, summary, input[type=checkbox]"));
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key](event);
});

// ---- start ----

$("slider").max = LAST;
$("slider").oninput = event => go(+event.target.value);
$("play").onclick = () => play(!state.playing);
$("autoscale").onchange = event => { state.autoscale = event.target.checked; refresh(); };
for (const spike of data.curves.spikes) {
  const frame = nearest(spike.epoch), there = button("", "▼", () => go(frame));
  there.title = spikeText(spike);
  there.style.left = `calc(8px + ${frame / Math.max(1, LAST)} * (100% - 16px))`;
  $("marks").append(there);
}
for (const key of data.legend) {
  const swatches = key.colors.map((color, i) => {
    const swatch = el("i", key.shape);
    swatch.title = key.titles[i] ?? "";
    swatch.style.setProperty("--fill", color);
    swatch.style.setProperty("--edge", key.edge);
    return swatch;
  });
  $("legend").append(el("span", "", ...swatches, ` ${key.text}`));
}
const KINDS = { plane: Plane, heat: Heat, curves: Curves };
const groups = new Map();
function choice(text, panels) {
  const box = el("input"), label = el("label", "", box, ` ${text}`);
  box.type = "checkbox"; box.checked = true;
  box.onchange = () => {
    for (const panel of panels) { panel.section.hidden = !box.checked; panel.resize(); panel.refresh(); }
    for (const other of choices) other.box.checked = other.panels.some(panel => !panel.section.hidden);
  };
  choices.push({ box, panels });
  return label;
}
const choices = [];
for (const spec of data.panels) {
  const panel = new KINDS[spec.kind](spec);
  panels.push(panel);
  if (!groups.has(spec.group)) groups.set(spec.group, []);
  groups.get(spec.group).push(panel);
}
for (const [group, own] of groups) {
  if (group) { const whole = choice(`All of ${group}`, own); whole.className = "group"; $("choices").append(whole); }
  for (const panel of own) $("choices").append(choice(panel.spec.title, [panel]));
}
for (const panel of panels) panel.start();
addEventListener("click", event => { for (const open of document.querySelectorAll("details[open]")) if (!open.contains(event.target)) open.open = false; });
go(0);
window.sandbox = { state, go, panels };  // for tests and the console
