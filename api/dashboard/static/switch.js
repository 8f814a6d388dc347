// The switch between light and dark; without a choice the system's.

const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");

const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

function tell(button) {
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  document.dispatchEvent(new Event("themechange"));
}

export function offerThemes() {
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("kintsugi-theme", root.dataset.theme);
    } catch {
      // The choice lasts as long as the page.
    }
    tell(button);
  });
  system.addEventListener("change", () => tell(button));
  tell(button);
}
