// Before anything is drawn: the colours that were chosen last. The switch itself is in switch.js.
(() => {
  try {
    const kept = localStorage.getItem("kintsugi-theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch {
    // Storage may be forbidden; the system's colours stay.
  }
})();
