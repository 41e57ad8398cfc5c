// The data of a sandbox page, and what things look like.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const SOFT = "#7a8590", MARK = "#c2007b", LAST = data.epochs.length - 1;

// ---- arrays ----

const decode = ({ data, scale, size }) => {
  if (!scale) return new Uint8Array(octets(data));
  const whole = new Int16Array(octets(data)), scales = new Float32Array(octets(scale));
  return Float32Array.from(whole, (v, i) => v === -32768 ? NaN : v * scales[Math.floor(i / size)]);
};
const arrays = {};
for (const [name, packed] of Object.entries(data.arrays)) arrays[name] = { all: decode(packed), size: packed.size };
const lines = data.lines && { all: decode(data.lines), ends: data.lines.ends };
const at = (name, frame) => arrays[name].all.subarray(frame * arrays[name].size, (frame + 1) * arrays[name].size);
const xy = (name, frame) => { const both = at(name, frame), n = both.length / 2; return [both.subarray(0, n), both.subarray(n)]; };
const inSupport = t => data.support.includes(t);

// ---- what points look like ----

const known = data.support.length > 0;  // else all positions look alike
const shape = t => !known || inSupport(t) ? "circle" : "square";
const pairs = Array.from({ length: data.digits * data.length }, (_, i) => ({ token: Math.floor(i / data.length), t: i % data.length }));
const LOOKS = {
  token: () => ({ size: data.digits ? 9 : 7, color: data.digits ? data.answerColors : "#d5dae0", line: { color: INK, width: 0.7 } }),
  position: () => ({ size: 8, symbol: [...Array(data.length).keys()].map(shape), color: [...Array(data.length).keys()].map(t => !known || inSupport(t) ? INK : "#d5dae0"), line: { color: INK, width: 0.8 } }),
  pair: () => ({ size: 7, symbol: pairs.map(p => shape(p.t)), color: pairs.map(p => data.tokenColors[p.token]), line: { color: INK, width: 0.8 } }),
  sequence: () => ({ size: 8, color: data.clusters.map(c => data.clusterColors[c]), line: { color: "#fff", width: 0.7 } }),
  neuron: () => ({ size: 6, color: neuronColors(0), line: { color: "#fff", width: 0.5 } }),
};
const neuronColors = frame => Array.from(at("votes", frame), vote => data.answerColors[vote]);

const axis = { zeroline: true, zerolinecolor: "#cdd4db", gridcolor: "#eef1f4", tickfont: { size: 9, color: SOFT }, nticks: 5, ticklen: 0, type: "linear" };
const MARGIN = { l: 30, r: 6, t: 4, b: 17 };
const still = { type: "scatter", mode: "lines" };
const circle = r => ({ ...still, x: Array.from({ length: 73 }, (_, i) => r * Math.cos(i * Math.PI / 36)), y: Array.from({ length: 73 }, (_, i) => r * Math.sin(i * Math.PI / 36)), line: { color: "#d5dae0", width: 1 } });
const AWAY = "translate(-9999,-9999)";

const answerRgb = data.answerColors.map(rgb);
