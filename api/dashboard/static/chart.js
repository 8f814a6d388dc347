// One chart: its canvas, keys, pointer, and the words for what is selected.

import { AXIS, draw, gutterOf } from "./drawing.js";
import { seconds } from "./window.js";

const TALLEST = 740;

export class Chart {
  constructor(panel, view, palette, tip) {
    Object.assign(this, { panel, view, palette, tip, selected: null, asked: 0 });
    this.gutter = gutterOf(panel);
    this.build();
    this.view.onChange(() => this.redraw());
    new ResizeObserver(() => this.redraw()).observe(this.box);
    this.box.addEventListener("scroll", () => this.redraw());
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.box.addEventListener("focus", () => this.selected || this.select(this.panel.nearest(0, this.view.start, 1)));
    this.pointer();
  }

  build() {
    const { panel } = this;
    this.element = element("figure", "panel");
    const caption = element("figcaption", "", panel.title);
    caption.append(element("span", "", `step ${seconds(panel.endSeconds)} · ${panel.rows.length} rows`));
    this.box = element("div", "chart-box");
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "application");
    this.box.setAttribute("aria-label", `Schedule. ${panel.title}`);
    this.box.setAttribute("aria-describedby", "schedule-help");
    this.canvas = element("canvas");
    this.space = element("div", "chart-space");
    this.box.append(this.canvas, this.space);
    this.words = element("p", "pick-line", "Nothing selected.");
    this.words.setAttribute("aria-live", "polite");
    this.element.append(caption, this.box, this.words);
  }

  redraw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      const full = AXIS + this.panel.rows.length * this.view.rowHeight + 4;
      this.space.style.height = `${full}px`;
      const height = Math.min(full, TALLEST, Math.max(240, innerHeight * 0.74));
      this.canvas.style.height = `${height}px`;
      const width = this.box.clientWidth;
      const place = { width, height, gutter: this.gutter, first: this.box.scrollTop, selected: this.selected, palette: this.palette() };
      draw(this.canvas, this.panel, this.view, place);
    });
  }

  select(found, moves = true) {
    if (!found) return;
    this.selected = found;
    this.words.textContent = this.panel.describe(found.row, found.bar, seconds);
    if (moves) {
      this.view.reveal(found.bar.start, found.bar.end);
      const top = found.row * this.view.rowHeight;
      const seen = this.box.clientHeight - AXIS - this.view.rowHeight;
      this.box.scrollTop = Math.min(Math.max(this.box.scrollTop, top - seen), top);
    }
    this.redraw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = (event.shiftKey ? this.shifted() : this.plain())[event.key] ?? this.both()[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  plain() {
    const step = (direction) => () => this.select(this.selected && this.panel.beside(this.selected.row, this.selected.bar, direction));
    const row = (direction) => () => {
      const { row: here, bar } = this.selected ?? { row: -1, bar: { start: this.view.start, end: this.view.start } };
      this.select(this.panel.nearest(here + direction, (bar.start + bar.end) / 2, direction));
    };
    return { ArrowLeft: step(-1), ArrowRight: step(1), ArrowUp: row(-1), ArrowDown: row(1) };
  }

  shifted() {
    return { ArrowLeft: () => this.view.pan(-0.2), ArrowRight: () => this.view.pan(0.2) };
  }

  both() {
    const centre = () => this.selected && (this.selected.bar.start + this.selected.bar.end) / 2;
    const zoom = (factor) => () => this.view.zoom(factor, centre() ?? undefined);
    const edge = (index) => () => {
      const bars = this.panel.rows[this.selected?.row ?? 0].bars;
      if (bars.length) this.select({ row: this.selected?.row ?? 0, bar: bars.at(index) });
    };
    return {
      "+": zoom(1.6), "=": zoom(1.6), "-": zoom(1 / 1.6), "_": zoom(1 / 1.6), 0: () => this.view.fit(),
      "[": () => this.view.rows(-1), "]": () => this.view.rows(1), Home: edge(0), End: edge(-1),
    };
  }

  wheel(event) {
    if (document.activeElement !== this.box && !event.ctrlKey) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.view.pan((event.deltaX || event.deltaY) / 1000);
    else this.view.zoom(Math.exp(-event.deltaY / 400), this.time(event));
  }

  time(event) {
    const box = this.box.getBoundingClientRect();
    const width = this.box.clientWidth - this.gutter;
    return this.view.start + ((event.clientX - box.left - this.gutter) / width) * this.view.span;
  }

  under(event) {
    const box = this.box.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - AXIS + this.box.scrollTop) / this.view.rowHeight);
    const bar = event.clientY - box.top < AXIS ? null : this.panel.at(row, this.time(event));
    return bar && { row, bar };
  }

  pointer() {
    let drag = null;
    this.box.addEventListener("pointerdown", (event) => {
      if (event.button || event.offsetX > this.box.clientWidth) return;
      drag = { x: event.clientX, moved: 0 };
      this.box.setPointerCapture(event.pointerId);
    });
    this.box.addEventListener("pointermove", (event) => {
      if (!drag) return this.tell(event);
      const distance = event.clientX - drag.x;
      drag.x = event.clientX;
      drag.moved += Math.abs(distance);
      this.box.classList.toggle("dragging", drag.moved > 4);
      if (drag.moved > 4) this.view.pan(-distance / (this.box.clientWidth - this.gutter));
    });
    const end = (event) => {
      if (drag && drag.moved <= 4 && event.type === "pointerup") this.select(this.under(event), false);
      drag = null;
      this.box.classList.remove("dragging");
    };
    this.box.addEventListener("pointerup", end);
    this.box.addEventListener("pointercancel", end);
    this.box.addEventListener("pointerleave", () => (this.tip.hidden = true));
  }

  tell(event) {
    const found = event.pointerType === "touch" ? null : this.under(event);
    this.tip.hidden = !found;
    if (!found) return;
    this.tip.textContent = this.panel.describe(found.row, found.bar, seconds);
    this.tip.style.left = `${Math.min(event.clientX + 14, innerWidth - this.tip.offsetWidth - 8)}px`;
    this.tip.style.top = `${Math.min(event.clientY + 16, innerHeight - this.tip.offsetHeight - 8)}px`;
  }
}

export function element(name, className = "", text = "") {
  const result = document.createElement(name);
  if (className) result.className = className;
  if (text) result.textContent = text;
  return result;
}
