// Which part of the step is seen, and how high rows are: shared by all charts of a page.

const MOST_ZOOM = 5e5;
export const ROW_HEIGHTS = [3, 4, 6, 8, 11, 14, 18, 24, 32];

export class Window {
  constructor(endSeconds) {
    this.endSeconds = endSeconds || 1;
    this.rowHeight = 18;
    this.listeners = [];
    this.fit(false);
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  fit(tells = true) {
    this.start = 0;
    this.span = this.endSeconds * 1.01;
    if (tells) this.tell();
  }

  zoom(factor, around = this.start + this.span / 2) {
    const span = Math.min(this.endSeconds * 1.01, Math.max(this.endSeconds / MOST_ZOOM, this.span / factor));
    this.start = around - (around - this.start) * (span / this.span);
    this.span = span;
    this.settle();
  }

  pan(share) {
    this.start += share * this.span;
    this.settle();
  }

  reveal(from, to) {
    if (from < this.start) this.start = from - this.span * 0.05;
    else if (to > this.start + this.span) this.start = to - this.span * 0.95;
    else return;
    this.settle();
  }

  rows(direction) {
    const index = ROW_HEIGHTS.indexOf(this.rowHeight) + direction;
    this.rowHeight = ROW_HEIGHTS[Math.min(ROW_HEIGHTS.length - 1, Math.max(0, index))];
    this.tell();
  }

  settle() {
    this.start = Math.min(Math.max(0, this.start), Math.max(0, this.endSeconds * 1.01 - this.span));
    this.tell();
  }

  tell() {
    for (const listener of this.listeners) listener();
  }
}

export function ticks(start, span, most) {
  const raw = span / most;
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * magnitude).find((each) => each >= raw * (1 - 1e-9));
  const first = Math.ceil(start / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor((start + span) / step) - first + 1) }, (_, index) => (first + index) * step);
}

export function seconds(value, resolution = value) {
  const scale = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]].find(([unit]) => value >= unit) ?? [1e-9, "ns"];
  if (value === 0) return "0";
  const places = Math.min(9, Math.max(0, 2 - Math.floor(Math.log10(resolution / scale[0]))));
  const text = (value / scale[0]).toFixed(places);
  return `${places ? text.replace(/\.?0+$/, "") : text}\u00a0${scale[1]}`;
}
