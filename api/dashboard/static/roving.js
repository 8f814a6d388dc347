// Grids are one stop of the Tab key; arrow keys go from slot to slot. What has the focus, or the pointer, is told in full.

const STOPS = "td.slot[tabindex], [data-stop]";
const KEYS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"]);

export function prepare(scope) {
  for (const frame of scope.querySelectorAll("[data-roving]")) {
    frame.querySelectorAll("[data-stop]").forEach((stop, index) => (stop.tabIndex = index ? -1 : 0));
    for (const told of frame.querySelectorAll("[data-detail]")) told.removeAttribute("title");
    const inspector = frame.querySelector(".inspector");
    if (inspector) {
      inspector.hidden = false;
      inspector.textContent = "Point at a slot, or go there with the arrow keys, to read about it.";
    }
  }
}

export function listen() {
  document.addEventListener("keydown", (event) => {
    const stop = event.target.closest?.(STOPS);
    const frame = stop?.closest("[data-roving]");
    if (!frame || !KEYS.has(event.key) || event.altKey || event.metaKey) return;
    const next = neighbour(frame, stop, event.key, event.ctrlKey);
    event.preventDefault();
    if (next) next.focus();
  });
  document.addEventListener("focusin", (event) => {
    const stop = event.target.closest?.(STOPS);
    const frame = stop?.closest("[data-roving]");
    if (!frame) return;
    for (const other of frame.querySelectorAll(STOPS)) other.tabIndex = other === stop ? 0 : -1;
    inspect(stop);
  });
  document.addEventListener("pointerover", (event) => inspect(event.target.closest?.("[data-detail]")));
}

function inspect(cell) {
  const inspector = cell?.dataset.detail && cell.closest("[data-roving]")?.querySelector(".inspector");
  if (inspector) inspector.textContent = cell.dataset.detail;
}

function neighbour(frame, stop, key, isFar) {
  const rows = [...frame.querySelectorAll("tr, .bench")]
    .map((row) => [...row.querySelectorAll(STOPS)])
    .filter((row) => row.length);
  const here = rows.findIndex((row) => row.includes(stop));
  const row = rows[here];
  const place = row.indexOf(stop);
  switch (key) {
    case "ArrowLeft":
      return row[place - 1];
    case "ArrowRight":
      return row[place + 1];
    case "Home":
      return isFar ? rows[0][0] : row[0];
    case "End":
      return isFar ? rows.at(-1).at(-1) : row.at(-1);
    default:
      return nearest(rows[here + (key === "ArrowUp" ? -1 : 1)], stop);
  }
}

function nearest(row, stop) {
  const middle = (element) => {
    const box = element.getBoundingClientRect();
    return box.left + box.width / 2;
  };
  const wanted = middle(stop);
  return row?.reduce((best, each) => (Math.abs(middle(each) - wanted) < Math.abs(middle(best) - wanted) ? each : best));
}
