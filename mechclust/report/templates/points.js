// What points and texts look like: for the map of prompts and the slider over checkpoints.

// Six hues for circles and six for squares; within each shape they differ for people with any colour vision.
const HUES = ["#0072b2", "#e69f00", "#009e73", "#882255", "#56b4e9", "#7a6a00", "#cc79a7", "#332288", "#ddcc77", "#6f4e37", "#d55e00", "#88ccee"];
const CIRCLES = 6, REST = "#a9afb6", FADED = "#e3e7eb";
const VIRIDIS = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6dcd59", "#b4de2c", "#e2d21b"];

function fill(select, names, chosen = 0) {
  select.replaceChildren(...names.map((name, i) => Object.assign(el("option", "", `${name}`), { value: i })));
  select.value = chosen;
}
const comma = n => n.toLocaleString("en");
const count = (n, one, many = `${one}s`) => `${comma(n)} ${n === 1 ? one : many}`;
const percent = share => `${(100 * share).toFixed(share < .1 ? 1 : 0)}%`;

// A prompt as it is, with marks where whitespace or a control character would not be seen. The marks are CSS's, so that
// what is copied is the prompt.
const UNSEEN = /\r\n|[\n\r\u2028\u2029\u0085]|\t|^ +| +$| +(?=[\n\r])| {2,}|[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
function readable(text) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(UNSEEN)) {
    const [sign] = found, code = sign.charCodeAt(0);
    parts.push(text.slice(from, found.index));
    from = found.index + sign.length;
    if (code === 32) { parts.push(el("span", "space", sign)); continue; }
    const mark = el("span", "control", sign), line = /[\n\r\u2028\u2029\u0085]/.test(sign);
    mark.dataset.mark = line ? "↵" : sign === "\t" ? "→" : `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    parts.push(mark);
  }
  return [...parts, text.slice(from)];
}

// What the classes of a colouring look like.
function looks(classes, numbers) {
  if (numbers) {
    const low = numbers[0], range = numbers[numbers.length - 1] - low || 1;
    return numbers.map(x => ({ hue: `rgb(${between(VIRIDIS, (x - low) / range).join(", ")})`, square: false }));
  }
  const named = classes.length > HUES.length ? HUES.length - 1 : HUES.length;
  return classes.map((_, i) => i < named ? { hue: HUES[i], square: i >= CIRCLES } : { hue: REST, square: false, rest: true });
}

// A point, painted once and then copied: thousands of paths a frame would be slow.
const sprites = new Map();
function sprite(hue, form, radius) {
  const key = `${hue} ${form} ${radius}`;
  if (sprites.has(key)) return sprites.get(key);
  if (sprites.size > 2000) sprites.clear();
  const made = document.createElement("canvas"), side = made.width = made.height = 2 * Math.ceil(radius + 1.5), pen = made.getContext("2d"), middle = side / 2;
  pen.translate(middle, middle);
  pen.beginPath();
  if (form === "circle") pen.arc(0, 0, radius, 0, 7);
  else if (form === "square") pen.rect(-.88 * radius, -.88 * radius, 1.76 * radius, 1.76 * radius);
  else { pen.moveTo(0, -1.2 * radius); pen.lineTo(1.15 * radius, .85 * radius); pen.lineTo(-1.15 * radius, .85 * radius); pen.closePath(); }
  pen.fillStyle = hue;
  pen.fill();
  pen.lineWidth = Math.max(.6, radius / 5);
  pen.strokeStyle = hue === FADED ? "#fff" : "rgba(255, 255, 255, .85)";
  pen.stroke();
  sprites.set(key, made);
  return made;
}
