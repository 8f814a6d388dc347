// Drawing one chart on its canvas: only what is seen, and nothing finer than half a pixel.

import { seconds, ticks } from "./window.js";

export const AXIS = 24;
const LABEL_CHARACTER = 6.6;
const LOWEST_LABEL = 12;
const MOST_MESSAGES = 600;

export function gutterOf(panel) {
  const longest = Math.max(...panel.rows.map((row) => Math.min(row.worker.length, 9)));
  return 14 + 7 * longest;
}

export function draw(canvas, panel, view, place) {
  const { width, height, gutter, first, selected, palette } = place;
  const context = canvas.getContext("2d");
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const sheet = {
    context, panel, view, palette, width, height, gutter,
    x: (time) => gutter + ((time - view.start) / view.span) * (width - gutter),
    y: (row) => AXIS + row * view.rowHeight - first,
    from: Math.max(0, Math.floor(first / view.rowHeight)),
    to: Math.min(panel.rows.length, Math.ceil((first + height - AXIS) / view.rowHeight)),
  };
  grid(sheet);
  context.save();
  context.beginPath();
  context.rect(gutter, AXIS, width - gutter, height - AXIS);
  context.clip();
  for (let row = sheet.from; row < sheet.to; row += 1) lane(sheet, row);
  messages(sheet, selected);
  if (selected) outline(sheet, selected);
  context.restore();
  labels(sheet);
}

function grid({ context, view, palette, width, height, gutter, x }) {
  context.font = palette.font;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const times = ticks(view.start, view.span, Math.max(2, (width - gutter) / 90));
  const step = times.length > 1 ? times[1] - times[0] : view.span;
  for (const time of times) {
    context.fillStyle = palette.line;
    context.fillRect(Math.round(x(time)), 0, 1, height);
    context.fillStyle = palette.muted;
    const label = seconds(time, step);
    const left = Math.round(x(time)) + 4;
    if (left + context.measureText(label).width < width) context.fillText(label, left, AXIS / 2);
  }
  context.fillStyle = palette.line;
  context.fillRect(0, AXIS - 1, width, 1);
}

function lane(sheet, row) {
  const { context, panel, view, palette, gutter, width, y, x } = sheet;
  const { bars, isLost, isLeaving, group } = panel.rows[row];
  const top = y(row);
  if (row && group !== panel.rows[row - 1].group) {
    context.fillStyle = palette.strong;
    context.fillRect(gutter, Math.round(top) - 0.5, width, 0.75);
  }
  if (isLost) return lost(sheet, top, isLeaving ? "leaving" : "✕ lost");
  const seen = bars.filter((bar) => bar.end >= view.start && bar.start <= view.start + view.span);
  const drawn = {};
  for (const bar of seen) {
    const left = x(bar.start);
    const right = Math.max(x(bar.end), left + 0.75);
    const layer = bar.act === "wait" || bar.act === "reduce" ? bar.act : "pass";
    if (right < (drawn[layer] ?? -1) + 0.5) continue;
    drawn[layer] = right;
    box(sheet, bar, left, right, top);
  }
}

function box({ context, view, palette }, bar, left, right, top) {
  const gap = view.rowHeight >= 8 ? 1 : 0;
  const full = view.rowHeight - 2 * gap;
  const wide = right - left;
  if (bar.act === "wait") {
    context.fillStyle = palette.muted;
    if (view.rowHeight >= 8) context.fillRect(left, top + view.rowHeight / 2 - 0.5, wide, 1);
    return;
  }
  const isBeside = bar.act === "reduce" && view.rowHeight >= 8;
  const height = isBeside ? Math.max(3, full * 0.3) : full;
  const upper = isBeside ? top + gap + full - height : top + gap;
  context.fillStyle = palette[bar.act].fill;
  context.fillRect(left, upper, Math.max(0.75, wide - (wide > 3 ? 0.75 : 0)), height);
  if (bar.isMended && view.rowHeight >= 8 && wide > 5) stripes(context, palette, left, upper, wide, height);
  if (wide >= 3 + LABEL_CHARACTER * bar.label.length && height >= LOWEST_LABEL - 2) {
    context.fillStyle = palette[bar.act].ink;
    context.textAlign = "center";
    context.fillText(bar.label, left + wide / 2, upper + height / 2 + 0.5, wide);
  }
}

function stripes(context, palette, left, top, width, height) {
  context.fillStyle = palette["mended-backward"].fill;
  context.fillRect(left, top, width - 0.75, 2);
  context.fillRect(left, top + height - 2, width - 0.75, 2);
}

function lost({ context, view, palette, gutter, width }, top, words) {
  context.strokeStyle = palette.strong;
  context.setLineDash([3, 4]);
  context.beginPath();
  context.moveTo(gutter, top + view.rowHeight / 2);
  context.lineTo(width, top + view.rowHeight / 2);
  context.stroke();
  context.setLineDash([]);
  if (view.rowHeight < LOWEST_LABEL) return;
  context.fillStyle = palette.card;
  context.fillRect(gutter + 6, top + 1, 46, view.rowHeight - 2);
  context.fillStyle = palette.muted;
  context.textAlign = "left";
  context.fillText(words, gutter + 10, top + view.rowHeight / 2);
}

function messages({ context, panel, view, palette, x, y, from, to }, selected) {
  const middle = (row) => y(row) + view.rowHeight / 2;
  const line = (message, isStrong) => {
    context.globalAlpha = isStrong ? 1 : 0.35;
    context.strokeStyle = isStrong ? palette.ink : palette.muted;
    context.lineWidth = isStrong ? 1.6 : 0.8;
    context.beginPath();
    context.moveTo(x(message.sent), middle(message.from));
    context.lineTo(x(message.taken), middle(message.to));
    context.stroke();
    context.globalAlpha = 1;
  };
  const seen = view.rowHeight >= 14 ? sent(panel, view, from, to) : [];
  if (seen.length <= MOST_MESSAGES) for (const message of seen) line(message, false);
  if (selected) for (const message of panel.messagesOf(selected.row, selected.bar)) line(message, true);
}

function sent(panel, view, from, to) {
  const result = [];
  for (let row = from; row < to && result.length <= MOST_MESSAGES; row += 1) {
    for (const bar of panel.rows[row].bars) {
      if (bar.end < view.start || bar.start > view.start + view.span) continue;
      const message = panel.messageOf(row, bar);
      if (message) result.push(message);
    }
  }
  return result;
}

function outline({ context, view, palette, x, y }, { row, bar }) {
  context.strokeStyle = palette.focus;
  context.lineWidth = 2.5;
  context.strokeRect(x(bar.start) - 1, y(row), Math.max(3, x(bar.end) - x(bar.start)) + 2, view.rowHeight);
}

function labels({ context, panel, view, palette, gutter, height, y, from, to }) {
  context.fillStyle = palette.card;
  context.fillRect(0, AXIS, gutter, height);
  const every = Math.max(1, Math.ceil((LOWEST_LABEL + 2) / view.rowHeight - 0.3));
  context.textAlign = "right";
  for (let row = from - (from % every); row < to; row += every) {
    const { worker, isLost } = panel.rows[row];
    context.fillStyle = isLost ? palette.muted : palette.ink;
    const middle = y(row) + Math.max(view.rowHeight, LOWEST_LABEL) / 2;
    context.fillText(worker.length > 9 ? `…${worker.slice(-8)}` : worker, gutter - 7, middle, gutter - 10);
  }
  context.fillStyle = palette.card;
  context.fillRect(0, 0, gutter, AXIS - 1);
}
