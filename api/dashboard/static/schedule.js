// The schedule's charts: fetched, drawn one beside the other on one scale of time, moved together.

import { Chart, element } from "./chart.js";
import { Panel } from "./panel.js";
import { ROW_HEIGHTS, Window } from "./window.js";

const ACTIONS = {
  in: (view) => view.zoom(1.6),
  out: (view) => view.zoom(1 / 1.6),
  left: (view) => view.pan(-0.2),
  right: (view) => view.pan(0.2),
  fit: (view) => view.fit(),
  taller: (view) => view.rows(1),
  flatter: (view) => view.rows(-1),
};
const COMFORTABLE_HEIGHT = 560;
const ANSWER_MILLISECONDS = 60000;

export async function show(root) {
  root.hidden = false;
  const status = document.getElementById("schedule-status");
  try {
    const response = await fetch(root.dataset.source, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MILLISECONDS) });
    if (!response.ok) throw new Error(`the service answered ${response.status}`);
    lay(root, await response.json());
    status.textContent = "";
  } catch (error) {
    status.textContent = `The schedule cannot be shown: ${error.message}. Load the page again to retry.`;
    status.classList.add("bad");
  }
}

function lay(root, data) {
  const panels = data.panels.map((each) => new Panel(each, data.kinds));
  const view = new Window(Math.max(...panels.map((panel) => panel.endSeconds)));
  const numRows = Math.max(...panels.map((panel) => panel.rows.length));
  view.rowHeight = ROW_HEIGHTS.findLast((height) => height <= 24 && height * numRows <= COMFORTABLE_HEIGHT) ?? ROW_HEIGHTS[0];
  const tip = element("div", "tip");
  tip.hidden = true;
  const palette = paletteOf(root);
  const charts = panels.map((panel) => new Chart(panel, view, palette.current, tip));
  const place = document.getElementById("panels");
  place.classList.toggle("panels-2", charts.length > 1);
  place.replaceChildren(...charts.map((chart) => chart.element), tip);
  scrollTogether(charts);
  root.querySelector(".toolbar").addEventListener("click", (event) => ACTIONS[event.target.closest("button")?.dataset.do]?.(view));
  addEventListener("resize", () => view.tell());
  document.addEventListener("themechange", () => {
    palette.renew();
    view.tell();
  });
  leaveOut(root, panels);
  requestAnimationFrame(() => requestAnimationFrame(() => (root.dataset.drawn = "true")));
}

function scrollTogether(charts) {
  for (const chart of charts) {
    chart.box.addEventListener("scroll", () => {
      for (const other of charts) if (other.box.scrollTop !== chart.box.scrollTop) other.box.scrollTop = chart.box.scrollTop;
    });
  }
}

// Entries of the legend that nothing in the charts is about.
function leaveOut(root, panels) {
  const acts = new Set(panels.flatMap((panel) => panel.rows.flatMap((row) => row.bars.map((bar) => bar.act))));
  for (const swatch of root.querySelectorAll("[data-act]")) swatch.closest("li").hidden = !acts.has(swatch.dataset.act);
}

// Colours as the style sheet has them, light or dark.
function paletteOf(root) {
  let colours = null;
  const read = () => {
    const page = getComputedStyle(document.body);
    const probe = (name) => {
      const span = element("span");
      span.style.color = `var(--${name})`;
      root.append(span);
      const { color } = getComputedStyle(span);
      span.remove();
      return color;
    };
    const acts = [...root.querySelectorAll("[data-act]")].map((swatch) => {
      const style = getComputedStyle(swatch);
      return [swatch.dataset.act, { fill: style.backgroundColor, ink: style.color }];
    });
    const names = { ink: "ink", muted: "muted", line: "line", strong: "line-strong", card: "card", focus: "focus" };
    const plain = Object.entries(names).map(([key, name]) => [key, probe(name)]);
    return { font: `11px ${page.fontFamily}`, ...Object.fromEntries([...plain, ...acts]) };
  };
  return { current: () => (colours ??= read()), renew: () => (colours = null) };
}
